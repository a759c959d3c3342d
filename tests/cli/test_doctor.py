"""``korvet doctor`` and ``korvet functions`` on real servers."""

import json
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
import redis
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from korvet.cli import run
from korvet.cli.redis.rights import missing_rights
from korvet.errors import KorvetError
from korvet.store.keys import Namespace
from korvet.store.library import library_version, open_store
from korvet.store.rights import commands, missing, require, rule_of
from tests.support.broker import BrokerFailed, running_broker
from tests.support.redis import Server, running_server
from tests.support.tools import find_tool
from tests.support.topologies import running_cluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = Namespace("doctor")
WORDS = re.compile(r"""[({,]\s*['"]([A-Z]{3,}(?:_RO)?)['"](?:, ['"]([A-Z]+)['"])?""")
WRITTEN_AS_BYTES = {"+cluster|slots", "+fcall", "+fcall_ro", "+set"}
NOT_TO_BE_ALLOWED = {"+auth", "+config", "+keys", "+select", "+readonly", "+waitaof"}
"""Words that are no right to test: any user may AUTH, CONFIG may be refused, SELECT is for URLs with a database,
READONLY is an error's code, KEYS is a word of headers, WAITAOF is for korvet.acks.fsync and not in Redis 7.0."""


@pytest.fixture
def server(redis_server: Server) -> Iterator[Server]:
    """An empty server without functions and users."""
    with redis_server.client() as client:
        client.flushall()
        client.function_flush()
        client.config_set("maxmemory-policy", "noeviction")
    yield redis_server
    with redis_server.client() as client:
        client.acl_deluser("tenant")
        client.config_set("maxmemory-policy", "noeviction")


def findings(server: Server, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    """The doctor's findings, by subject: verdict and text."""
    run(["doctor", "--redis", server.url, "--json", *arguments])
    return {item["subject"]: (item["verdict"], item["text"]) for item in json.loads(capsys.readouterr().out)}


def tenant(server: Server, *rules: str) -> redis.Redis:
    """A client of a user that may do everything on korvet's keys and channels, changed by ``rules``."""
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "tenant", "reset", "on", ">secret", "+@all", "~korvet:*", "&korvet:*", *rules
        )
    return server.client(username="tenant", password="secret")


def rules(*, is_cluster: bool = True) -> set[str]:
    """The ACL rules of all commands and channels that doctor tries."""
    return {rule_of(command) for command in commands("k", is_cluster=is_cluster)}


def test_rights_are_those_of_every_command_in_the_sources_and_no_more(server: Server) -> None:
    with server.client() as client:
        existing = {name.decode().upper() for name in client.command_list()}
    used = set()
    for path in (
        *(ROOT / "lua").glob("*/*.lua"),
        *(ROOT / "korvet" / "redis").rglob("*.py"),
        *(ROOT / "korvet" / "store").rglob("*.py"),
    ):
        if path.name not in ("rights.py", "scoped.py"):
            found = WORDS.finditer(path.read_text())
            used |= {rule_of((match[1], match[2] or "")) for match in found if match[1] in existing}
    assert (used | WRITTEN_AS_BYTES) - NOT_TO_BE_ALLOWED == rules()


def test_documented_rights_are_those_of_the_commands() -> None:
    assert {word for line in documented() for word in line.split() if word.startswith("+")} == rules()


def documented() -> list[str]:
    """The rules of docs/deployment.md: for one server, and the further rules for a cluster's nodes."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    return [
        " ".join(rule.split())
        for rule in re.findall(r"^    ACL SETUSER korvet (.*(?:\n      .*)*)", page, re.MULTILINE)
    ]


def documented_user(server: Server, *changes: str) -> str:
    """Make the documented user, changed; the URL with its login."""
    with server.client() as client:
        rule = documented()[0].replace("SECRET", "secret").split()
        client.execute_command("ACL", "SETUSER", "korvet", "reset", *rule, *changes)
    return server.url.replace("unix://", "unix://korvet:secret@")


def test_documented_rule_may_be_pasted_as_it_stands(bare: Server) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    (rule,) = re.findall(r"^    tr .*?^    END$", page, re.MULTILINE | re.DOTALL)
    path = bare.url.removeprefix("unix://")
    text = textwrap.dedent(rule).replace("redis-cli", f"{find_tool('redis-cli')} -s {path}")
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["OK"]
    with redis.Redis.from_url(bare.url, username="korvet", password="SECRET") as client:
        assert missing_rights(client, NAMESPACE, is_cluster=False) == []


def test_rights_are_enough_and_leave_nothing_behind(server: Server) -> None:
    with tenant(server) as client:
        assert missing_rights(client, NAMESPACE, is_cluster=False) == []
    with server.client() as client:
        assert client.dbsize() == 0


@pytest.fixture
def bare(server: Server) -> Iterator[Server]:
    yield server
    with server.client() as client:
        client.acl_deluser("korvet")


async def lacking(url: str) -> str:
    """A front-end's message about rights when it starts; empty if it has them all."""
    try:
        async with open_store(url, connect_timeout_s=5) as store:
            await require(store, NAMESPACE)
    except KorvetError as error:
        return str(error)
    return ""


