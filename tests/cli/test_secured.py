"""Commands over TLS and logins at a real broker; and the sentence that a user gets if the two do not fit."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from korvet.cli import run
from korvet.cli.ground.cluster import named_cluster
from korvet.security.protocol import ClientAuth, Security
from korvet.server.ground.settings import ListenerSettings
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority, Pair
from tests.support.issuer import Issuer

PASSWORD = "right=,ä"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
PLAIN, TLS, MUTUAL, LOGIN, BOTH, ONE, ELSEWHERE, TOKEN = range(8)
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS;User:CN=me",
    "connection.failed.authentication.delay.ms": "0",
    "korvet.sasl.plain.without.tls": "true",
}

Shown = tuple[int, str, str]
Config = Callable[..., Path]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def me(authority: Authority) -> Pair:
    return authority.client("me")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")


@pytest.fixture(scope="module")
def broker(authority: Authority, issuer: Issuer) -> Iterator[KorvetServer]:
    """A broker with a listener of each kind, and the users admin and alice."""
    pair, other = authority.server(), authority.server(["elsewhere.example"])
    files: dict[str, Any] = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    mutual: dict[str, Any] = {"tls_client_ca": str(authority.cert), "tls_client_auth": ClientAuth.REQUIRED}
    listeners = [
        ListenerSettings(name="plain", port=0),
        ListenerSettings(name="tls", port=0, security=Security.TLS, **files),
        ListenerSettings(name="mutual", port=0, security=Security.TLS, **files, **mutual),
        ListenerSettings(name="login", port=0, security=Security.SASL_PLAINTEXT, sasl=MECHANISMS),
        ListenerSettings(name="both", port=0, security=Security.SASL_TLS, sasl=MECHANISMS, **files),
        ListenerSettings(name="one", port=0, security=Security.SASL_TLS, sasl=MECHANISMS[1:2], **files),
        ListenerSettings(
            name="elsewhere", port=0, security=Security.TLS, tls_cert=str(other.cert), tls_key=str(other.key)
        ),
        ListenerSettings(name="token", port=0, security=Security.SASL_TLS, sasl=("OAUTHBEARER",), **files),
    ]
    with running_broker(listeners=listeners, broker={**RIGHTS, **issuer.settings}) as broker:
        yield broker


@pytest.fixture(scope="module")
def config(broker: KorvetServer, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A function that writes a client's settings for a listener."""
    directory = tmp_path_factory.mktemp("config")

    def config(at: int, protocol: str = "", mechanism: str = "", user: str = "admin", **others: str) -> Path:
        settings = {"bootstrap.servers": f"127.0.0.1:{broker.ports[at]}"}
        if protocol:
            settings["security.protocol"] = protocol
        if protocol.endswith("SSL"):
            settings |= {"ssl.truststore.location": str(authority.cert), "ssl.truststore.type": "PEM"}
        if mechanism:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": PASSWORD}
        settings |= {name.replace("_", "."): value for name, value in others.items()}
        file = directory / f"{uuid4().hex}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items() if value != "-"))
        return file

    return config


