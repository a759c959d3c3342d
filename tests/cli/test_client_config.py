"""The settings of a client that ``--command-config`` names: what is honoured, what is refused, what is told."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from korvet.cli import run
from korvet.cli.ground.cluster import Cluster, named_cluster, read_properties
from korvet.cli.kafka.security import client_security
from korvet.errors import ConfigError
from tests.support.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.client("me")


def test_file_has_the_syntax_of_java_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(
        "# comment\r\n! too\r\nClient.Id : me \\\r\n    and you\r\nsasl.username=\\u00e4ö\n"
        "sasl.password = with space \nssl.ca.location  /ca.pem  \nclient.id=again\n".encode()
    )
    assert read_properties(file) == {
        "client.id": "again",
        "sasl.username": "äö",
        "sasl.password": "with space ",
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"a=\xff", "not UTF-8"), (b"a=\\u00", "four hexadecimal"), (b"a" * (2 << 20), "larger")]
)
def test_file_that_is_no_properties_file_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        read_properties(file)


def test_flag_names_brokers_before_the_file_does(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=one:1,two:2\n")
    assert named_cluster(None, file).bootstrap == "one:1,two:2"
    assert named_cluster("three:3", file).bootstrap == "three:3"
    assert named_cluster(None, None).bootstrap == "127.0.0.1:9092"
    file.write_text("bootstrap.servers=one:port\n")
    with pytest.raises(ConfigError, match=r"bootstrap.servers: 'one:port' is not HOST:PORT"):
        named_cluster(None, file)


@pytest.mark.parametrize(
    ("bootstrap", "protocol", "is_overheard"),
    [
        ("localhost:1,127.0.0.2:2,[::1]:3", "PLAINTEXT", False),
        ("localhost:1,broker.invalid:2", "PLAINTEXT", True),
        ("10.0.0.1:1", "sasl_plaintext", True),
        ("10.0.0.1:1", "sasl_ssl", False),
    ],
)
def test_cluster_is_overheard_beyond_this_machine_without_tls(
    bootstrap: str, protocol: str, is_overheard: bool
) -> None:
    cluster = Cluster(bootstrap=bootstrap, settings={"security.protocol": protocol})
    assert cluster.is_overheard is is_overheard


def test_password_that_others_may_read_is_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hidden")
    add = ["users", "add", "alice", "--password-file", str(password), "--bootstrap-server"]
    assert run([*add, "broker.invalid:1"]) == 1
    told = capsys.readouterr().err
    assert "the connection has no TLS" in told and "hidden" not in told
    assert run([*add, "127.0.0.1:1"]) == 1
    assert "TLS" not in capsys.readouterr().err


def test_settings_do_not_show_in_the_text_of_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=hidden\n")
    assert "hidden" not in repr(named_cluster(None, file))


@pytest.mark.parametrize(
    "settings",
    [
        {"ssl.truststore.location": "{ca}", "ssl.truststore.type": "PEM", "ssl.truststore.password": "unused"},
        {"ssl.ca.location": "{ca}"},
        {"ssl.truststore.certificates": "{pem}"},
    ],
)
def test_authorities_are_trusted_by_any_of_their_names(authority: Authority, settings: dict[str, str]) -> None:
    pem = authority.cert.read_text()
    given = {name: value.format(ca=authority.cert, pem=pem) for name, value in settings.items()}
    found = client_security({"security.protocol": "ssl", **given})
    assert found.tls is not None and found.tls.cert_store_stats()["x509_ca"] == 1
    assert found.tls.check_hostname and found.tls.verify_mode is ssl.CERT_REQUIRED


def test_systems_authorities_are_trusted_without_others() -> None:
    found = client_security({"security.protocol": "SSL"})
    assert found.tls is not None and found.tls.check_hostname


@pytest.mark.parametrize("algorithm", ["", "none", "NONE"])
def test_names_are_not_checked_if_the_algorithm_is_empty(algorithm: str) -> None:
    found = client_security({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": algorithm})
    assert found.tls is not None and not found.tls.check_hostname and found.tls.verify_mode is ssl.CERT_REQUIRED


def test_keystore_in_pem_holds_certificate_and_key(pair: Pair, tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    store.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    both = {"ssl.keystore.location": str(store), "ssl.keystore.type": "PEM"}
    apart = {"ssl.certificate.location": str(pair.cert), "ssl.key.location": str(pair.key)}
    for settings in (both, apart):
        assert client_security({"security.protocol": "SSL", **settings}).tls is not None


LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
}


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl.jaas.config": f'{SCRAM} required username="alice" password="a \\"b\\"";'},
        {"sasl.username": "alice", "sasl.password": 'a "b"'},
    ],
)
def test_name_and_password_are_taken_in_javas_words_and_in_librdkafkas(settings: dict[str, str]) -> None:
    found = client_security({**LOGIN, "sasl.mechanism": "PLAIN", **settings})
    assert found.login is not None and next(found.login.begin()) == b'\0alice\0a "b"'
    assert 'a "b"' not in repr(found)


def test_token_is_read_anew_at_each_login(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    found = client_security({**BEARER, "sasl.oauthbearer.token.endpoint.url": file.as_uri()})
    assert found.login is not None
    for token in ("a.b.c", "d.e.f"):
        file.write_text(f"{token}\n")
        assert next(found.login.begin()) == f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    for wrong in ("", "a b", "a\x01b"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="holds no token"):
            next(found.login.begin())
    file.unlink()
    with pytest.raises(ConfigError, match="cannot read the token"):
        next(found.login.begin())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: want one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({**LOGIN, "sasl.mechanism": "GSSAPI"}, "GSSAPI: it is not spoken here"),
        (LOGIN, "it needs a name and a password"),
        ({**LOGIN, "sasl.mecanism": "PLAIN"}, "sasl.mecanism cannot be honoured here; did you mean sasl.mechanism"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name cannot be honoured"),
        ({"ssl.truststore.location": "/trust.jks"}, "ssl.truststore.type=PEM"),
        ({"ssl.truststore.location": "/trust.p12", "ssl.truststore.type": "PKCS12"}, "ssl.truststore.type=PEM"),
        ({"ssl.keystore.location": "/me.jks"}, "keystores are read as PKCS12 or PEM"),
        ({"ssl.keystore.location": "/me.p12", "ssl.keystore.type": "PKCS12"}, "openssl pkcs12"),
        ({"ssl.keystore.key": "…"}, "name the file as ssl.key.location"),
        ({"ssl.cipher.suites": "X"}, "ssl.cipher.suites cannot be honoured"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/file"}, "ssl.ca.location=/no/file: no such file"),
        ({"security.protocol": "SSL", "ssl.key.location": "/key"}, "ssl.certificate.location is missing"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"}, "want https"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "no"}, "want true or false"),
        ({"request.timeout.ms": "soon"}, "expected a whole number"),
        ({"request.timeout.ms": "0"}, "want 1 to 300000"),
        ({**BEARER, "sasl.oauthbearer.token.endpoint.url": "https://h/token"}, "want file:///PATH"),
        (BEARER, "want file:///PATH"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        client_security(settings)


def test_key_with_a_password_needs_it(pair: Pair, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "key.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open sesame"),
        )
    )
    settings = {
        "security.protocol": "SSL", "ssl.certificate.location": str(pair.cert), "ssl.key.location": str(locked),
    }  # fmt: skip
    assert client_security({**settings, "ssl.key.password": "open sesame"}).tls is not None
    for wrong in ({}, {"ssl.key.password": "other"}):
        with pytest.raises(ConfigError, match=r"ssl.key.password if the key has one") as refused:
            client_security({**settings, **wrong})
        assert "other" not in str(refused.value)


def test_settings_without_effect_are_named(authority: Authority) -> None:
    settings = {"acks": "all", "made.up": "x", "client.id": "me", "sasl.username": "alice", "key.serializer": "x"}
    found = client_security({**settings, "ssl.ca.location": str(authority.cert)})
    assert found.unused == ("acks", "made.up", "sasl.username", "ssl.ca.location")
    assert found.client_id == "me"


def test_command_names_the_file_of_a_wrong_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    monkeypatch.setenv("KORVET_CLIENT_CONFIG", str(file))
    assert run(["topics", "list"]) == 2
    assert f"cannot read client settings {file}: No such file or directory" in capsys.readouterr().err
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.password=hidden\n")
    assert run(["topics", "list"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"korvet: {file}: sasl.mechanism=GSSAPI: it is not spoken here")
    assert "hidden" not in told and told.count("\n") == 1
