"""The config file: settings are read, and an error names its line, the allowed values and the nearest name."""

from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from korvet.cli import run
from korvet.errors import ConfigError
from korvet.settings.file import ConfigFile, read_config
from korvet.settings.schema import config_schema

Read = Callable[[str], ConfigFile]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a text to a config file and read it."""

    def read(text: str) -> ConfigFile:
        path = tmp_path / "korvet.toml"
        path.write_text(text)
        return read_config(path)

    return read


def test_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())


def test_empty_file_sets_nothing(read: Read) -> None:
    assert read("") == ConfigFile()


def test_flags_and_broker_settings_are_read(read: Read) -> None:
    found = read(
        """
        [serve]
        listen = "[::1]:9092"
        workers = 2
        log-level = "debug"
        [broker]
        num.partitions = 3
        "log.retention.ms" = 60000
        auto.create.topics.enable = false
        """
    )
    assert found.serve == {"listen": "[::1]:9092", "workers": 2, "log-level": "debug"}
    assert found.broker == {"num.partitions": "3", "log.retention.ms": "60000", "auto.create.topics.enable": "false"}


def test_listeners_are_read(read: Read) -> None:
    found = read(
        """
        [[listener]]
        listen = "127.0.0.1:9092"
        [[listener]]
        listen = "0.0.0.0:9093"
        advertised = "broker.example:9093"
        namespace = "b"
        proxy-protocol = true
        """
    )
    assert found.listeners == (
        {"listen": "127.0.0.1:9092"},
        {"listen": "0.0.0.0:9093", "advertised": "broker.example:9093", "namespace": "b", "proxy-protocol": True},
    )


def test_relative_data_dir_is_taken_from_the_files_directory(read: Read, tmp_path: Path) -> None:
    assert read('[serve]\ndata-dir = "there"').serve["data-dir"] == str(tmp_path / "there")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[serv]", "there is no table [serv]; did you mean 'serve'? allowed: broker, listener, pipeline, serve"),
        (
            "[serve]\nworker = 2",
            "there is no setting 'worker' in [serve]; did you mean 'workers'? allowed: advertised,",
        ),
        ("[serve]\nworkers = 0", "serve.workers: 0 is not allowed; want 1 to 256"),
        ("[serve]\nworkers = 'two'", "serve.workers: 'two' is not allowed; want a whole number"),
        ("[serve]\nlisten = 'here'", "serve.listen: 'here' is not allowed; want HOST:PORT, for example 127.0.0.1:9092"),
        ("[serve]\nredis = ''", "serve.redis: '' is not allowed; want a Redis URL"),
        (
            "[serve]\nlog-level = 'warn'",
            "serve.log-level: 'warn' is not allowed; did you mean 'warning'? allowed: debug, error, info, warning",
        ),
        ("serve = 1", "serve: 1 is not allowed; want a table"),
        (
            "[broker]\nnum.partitons = 3",
            "there is no setting 'num.partitons' in [broker]; did you mean 'num.partitions'?",
        ),
        ("[broker]\nnum.partitions = 'many'", "broker.num.partitions: 'many' is not allowed; want a whole number"),
        ("[broker]\nnum.partitions = -1", "broker.num.partitions: Invalid value -1"),
        ("[broker]\nlog.retention.hours = 4", "broker.log.retention.hours: cannot be set; set 'log.retention.ms', in"),
        ('[broker]\n"log.retention.minutes" = 4', "broker.log.retention.minutes: cannot be set; set 'log"),
        ("[broker]\ndelete.topic.enable = false", "broker.delete.topic.enable: cannot be set; it is always"),
        (
            "[broker]\nretention.ms = 1",
            "broker.retention.ms: a setting of topics; for all of them it is 'log.retention.ms'",
        ),
        (
            "[broker]\nkorvet.storage = 'record'",
            "broker.korvet.storage: a setting of topics, which has none for all of them",
        ),
        (
            "[broker]\ngroup.consumer.min.session.timeout.ms = 50000",
            "broker.group.consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            "[broker]\ngroup.consumer.max.heartbeat.interval.ms = 1000",
            "broker.group.consumer.max.heartbeat.interval.ms must be greater than or equal to "
            "group.consumer.min.heartbeat.interval.ms",
        ),
        (
            "[broker]\ngroup.consumer = {min.session.timeout.ms = 1, session.timeout.ms = 5000}",
            "broker.group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
        (
            "[broker]\ngroup.consumer.session.timeout.ms = 60001",
            "broker.group.consumer.session.timeout.ms must be less than or equal to "
            "group.consumer.max.session.timeout.ms",
        ),
        (
            "[broker]\ngroup.consumer.assignors = ''",
            "broker.group.consumer.assignors: Invalid value [] for configuration group.consumer.assignors",
        ),
        (
            "[broker]\nlistener.name.a.max.conections = 1",
            "there is no setting 'listener.name.a.max.conections' in [broker]; a listener has listener.name.NAME. "
            "before max.connection.creation.rate and max.connections",
        ),
        (
            "[broker]\nlistener.name.a.max.connections = 'x'",
            "broker.listener.name.a.max.connections: 'x' is not allowed; want a whole number",
        ),
        (
            "[broker]\nlistener.name.a.max.connections = -1",
            "broker.listener.name.a.max.connections: Invalid value -1 for configuration "
            "listener.name.a.max.connections: Value must be at least 0",
        ),
        ("[broker]\nxyz = 1", "there is no setting 'xyz' in [broker]; see: korvet config list"),
        ("[serve\n", "not TOML: "),
        ("[listener]\nlisten = ':1'", "listener: {'listen': ':1'} is not allowed; want [[listener]] tables"),
        ("[[listener]]\nnamespace = 'a'", "listener #1: 'listen' is missing"),
        (
            "[[listener]]\nlisten = ':1'\n[[listener]]\nlisten = ':2'\nproxyprotocol = true",
            "there is no setting 'proxyprotocol' in [listener #2]; did you mean 'proxy-protocol'? allowed: advertised,",
        ),
        ("[[listener]]\nlisten = 'here'", "listener #1.listen: 'here' is not allowed; want HOST:PORT"),
        (
            "[[listener]]\nlisten = ':1'\nproxy-protocol = 1",
            "listener #1.proxy-protocol: 1 is not allowed; want true or",
        ),
        (
            "[serve]\nnamespace = 'a'\n[[listener]]\nlisten = ':1'",
            "serve.namespace: give it in each [[listener]] table of the file instead",
        ),
    ],
)
def test_error_names_the_allowed_values(read: Read, tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(f"{tmp_path / 'korvet.toml'}: {sentence}")


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config file .*nowhere\.toml: No such file or directory"):
        read_config(tmp_path / "nowhere.toml")


CHOSEN = "security = 'sasl_plaintext'\nsasl = ['SCRAM-SHA-512']\nnamespace-from = 'principal'"
BY_NAME = (
    "security = 'tls'\ntls-cert = 'cert'\ntls-key = 'key'\nadvertised = 'b{node}-{namespace}.kafka.example:9093'\n"
    "namespace-from = 'sni'"
)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ('redis = "http://x"', "serve.redis: Redis URL 'http://x': the scheme is one of"),
        ('listen = "localhost:99999"', "serve.listen: 'localhost:99999' is not HOST:PORT"),
        ('[[listener]]\nlisten = "localhost:99999"', "listener #1.listen: 'localhost:99999' is not HOST:PORT"),
        ('[[listener]]\nlisten = ":1"\n[[listener]]\nlisten = ":1"\nnamespace = "b"', "two listeners on 0.0.0.0:1"),
        (
            '[[listener]]\nlisten = ":1"\n[[listener]]\nlisten = ":2"',
            "two listeners of namespace 'default' with the name 'default' and without an advertised address",
        ),
        (
            '[[listener]]\nlisten = ":1"\nname = "In"\n[broker]\nlistener.name.out.max.connections = 5\n'
            "listener.name.in.max.connection.creation.rate = 5",
            "listener.name.out.max.connections: no listener has this name; there are: In",
        ),
        ("proxy-protocol-from = ['10.0.0.2']", "listener 'default': proxy-protocol-from needs proxy-protocol"),
        (
            "proxy-protocol = true\nproxy-protocol-from = ['10.0.0.0/8', '10.0.0.1/8']",
            "proxy-protocol-from: 10.0.0.1/8 has host bits set",
        ),
        (BY_NAME, "listener 'default': namespace-from 'sni' without sasl would open every tenant"),
        (
            f"{BY_NAME}\ntls-client-ca = 'ca'\ntls-client-auth = 'required'",
            "listener 'default': namespace-from 'sni' without sasl would open every tenant",
        ),
        ('tenant-redis-passwords = "there"', "tenant-redis-passwords: no listener lets clients choose a tenant"),
        (
            f"{CHOSEN}\ntenant-redis-passwords = 'there'",
            "tenant-redis-passwords: the embedded server has no such users",
        ),
        (
            f"{CHOSEN}\nredis = 'redis://127.0.0.1'\ntenant-redis-passwords = 'there'",
            "tenant-redis-passwords: {directory}/there is no directory",
        ),
    ],
)
def test_check_finds_the_errors_of_serve(
    setting: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "korvet.toml"
    path.write_text(f"[serve]\n{setting}\n")
    assert run(["config", "check", str(path)]) == 2
    reason = reason.replace("{directory}", str(tmp_path))
    assert capsys.readouterr().err.startswith(f"korvet: {path}: {reason}")


def test_check_names_every_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "korvet.toml"
    path.write_text(
        """
        [serv]
        [serve]
        workers = 0
        worker = 1
        wrker = 2
        namespace = "a"
        [[listener]]
        listen = "here"
        [broker]
        num.partitions = -1
        num.partitons = 3
        log.retention.ms = "soon"
        delete.topic.enable = false
        [pipeline]
        lak = "x"
        """
    )
    assert run(["config", "check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"korvet: {path}: ") for line in lines)
    assert [line.removeprefix(f"korvet: {path}: ").split(";")[0] for line in lines] == [
        "there is no table [serv]",
        "broker.delete.topic.enable: cannot be set",
        "there is no setting 'num.partitons' in [broker]",
        "broker.log.retention.ms: 'soon' is not allowed",
        "listener #1.listen: 'here' is not allowed",
        "there is no setting 'lak' in [pipeline]",
        "there is no setting 'worker' in [serve]",
        "there is no setting 'wrker' in [serve]",
        "serve.workers: 0 is not allowed",
        "broker.num.partitions: Invalid value -1 for configuration num.partitions: Value must be at least 1",
        "serve.namespace: give it in each [[listener]] table of the file instead",
    ]
    assert run(["serve", "--config", str(path)]) == 2
    first = capsys.readouterr().err
    assert first.count("\n") == 1
    assert first.endswith(f"(and 10 more: korvet config check {path})\n")


def test_check_names_every_error_of_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "korvet.toml"
    path.write_text(
        """
        [serve]
        redis = "http://x"
        [[listener]]
        listen = "a:99999"
        [[listener]]
        listen = ":1"
        advertised = "b:3-1"
        """
    )
    assert run(["config", "check", str(path)]) == 2
    assert [line.removeprefix(f"korvet: {path}: ")[:40] for line in capsys.readouterr().err.splitlines()] == [
        "serve.redis: Redis URL 'http://x': the s",
        "listener #1.listen: 'a:99999' is not HOS",
        "listener #2.advertised: 'b:3-1' is no ra",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[serve]\nlisteners = 'PLAINTEXT://:9092'",
        "[serve]\nlistner = ':9092'",
        "[serve]\nadvertised-listeners = 'a:1'",
        "[serve]\nport = 9092",
        "[broker]\nlisteners = 'PLAINTEXT://:9092'",
        "[broker]\nadvertised.listeners = 'PLAINTEXT://a:9092'",
        "[broker]\nadvertised.host.name = 'a'",
        "[[listeners]]\nlisten = ':9092'",
        "[listner]\nlisten = ':9092'",
    ],
)
def test_listener_setting_in_serve_points_to_the_listener_table(read: Read, text: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no (setting|table) .*each in a table \[\[listener\]\]"):
        read(text)


RIGHTS = '"authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"\n'
LOGIN = '[[listener]]\nname = "in"\nsecurity = "sasl_plaintext"\nsasl = ["SCRAM-SHA-512"]\nlisten = "127.0.0.1:1"\n'
PLAIN = '[[listener]]\nlisten = "127.0.0.1:2"\nadvertised = "host:2"\nname = "out"\n'
UNSEEN = "listener in has logins without TLS"
NOBODY = "super.users names nobody: every client is refused until rules are in Redis"
NAMELESS = "no listener tells clients apart: to the rules each of them is User:ANONYMOUS"


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("", []),
        ('[broker]\n"super.users" = "User:a"\n', []),
        (f"[broker]\n{RIGHTS}", [NOBODY, NAMELESS]),
        (f'[broker]\n{RIGHTS}"allow.everyone.if.no.acl.found" = true\n', [NAMELESS]),
        (LOGIN, [UNSEEN]),
        (f'{LOGIN}[broker]\n{RIGHTS}"super.users" = "User:a"\n', [UNSEEN]),
        (f'{LOGIN}[broker]\n{RIGHTS}"super.users" = " ; "\n', [UNSEEN, NOBODY]),
        (
            f'{LOGIN}{PLAIN}[broker]\n{RIGHTS}"super.users" = "User:a;User:ANONYMOUS"\n',
            [UNSEEN, "listener out makes each of its clients a super user, because super.users has User:ANONYMOUS"],
        ),
    ],
)
def test_check_notes_what_locks_out_or_lets_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, notes: list[str]
) -> None:
    path = tmp_path / "korvet.toml"
    path.write_text(text)
    assert run(["config", "check", str(path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(notes)
    for line, note in zip(lines, notes, strict=True):
        assert line.startswith(f"{path}: note: ") and note in line


def test_a_setting_of_blanks_is_none(read: Read) -> None:
    """A claim of blanks would let every token into every tenant, and an authorizer of blanks nobody in."""
    names = ("authorizer.class.name", "korvet.sasl.oauthbearer.namespace.claim.name", "super.users")
    found = read("[broker]\n" + "".join(f'"{name}" = " \\t "\n' for name in names))
    assert found.broker == dict.fromkeys(names, "")