@pytest.mark.anyio
async def test_each_documented_right_is_needed_and_named_by_doctor_and_start(bare: Server) -> None:
    assert await lacking(documented_user(bare)) == ""
    for rule in sorted(rules(is_cluster=False)):
        command = rule.removeprefix("+")
        url = documented_user(bare, f"-{command}")
        told_at_start = await lacking(url)
        assert f" {rule}:" in told_at_start or f"'{command}'" in told_at_start, rule
        with redis.Redis.from_url(bare.url, username="korvet", password="secret") as client:
            assert [one.rule for one in missing_rights(client, NAMESPACE, is_cluster=False)] == [rule]
    with bare.client() as client:
        # A user that may not remove a key leaves it to its expiry.
        assert all(0 < client.pttl(key) <= 60_000 for key in client.scan_iter())
        assert client.function_list() == []


@pytest.mark.anyio
@pytest.mark.parametrize(("change", "right"), [("resetchannels", "&korvet:*"), ("resetkeys", "~korvet:*")])
async def test_missing_pattern_is_named_before_anything_is_written(bare: Server, change: str, right: str) -> None:
    url = documented_user(bare, change)
    assert f"lacks {right}: " in await lacking(url)
    with redis.Redis.from_url(bare.url, username="korvet", password="secret") as client:
        assert {one.rule for one in missing_rights(client, NAMESPACE, is_cluster=False)} == {right}
    with bare.client() as client:
        assert client.dbsize() == 0


@pytest.mark.anyio
async def test_all_missing_rights_are_named_at_once(bare: Server) -> None:
    assert "lacks +rename &korvet:*: " in await lacking(documented_user(bare, "-rename", "resetchannels"))


@pytest.mark.anyio
async def test_server_without_sharded_channels_lacks_no_right(bare: Server) -> None:
    assert missing(("SPUBLISH", "k", ""), "ERR unknown command 'SPUBLISH', with args") == (
        "", "the server has no SPUBLISH k: ERR unknown command 'SPUBLISH', with args",
    )  # fmt: skip


def test_broker_works_with_the_documented_rights_alone(bare: Server) -> None:
    url = documented_user(bare)
    with bare.client() as client:
        client.acl_log_reset()
    with running_broker(redis_url=url, broker={"group.initial.rebalance.delay.ms": "0"}) as broker:
        do_everything(broker.bootstrap)
        assert "NOPERM" not in broker.log and "permissions" not in broker.log
    with bare.client() as client:
        assert not [entry for entry in client.acl_log() if entry["username"] == "korvet"]


def test_broker_works_on_a_cluster_with_the_documented_rights_alone() -> None:
    with running_cluster("redis") as cluster:
        for node in cluster.nodes:
            for rule in documented():
                cluster.ask(node, "ACL", "SETUSER", "korvet", *rule.replace("SECRET", "secret").split())
        url = cluster.url.replace("://", "://korvet:secret@")
        with running_broker(redis_url=url, broker={"group.initial.rebalance.delay.ms": "0"}) as broker:
            do_everything(broker.bootstrap)
            assert "NOPERM" not in broker.log
        cluster.ask(cluster.nodes[1], "ACL", "SETUSER", "korvet", "-hscan", "resetchannels")
        with pytest.raises(BrokerFailed, match=r"lacks \+hscan &korvet:\*: "), running_broker(redis_url=url):
            pass