@pytest.fixture
def korvet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shown]:
    """Run a command: exit code, stdout and stderr."""

    def korvet(*arguments: str | Path, stdin: str = "") -> Shown:
        with monkeypatch.context() as patch, (Path("/dev/null")).open() as nothing:
            patch.setattr("sys.stdin", _Text(stdin) if stdin else nothing)
            capsys.readouterr()
            code = run([str(one) for one in arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return korvet


class _Text:
    """Stdin with a text, which is no terminal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def isatty(self) -> bool:
        return False

    def read(self) -> str:
        return self._text


@pytest.fixture(autouse=True)
def users(broker: KorvetServer, korvet: Callable[..., Shown]) -> None:
    """The users admin and alice, straight in Redis."""
    for user in ("admin", "alice"):
        for mechanism in MECHANISMS[:2]:
            added = korvet(
                "users", "add", user, "--mechanism", mechanism, "--data-dir", broker.data_dir, stdin=f"{PASSWORD}\n"
            )
            assert added == (0, f"user {user} may log in by {mechanism}\n", "")


@pytest.mark.parametrize(
    ("at", "protocol", "mechanism"),
    [
        (TLS, "SSL", ""),
        *((LOGIN, "SASL_PLAINTEXT", mechanism) for mechanism in MECHANISMS),
        *((BOTH, "SASL_SSL", mechanism) for mechanism in MECHANISMS),
    ],
)
def test_records_go_out_and_back_over_every_kind_of_listener(
    config: Config, korvet: Callable[..., Shown], tmp_path: Path, at: int, protocol: str, mechanism: str
) -> None:
    topic, file = f"t-{uuid4().hex[:8]}", config(at, protocol, mechanism)
    records = tmp_path / "records"
    records.write_text("hello\nworld\n")
    assert korvet("topics", "create", topic, "--command-config", file)[0] == 0
    assert korvet("topics", "produce", topic, records, "--command-config", file)[0] == 0
    assert korvet("topics", "consume", topic, "--command-config", file) == (0, "hello\nworld\n", "")
    code, out, _ = korvet(
        "topics", "consume", topic, "--group", topic, "-n", "2", "-o", "earliest", "--command-config", file
    )
    assert (code, sorted(out.split())) == (0, ["hello", "world"])
    code, out, err = korvet("groups", "describe", topic, "--command-config", file)
    assert code == 0 and topic in out, err


def test_certificate_of_the_client_is_shown(
    config: Config, korvet: Callable[..., Shown], me: Pair, tmp_path: Path
) -> None:
    store = tmp_path / "store.pem"
    store.write_bytes(me.key.read_bytes() + me.cert.read_bytes())
    file = config(MUTUAL, "SSL", ssl_keystore_location=str(store), ssl_keystore_type="PEM")
    code, _, err = korvet("acls", "list", "--command-config", file)
    assert code == 0, err


@pytest.mark.parametrize(
    ("at", "settings", "sentence"),
    [
        (
            PLAIN,
            {"protocol": "SSL"},
            "{where} does not speak TLS; set security.protocol to PLAINTEXT, or SASL_PLAINTEXT with a login, in the "
            "file of --command-config, or name the address of a listener with TLS",
        ),
        (
            TLS,
            {},
            "{where} speaks TLS; set security.protocol to SSL, or SASL_SSL with a login, in the file of "
            "--command-config",
        ),
        (
            BOTH,
            {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN"},
            "{where} speaks TLS; set security.protocol to SSL, or SASL_SSL with a login, in the file of "
            "--command-config",
        ),
        (
            LOGIN,
            {},
            "{where} wants a login by SCRAM-SHA-256 or SCRAM-SHA-512 or PLAIN; set security.protocol=SASL_PLAINTEXT, "
            "sasl.mechanism, and a name and password in the file of --command-config",
        ),
        (
            ONE,
            {"protocol": "SSL"},
            "{where} wants a login by SCRAM-SHA-512; set security.protocol=SASL_SSL, sasl.mechanism, and a name and "
            "password in the file of --command-config",
        ),
        (
            ONE,
            {"protocol": "SASL_SSL", "mechanism": "PLAIN"},
            "{where} takes no login by PLAIN; set sasl.mechanism to SCRAM-SHA-512 in the file of --command-config",
        ),
        (
            TLS,
            {"protocol": "SASL_SSL", "mechanism": "PLAIN"},
            "{where} takes no logins; set security.protocol=SSL in the file of --command-config",
        ),
        (
            MUTUAL,
            {"protocol": "SSL"},
            "{where} wants a certificate of this client (tlsv13 alert certificate required); name one as "
            "ssl.keystore.location, with ssl.keystore.type=PEM, in the file of --command-config",
        ),
        (
            TLS,
            {"protocol": "SSL", "ssl_truststore_location": "-", "ssl_truststore_type": "-"},
            "the certificate of {where} is not signed by an authority that is trusted here; name the file of its "
            "authority as ssl.truststore.location, with ssl.truststore.type=PEM, in the file of --command-config",
        ),
        (
            ELSEWHERE,
            {"protocol": "SSL"},
            "the certificate of {where} is for other names; connect by a name that it has, or have one made "
            "with this name",
        ),
        *(
            (
                BOTH,
                {"protocol": "SASL_SSL", "mechanism": mechanism, "sasl_password": "wrong"},
                f"{{where}} refused the login of user 'admin' by {mechanism}; check the name and the password, and "
                f"whether this user has one for {mechanism}",
            )
            for mechanism in MECHANISMS
        ),
    ],
)
def test_settings_that_do_not_fit_get_one_sentence(
    broker: KorvetServer, config: Config, korvet: Callable[..., Shown], at: int, settings: dict[str, str], sentence: str
) -> None:
    port = broker.ports[at]
    told = korvet("topics", "list", "--command-config", config(at, **settings))
    assert told == (1, "", f"korvet: {sentence.format(where=f'127.0.0.1:{port}')}\n")


def test_certificate_of_another_authority_is_not_taken(
    config: Config, korvet: Callable[..., Shown], tmp_path: Path
) -> None:
    other = Authority.make(tmp_path).client("me")
    file = config(MUTUAL, "SSL", ssl_certificate_location=str(other.cert), ssl_key_location=str(other.key))
    code, _, err = korvet("topics", "list", "--command-config", file)
    assert code == 1
    assert "does not take the certificate of this client (tlsv1 alert unknown ca)" in err


def test_client_logs_in_again_when_most_of_its_session_is_over(tmp_path: Path) -> None:
    listener = ListenerSettings(port=0, security=Security.SASL_PLAINTEXT, sasl=MECHANISMS[1:2])
    with running_broker(listeners=[listener], broker={"connections.max.reauth.ms": "600000"}) as broker:
        password, file = tmp_path / "password", tmp_path / "client.properties"
        password.write_text(PASSWORD)
        added = ["users", "add", "admin", "--data-dir", str(broker.data_dir), "--password-file", str(password)]
        assert run(added) == 0
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=admin\n"
            f"sasl.password={PASSWORD}\n"
        )
        began = time.monotonic()
        with named_cluster(broker.bootstrap, file).client() as client:
            connection = client._any()
            assert began + 539 < connection._login_due < time.monotonic() + 540
            # Kafka takes no second login within a second.
            time.sleep(1.1)
            connection._login_due = time.monotonic()
            assert client.topics() == {}
            assert connection._login_due > began + 540
            assert client._any() is connection and connection.is_open


def test_token_of_a_file_logs_in_until_it_is_refused(
    config: Config, korvet: Callable[..., Shown], issuer: Issuer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(issuer.token("admin"))
    file = config(
        TOKEN, "SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=token.as_uri(),
        sasl_jaas_config="org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    )  # fmt: skip
    assert korvet("acls", "list", "--command-config", file)[0] == 0
    expired = issuer.token("admin", -3600)
    token.write_text(expired)
    code, _, err = korvet("acls", "list", "--command-config", file)
    assert code == 1 and f"refused the login of the token of {token} by OAUTHBEARER: " in err
    assert expired not in err and expired.split(".")[2] not in err


@contextmanager
def cheat(*answers: bytes) -> Iterator[int]:
    """A server on a port that answers each request with the next of some frames, and then with silence."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as peer:
                for answer in answers:
                    peer.recv(65536)
                    peer.sendall(answer)
                peer.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(30)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


HANDSHAKE = b"\0\0\0\1\0\0\0\0\0\1\0\x0dSCRAM-SHA-512"


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        (
            [frame(HANDSHAKE), frame(b"\0\0\0\2\0\0\0\0\x1br=stolen,s=c2FsdA==,i=4096\0\0\0\0\0\0\0\0\0")],
            "is no broker to log in at: its first SCRAM message is wrong",
        ),
        ([(1 << 20).to_bytes(4)], "does not speak Kafka's protocol (a frame of 1048576 bytes)"),
        (
            [frame(b"\0\0\0\1\0\x21\0\0\0\1\x75\x30" + b"x" * 30000)],
            f"takes no login by SCRAM-SHA-512; set sasl.mechanism to {'x' * 300}… in the file",
        ),
        ([frame(HANDSHAKE[:6])], "cannot be decoded"),
    ],
)
def test_server_that_cheats_in_a_login_is_reported(
    korvet: Callable[..., Shown], tmp_path: Path, answers: list[bytes], complaint: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=a\nsasl.password=hidden\n"
    )
    with cheat(*answers) as port:
        code, out, err = korvet("topics", "list", "-b", f"127.0.0.1:{port}", "--command-config", file)
    assert (code, out) == (1, "") and complaint in err and "hidden" not in err, err


