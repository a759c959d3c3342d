"""The settings of OAUTHBEARER: what a listener with it needs, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from korvet.errors import ConfigError
from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings, ServeSettings, check_sasl
from korvet.server.ground.token_settings import token_settings
from korvet.server.processes.live import _merged
from tests.support.issuer import RULES, Issuer

URL = "sasl.oauthbearer.jwks.endpoint.url"
COMPLETE = {URL: "https://issuer.example/keys", **RULES}
OVER_TLS = ListenerSettings(security=Security.SASL_TLS, sasl=("OAUTHBEARER",))


def test_settings_without_a_place_of_keys_are_none() -> None:
    assert token_settings({}) is None
    with pytest.raises(ConfigError, match=r"OAUTHBEARER needs sasl\.oauthbearer\.jwks\.endpoint\.url"):
        check_sasl([OVER_TLS], {})
    check_sasl([OVER_TLS], COMPLETE)


def test_tokens_are_not_shown_to_the_network_unless_a_setting_says_so() -> None:
    listener = ListenerSettings(security=Security.SASL_PLAINTEXT, sasl=("OAUTHBEARER",))
    with pytest.raises(ConfigError, match=r"korvet\.sasl\.oauthbearer\.without\.tls"):
        check_sasl([listener], {**COMPLETE, "korvet.sasl.plain.without.tls": "true"})
    check_sasl([listener], {**COMPLETE, "korvet.sasl.oauthbearer.without.tls": "true"})


@pytest.mark.parametrize("name", ["issuer", "audience"])
def test_issuer_and_audience_have_to_be_named_or_given_up(name: str) -> None:
    """Kafka 4.1 asks for neither; its newest sources do (BrokerJwtValidatorTest.testConfigureFailsWhen…Unset)."""
    without = {key: value for key, value in COMPLETE.items() if not key.endswith(name)}
    with pytest.raises(ConfigError, match=rf"needs sasl\.oauthbearer\.expected\.{name}"):
        token_settings(without)
    found = token_settings({**without, f"sasl.oauthbearer.allow.unverified.{name}": "true"})
    assert found is not None
    assert not getattr(found.rules, name)


def test_server_name_alone_does_not_choose_among_tenants_for_a_token() -> None:
    """Attack: tokens have no tenant's list of users, so any of them would open each tenant."""
    listener = replace(OVER_TLS, namespace_from=NamespaceFrom.SNI)
    claim = "korvet.sasl.oauthbearer.namespace.claim.name"
    with pytest.raises(ConfigError, match=claim):
        check_sasl([listener], COMPLETE)
    check_sasl([listener], {**COMPLETE, claim: "tenant"})


def test_settings_have_kafkas_defaults() -> None:
    found = token_settings(COMPLETE)
    assert found is not None
    assert (found.rules.clock_skew_s, found.rules.sub_claim, found.rules.scope_claim) == (30, "sub", "scope")
    assert found.rules.audience == ("other", "kafka")
    source = found.source
    assert (source.refresh_s, source.backoff_s, source.most_backoff_s) == (3600, 0.1, 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (URL, "http://issuer.example/keys"),
        (URL, "keys.json"),
        ("korvet.sasl.oauthbearer.algorithms", "RS256,HS256"),
        ("korvet.sasl.oauthbearer.algorithms", "none"),
        ("korvet.sasl.oauthbearer.algorithms", " "),
        ("sasl.oauthbearer.sub.claim.name", " "),
        ("sasl.oauthbearer.expected.audience", " , "),
        ("sasl.oauthbearer.clock.skew.seconds", "-1"),
        ("sasl.oauthbearer.jwks.endpoint.refresh.ms", "10"),
        ("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "0"),
    ],
)
def test_wrong_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        token_settings({**COMPLETE, name: value})


def test_changed_settings_of_tokens_need_a_restart() -> None:
    old = ServeSettings(broker=COMPLETE)
    new = replace(old, broker={**COMPLETE, "sasl.oauthbearer.clock.skew.seconds": "5", "num.partitions": "3"})
    merged, taken, left = _merged(old, new)
    assert (taken, left) == (["num.partitions=3"], ["sasl.oauthbearer.clock.skew.seconds"])
    assert token_settings(merged.broker) == token_settings(COMPLETE)


def serve(directory: Path, broker: str) -> str:
    """The complaint of a broker that does not start."""
    config = directory / "korvet.toml"
    listener = 'listen = "127.0.0.1:0"\nsecurity = "sasl_plaintext"\nsasl = ["OAUTHBEARER"]\ndata-dir = "data"\n'
    config.write_text(f"[serve]\n{listener}[broker]\nkorvet.sasl.oauthbearer.without.tls = true\n{broker}")
    command = [sys.executable, "-m", "korvet.cli", "serve", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode, ended
    return ended.stderr


def test_broker_does_not_start_without_keys(tmp_path: Path) -> None:
    assert "OAUTHBEARER needs" in serve(tmp_path, "")
    issuer = Issuer(tmp_path / "keys.json")
    rules = "".join(f'{name} = "{value}"\n' for name, value in RULES.items())
    place = f'"{URL}" = "{issuer.url}"\n'
    issuer.path.write_text("{}")
    assert "no JSON Web Key Set" in serve(tmp_path, place + rules)
    assert "needs sasl.oauthbearer.expected" in serve(tmp_path, place)
    assert "want https" in serve(tmp_path, f'"{URL}" = "http://issuer.example/keys"\n{rules}')