def do_everything(bootstrap: str) -> None:
    """Topics, records of both kinds, a group, commits, trimming, configs, deletions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result(30)
    admin.create_partitions([NewPartitions("t", 3)])["t"].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(20):
        producer.produce("t", b"x" * (20_000 if number % 2 else 10), partition=0)
        assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["t"])
    read, deadline = 0, time.monotonic() + 60
    while read < 20 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        read += message is not None and message.error() is None
    assert read == 20
    consumer.commit(asynchronous=False)
    partition = confluent_kafka.TopicPartition("t", 0)
    assert consumer.committed([partition], 30)[0].offset == 20
    consumer.offsets_for_times([confluent_kafka.TopicPartition("t", 0, 0)], 30)
    consumer.close()
    assert admin.list_consumer_groups().result(30).errors == []
    admin.describe_consumer_groups(["g"])["g"].result(30)
    admin.delete_records([confluent_kafka.TopicPartition("t", 0, 15)])[partition].result(30)
    admin.delete_consumer_groups(["g"])["g"].result(30)
    admin.delete_topics(["t"])["t"].result(30)


def test_server_without_persistence_must_be_mended(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--redis", server.url]) == 1
    assert "mend  durability" in capsys.readouterr().out


def test_losses_of_a_crash_are_reported_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("valkey", options={"appendonly": "yes", "appendfsync": "everysec"}) as server:
        assert run(["doctor", "--redis", server.url]) == 0
        capsys.readouterr()
        assert "may lose about the last two seconds" in findings(server, capsys)["durability"][1]
        with server.client() as client:
            client.config_set("appendfsync", "always")
        assert findings(server, capsys)["durability"] == (
            "ok",
            "append-only file, synced before each answer: a crash loses nothing",
        )
        with server.client() as client:
            client.config_set("appendonly", "no")
            client.config_set("save", "60 1000")
        verdict, text = findings(server, capsys)["durability"]
        assert (verdict, "save 60 1000" in text) == ("mend", True)


def test_settings_that_break_acknowledgments_by_the_disk_must_be_mended(capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("valkey", options={"appendonly": "yes"}) as server, server.client() as client:
        assert "acks.fsync" not in findings(server, capsys)
        client.hset(Namespace().catalog.configs, "korvet.acks.fsync", " TRUE")
        for setting, value, verdict, text in (
            ("appendfsync", "everysec", "ok", "flush of the next second"),
            ("no-appendfsync-on-rewrite", "yes", "mend", "set no-appendfsync-on-rewrite no"),
            ("no-appendfsync-on-rewrite", "no", "ok", "all topics"),
            ("appendfsync", "always", "ok", "each answer waits for the disk"),
            ("appendfsync", "no", "mend", "set it to everysec or always"),
            ("appendonly", "no", "mend", "set appendonly yes"),
        ):
            client.config_set(setting, value)
            found = findings(server, capsys)["acks.fsync"]
            assert (found[0], text in found[1]) == (verdict, True), found


def test_server_without_a_disk_must_be_mended_if_a_topic_needs_one(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {"korvet.acks.fsync": "true", "min.insync.replicas": "1"}
    topic = json.dumps({"id": "a" * 32, "partitions": 1, "configs": configs})
    with server.client() as client:
        client.hset(Namespace().catalog.topics, "orders", topic)
    verdict, text = findings(server, capsys)["acks.fsync"]
    reason = "there is no append-only file" if server.kind == "valkey" else "WAITAOF fails"
    assert (verdict, reason in text, "of topic orders" in text) == ("mend", True, True)


def test_eviction_must_be_mended(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    verdict, text = findings(server, capsys)["eviction"]
    assert (verdict, "noeviction" in text) == ("mend", True)


def test_limits_that_cut_front_ends_off_are_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(server, capsys)["limits"] == ("ok", "no limit of the server cuts off front-ends")
    for name, value, verdict, text in (
        ("proto-max-bulk-len", "1mb", "mend", "proto-max-bulk-len is 1024 KiB"),
        ("client-query-buffer-limit", "8mb", "note", "client-query-buffer-limit is 8192 KiB"),
        ("maxmemory-clients", "100mb", "note", "maxmemory-clients is 104857600"),
        ("client-output-buffer-limit", "normal 1mb 0 0", "note", "client-output-buffer-limit normal is 1048576 0 0"),
    ):
        with server.client() as client:
            former = client.config_get(name)
            client.config_set(name, value)
            try:
                found = findings(server, capsys)["limits"]
            finally:
                client.config_set(name, *former.values())
        assert found[0] == verdict and found[1].startswith(text)


def test_library_is_checked_loaded_and_current(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(server, capsys)["library"][0] == "note"
    assert run(["functions", "check", "--redis", server.url]) == 1
    assert run(["functions", "load", "--redis", server.url]) == 0
    assert f"loaded library {library_version()} " in capsys.readouterr().out
    assert run(["functions", "load", "--redis", server.url]) == 0
    assert run(["functions", "check", "--redis", server.url]) == 0
    capsys.readouterr()
    assert findings(server, capsys)["library"] == ("ok", f"version {library_version()} is loaded")


def test_newer_library_is_replaced_only_on_request(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    newer = (
        "#!lua name=korvet\nlocal korvet = { VERSION = '99.0.0' }\n"
        "redis.register_function('korvet_version', function() return korvet.VERSION end)\n"
    )
    with server.client() as client:
        client.function_load(newer)
    assert findings(server, capsys)["library"][0] == "mend"
    assert run(["functions", "load", "--redis", server.url]) == 1
    assert "version 99.0.0" in capsys.readouterr().err
    assert run(["functions", "load", "--redis", server.url, "--downgrade"]) == 0
    assert run(["functions", "check", "--redis", server.url]) == 0


def test_line_of_an_error_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["functions", "where", "user_function:1: oh"]) == 0
    assert capsys.readouterr().out == "lua/0-core/0-library.lua:1\n"
    assert run(["functions", "where", "9999999"]) == 1


def test_data_dir_without_a_running_server_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"korvet: no embedded server runs in {tmp_path}; start it with")


def test_primaries_of_a_cluster_are_found_and_examined(capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("valkey", tcp=True, options={"cluster-enabled": "yes", "appendonly": "yes"}) as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                time.sleep(0.01)
            client.config_set("requirepass", "p@ss")
        url = f"redis+cluster://:p%40ss@127.0.0.1:{server.port}"
        assert run(["functions", "load", "--redis", url]) == 0
        assert f" at 127.0.0.1:{server.port} " in capsys.readouterr().out
        assert run(["doctor", "--redis", url]) == 0
        assert "cluster     a cluster node; the cluster's state is ok" in capsys.readouterr().out
        assert run(["functions", "check", "--redis", f"redis+cluster://127.0.0.1:{server.port}"]) == 1
        assert capsys.readouterr().err.startswith("korvet: NOAUTH ")


def test_server_that_refuses_writes_must_be_mended_and_can_be_examined(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that cannot write to its disk refuses a PING, too."""
    with running_server("redis", options={"save": "3600 1"}) as server:
        assert findings(server, capsys)["writes"] == ("ok", "taken")
        (server.directory / "dump.rdb").mkdir()
        with server.client() as client:
            client.bgsave()
            while client.info("persistence")["rdb_bgsave_in_progress"]:
                time.sleep(0.01)
        verdict, text = findings(server, capsys)["writes"]
        assert verdict == "mend"
        assert "cannot write to its disk" in text