def test_rules_are_added_listed_and_removed_by_both_doors(
    broker: KorvetServer, config: Config, korvet: Callable[..., Shown]
) -> None:
    over_kafka = ["--command-config", config(BOTH, "SASL_SSL", "SCRAM-SHA-512")]
    in_redis = ["--data-dir", broker.data_dir]
    for door, other in ((over_kafka, in_redis), (in_redis, over_kafka)):
        name = f"t-{uuid4().hex[:8]}"
        added = korvet("acls", "add", "--allow-principal", "User:alice", "--producer", "--topic", name, *door)
        assert added[0] == 0, added
        code, out, err = korvet("acls", "list", "--topic", name, "--json", *other)
        assert code == 0, err
        assert [(rule["operation"], rule["principal"], rule["host"]) for rule in json.loads(out)] == [
            ("WRITE", "User:alice", "*"), ("CREATE", "User:alice", "*"), ("DESCRIBE", "User:alice", "*"),
        ]  # fmt: skip
        shown = korvet("acls", "remove", "--topic", name, "--operation", "write", *door)
        assert shown[0] == 1 and shown[2] == "nothing was changed; add --execute to do it\n"
        assert len(json.loads(korvet("acls", "list", "--topic", name, "--json", *other)[1])) == 3
        assert korvet("acls", "remove", "--topic", name, "--operation", "write", "--execute", *door)[0] == 0
        left = json.loads(korvet("acls", "list", "--principal", "User:alice", "--topic", name, "--json", *other)[1])
        assert [rule["operation"] for rule in left] == ["CREATE", "DESCRIBE"]


