"""``korvet doctor`` and ``korvet functions`` on real servers."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from korvet.cli import run
from korvet.cli.rights import denied_commands, tried_names
from korvet.store.functions import library_version
from korvet.store.keys import Namespace
from tests.support.redis import Server, running_server

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = Namespace("doctor")


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
    """What the doctor says, by subject: verdict and text."""
    run(["doctor", "--redis", server.url, "--json", *arguments])
    return {item["subject"]: (item["verdict"], item["text"]) for item in json.loads(capsys.readouterr().out)}


def tenant(server: Server, *rules: str) -> redis.Redis:
    """A client of a user that may do everything on korvet's keys and channels, changed by ``rules``."""
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "tenant", "reset", "on", ">secret", "+@all", "~korvet:*", "&korvet:*", *rules
        )
    return server.client(username="tenant", password="secret")


def test_every_command_of_the_library_is_tried() -> None:
    used = {
        name.upper()
        for path in sorted((ROOT / "lua").glob("*.lua"))
        for name in re.findall(r"redis\.p?call\(\s*['\"](\w+)['\"]", path.read_text())
    }
    assert used - tried_names() == set()


def test_rights_are_enough_and_leave_nothing_behind(server: Server) -> None:
    with tenant(server) as client:
        assert denied_commands(client, NAMESPACE) == []
    with server.client() as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("rule", "denied"), [("-xadd", "XADD"), ("-function|load", "FUNCTION LOAD"), ("-ssubscribe", "SSUBSCRIBE")]
)
def test_missing_command_is_named(server: Server, rule: str, denied: str) -> None:
    with tenant(server, rule) as client:
        (line,) = denied_commands(client, NAMESPACE)
    assert line.startswith(f"{denied}: ")


def test_missing_channel_right_is_named(server: Server) -> None:
    with tenant(server, "resetchannels") as client:
        denied = [line.partition(":")[0] for line in denied_commands(client, NAMESPACE)]
    assert denied == ["SPUBLISH", "SSUBSCRIBE"]


def test_server_without_persistence_is_to_mend(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--redis", server.url]) == 1
    assert "mend  durability" in capsys.readouterr().out


def test_what_a_crash_loses_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
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
        assert (verdict, "save 60 1000" in text) == ("note", True)


def test_eviction_is_to_mend(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    verdict, text = findings(server, capsys)["eviction"]
    assert (verdict, "noeviction" in text) == ("mend", True)


def test_library_is_checked_loaded_and_current(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(server, capsys)["library"][0] == "note"
    assert run(["functions", "check", "--redis", server.url]) == 1
    assert run(["functions", "load", "--redis", server.url]) == 0
    assert f"loaded library {library_version()} " in capsys.readouterr().out
    assert run(["functions", "load", "--redis", server.url]) == 0
    assert run(["functions", "check", "--redis", server.url]) == 0
    capsys.readouterr()
    assert findings(server, capsys)["library"] == ("ok", f"version {library_version()} is loaded")


def test_newer_library_is_not_replaced_unless_asked(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert capsys.readouterr().out == "lua/00_library.lua:1\n"
    assert run(["functions", "where", "9999999"]) == 1


def test_data_dir_without_a_running_server_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"korvet: no embedded server runs in {tmp_path}; start it with")


def test_primaries_of_a_cluster_are_found_and_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
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
        assert capsys.readouterr().err.startswith("korvet: no cluster node answers: ")
