"""The authorities of certificates and of tokens, and a broker with tenants, for the tests of a module."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from tests.server.choosing import running_tenants
from tests.support.broker import KorvetServer
from tests.support.certificates import Authority
from tests.support.issuer import Issuer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")


@pytest.fixture(scope="module")
def tenants_broker(authority: Authority, issuer: Issuer) -> Iterator[KorvetServer]:
    """A broker of `running_tenants`."""
    with running_tenants(authority, issuer) as running:
        yield running


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    """Trusts the authority, whatever the host's name."""
    made = ssl.create_default_context(cafile=str(authority.cert))
    made.check_hostname = False
    return made