def test_node_of_a_cluster_that_is_named_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with running_cluster(size=2) as cluster:
        for node in cluster.nodes:
            run(["doctor", "--redis", node.tcp_url, "--json"])
            told = {item["subject"]: item for item in json.loads(capsys.readouterr().out)}["cluster"]
            assert told["verdict"] == "mend"
            assert f"redis+cluster://127.0.0.1:{node.port}" in told["text"]
        wanted = rf"name it redis\+cluster://127\.0\.0\.1:{node.port}"
        for command in ("check", "load"):
            assert run(["functions", command, "--redis", node.tcp_url]) == 1
            assert re.search(wanted, capsys.readouterr().err)
        with pytest.raises(BrokerFailed, match=wanted), running_broker(redis_url=node.tcp_url):
            pass


def test_cluster_of_one_node_may_be_named_as_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    with running_cluster(size=1) as cluster:
        (node,) = cluster.nodes
        with running_broker(redis_url=node.tcp_url) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            for future in admin.create_topics([NewTopic("whole", 3)]).values():
                future.result(20)
        run(["doctor", "--redis", node.tcp_url, "--json"])
        told = {item["subject"]: item for item in json.loads(capsys.readouterr().out)}["cluster"]
        assert told["verdict"] == "ok"
        assert run(["functions", "load", "--redis", node.tcp_url]) == 0


def test_doctor_counts_passwords_and_rules(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    verdict, text = findings(server, capsys)["security"]
    assert (verdict, text) == (
        "ok",
        "no passwords of users, no access rules; a listener with SCRAM or PLAIN lets nobody in before: korvet users "
        "add",
    )
    assert run(["functions", "load", "--redis", server.url]) == 0
    password = tmp_path / "password"
    password.write_text("right")
    assert run(["users", "add", "a", "--redis", server.url, "--password-file", str(password)]) == 0
    assert run([
        "acls", "add", "--redis", server.url, "--allow-principal", "User:a", "--topic", "t", "--operation", "Read",
        "--operation", "Write",
    ]) == 0  # fmt: skip
    capsys.readouterr()
    assert findings(server, capsys)["security"] == ("ok", "1 password of users, 2 access rules")