def test_quotas_are_set_listed_and_removed_by_both_doors(
    broker: KorvetServer, config: Config, korvet: Callable[..., Shown]
) -> None:
    over_kafka = ["--command-config", config(BOTH, "SASL_SSL", "SCRAM-SHA-512")]
    in_redis = ["--data-dir", broker.data_dir]
    rates = {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    for door, other in ((over_kafka, in_redis), (in_redis, over_kafka)):
        user = f"u {uuid4().hex[:8]}"
        alone: list[object] = [{"entity": {"user": user}, "quotas": rates}]
        pair = {"entity": {"user": user, "client-id": None}, "quotas": {"consumer_byte_rate": 5.0}}
        code, out, err = korvet(
            "quotas", "set", "--user", user, "producer_byte_rate=1000", "request_percentage=12.5", *door
        )
        assert (code, out.split("\n")[1].split()) == (0, [*user.split(), "-", "-", "producer_byte_rate", "1000"]), err
        assert korvet("quotas", "set", "--user", user, "--client-defaults", "consumer_byte_rate=5", *door)[0] == 0
        assert korvet("quotas", "set", "--ip-defaults", "connection_creation_rate=1000", *door)[0] == 0
        assert json.loads(korvet("quotas", "list", "--user", user, "--json", *other)[1]) == [*alone, pair]
        assert json.loads(korvet("quotas", "list", "--ip-defaults", "--json", *other)[1]) == [
            {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 1000.0}}
        ]
        removed = korvet("quotas", "remove", "--execute", "--user", user, "--client-defaults", *door)
        assert removed == (0, "removed: consumer_byte_rate\n", "")
        assert korvet("quotas", "remove", "--execute", "--user", user, "request_percentage", *door)[0] == 0
        rates_left = [{"entity": {"user": user}, "quotas": {"producer_byte_rate": 1000.0}}]
        assert json.loads(korvet("quotas", "list", "--user", user, "--json", *other)[1]) == rates_left
        code, _, err = korvet(
            "quotas", "remove", "--execute", "--user", user, "producer_byte_rate", "request_percentage", *door
        )
        assert (code, err) == (1, "korvet: it has no request_percentage; see all quotas with: korvet quotas list\n")
        assert json.loads(korvet("quotas", "list", "--user", user, "--json", *other)[1]) == rates_left
        assert korvet("quotas", "remove", "--execute", "--ip-defaults", *door)[0] == 0
        assert korvet("quotas", "remove", "--execute", "--ip-defaults", *door)[0] == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["producer_byte_rate=1"], "name an entity: --user, --client, --ip"),
        (["--user", "a", "--user-defaults", "producer_byte_rate=1"], "give either --user or --user-defaults"),
        (["--user", "", "producer_byte_rate=1"], "empty user not supported"),
        (["--user", "a", "--ip", "::1", "producer_byte_rate=1"], "IP entity shouldnot be combined"),
        (["--ip", "example.org", "connection_creation_rate=1"], "example.org is not a valid IP"),
        (["--ip", "::1", "producer_byte_rate=1"], "invalid configuration key producer_byte_rate"),
        (["--user", "a", "producer_byte_rate=nan"], "must be greater than 0"),
        (["--user", "a", "producer_byte_rate=1.5"], "cannot be a fractional value"),
        (["--user", "a", "producer_byte_rate"], "'producer_byte_rate' is not of the form QUOTA=NUMBER"),
        (["--user", "a", "producer_byte_rate=1", "producer_byte_rate=2"], "producer_byte_rate is given twice"),
    ],
)
def test_quotas_in_wrong_words_are_refused(korvet: Callable[..., Shown], words: list[str], complaint: str) -> None:
    code, out, err = korvet("quotas", "set", *words)
    assert (code, out) == (2, "") and complaint in err, err


