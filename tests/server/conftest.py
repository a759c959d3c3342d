"""The authorities of certificates and of tokens, for the tests of a module."""

from __future__ import annotations

import pytest

from tests.support.certificates import Authority
from tests.support.issuer import Issuer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")