def test_rules_of_a_producer_let_it_produce_and_no_more(
    config: Config, korvet: Callable[..., Shown], tmp_path: Path
) -> None:
    admin = ["--command-config", config(BOTH, "SASL_SSL", "SCRAM-SHA-512")]
    alice = ["--command-config", config(BOTH, "SASL_SSL", "SCRAM-SHA-256", "alice")]
    topic, records = f"t-{uuid4().hex[:8]}", tmp_path / "records"
    records.write_text("hello\n")
    assert korvet("topics", "create", topic, *admin)[0] == 0
    code, _, err = korvet("topics", "produce", topic, records, *alice)
    assert code == 1 and "TOPIC_AUTHORIZATION_FAILED" in err and "korvet acls add" in err
    code, _, err = korvet("acls", "list", *alice)
    assert code == 1 and "CLUSTER_AUTHORIZATION_FAILED" in err
    assert korvet("acls", "add", "--allow-principal", "User:alice", "--producer", "--topic", topic, *admin)[0] == 0
    _until(lambda: korvet("topics", "produce", topic, records, *alice)[0] == 0)
    code, _, err = korvet("topics", "consume", topic, *alice)
    assert code == 1 and "TOPIC_AUTHORIZATION_FAILED" in err
    more = ["--consumer", "--topic", topic, "--group", topic]
    assert korvet("acls", "add", "--allow-principal", "User:alice", *more, *admin)[0] == 0
    _until(lambda: korvet("topics", "consume", topic, *alice)[0] == 0)
    code, out, err = korvet("topics", "consume", topic, "--group", topic, "-n", "1", "-o", "earliest", *alice)
    assert (code, out) == (0, "hello\n"), err


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("in_redis", [False, True], ids=["over the protocol", "in Redis"])
def test_users_are_added_listed_and_removed(
    broker: KorvetServer, config: Config, korvet: Callable[..., Shown], in_redis: bool
) -> None:
    over_kafka: list[str | Path] = ["--command-config", config(BOTH, "SASL_SSL", "SCRAM-SHA-512")]
    admin = ["--data-dir", broker.data_dir] if in_redis else over_kafka
    name = f"u-{uuid4().hex[:8]}"
    code, _, err = korvet("users", "add", name, *admin, stdin="\n")
    assert code == 1 and "may not be empty" in err
    for mechanism in MECHANISMS[:2]:
        added = korvet("users", "add", name, "--mechanism", mechanism, "--iterations", "8192", *admin, stdin=PASSWORD)
        assert added == (0, f"user {name} may log in by {mechanism}\n", "")
    found = json.loads(korvet("users", "list", "--json", *admin)[1])
    assert [one for one in found if one["user"] == name] == [
        {"user": name, "mechanism": mechanism, "iterations": 8192} for mechanism in MECHANISMS[:2]
    ]
    own = ["--command-config", config(BOTH, "SASL_SSL", "SCRAM-SHA-256", name)]
    assert korvet("topics", "list", *own)[0] == 0
    assert korvet("users", "list", *own)[0] == 1
    assert korvet("users", "remove", "--execute", name, *admin) == (0, f"user {name} is removed\n", "")
    code, _, err = korvet("users", "remove", "--execute", name, *admin)
    assert (code, err) == (1, f"korvet: there is no user '{name}'; see all users with: korvet users list\n")
    assert name not in korvet("users", "list", *over_kafka)[1]
    assert in_redis or korvet("topics", "list", *own)[0] == 1


def test_door_is_the_one_that_flags_name_before_variables(
    broker: KorvetServer, config: Config, korvet: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KORVET_DATA_DIR", str(broker.data_dir))
    assert korvet("users", "list")[0] == 0
    assert korvet("users", "list", "-b", "127.0.0.1:1")[0] == 1
    monkeypatch.setenv("KORVET_CLIENT_CONFIG", str(config(BOTH, "SASL_SSL", "SCRAM-SHA-512", sasl_password="wrong")))
    assert "refused the login" in korvet("users", "list")[2]
    assert korvet("users", "list", "--data-dir", broker.data_dir)[0] == 0
    code, _, err = korvet("users", "list", "--data-dir", broker.data_dir, "-b", "127.0.0.1:1")
    assert code == 2 and "name either brokers (--bootstrap-server, --command-config) or a Redis" in err
    assert korvet("users", "list", "--namespace", "other")[0] == 2


def test_rules_need_an_authorizer(korvet: Callable[..., Shown]) -> None:
    with running_broker() as broker:
        code, _, err = korvet("acls", "list", "-b", broker.bootstrap)
    assert code == 1 and "SECURITY_DISABLED" in err and "authorizer.class.name" in err
