"""The Redis user of one tenant: Redis refuses it all else, also inside functions, and a front-end works as it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from korvet.cli import run
from tests.api.data import produced, records
from tests.api.raw import ask, created
from tests.support.broker import running_broker
from tests.support.redis import Server

PASSWORD = "right=,ä"
OWN = "korvet:{acme:orders:0}:log"
FOREIGN = (
    "korvet:{globex:@security}:quotas",
    "korvet:{acme2:@security}:quotas",
    "korvet:{@tenants}:tenants",
    "korvet:{:@security}:quotas",
    "orders",
)
PROBE = """#!lua name=probe
redis.register_function('probe_read', function(_, args) return redis.call('HGET', args[1], 'x') end)
redis.register_function('probe_write', function(_, args) return redis.call('HSET', args[1], 'x', 1) end)
redis.register_function('probe_publish', function(_, args) return redis.call('SPUBLISH', args[1], 'x') end)
"""


@pytest.fixture
def server(redis_server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Server]:
    """A server with the library, and with the user that the command tells."""
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    assert run(["functions", "load", "--redis", redis_server.url]) == 0
    capfd.readouterr()
    assert run(["tenants", "redis-user", "acme", "--password-file", str(secret)]) == 0
    line = capfd.readouterr().out
    assert PASSWORD not in line
    with redis_server.client() as client:
        client.flushall()
        assert client.execute_command(*line.split()) in (b"OK", True)
        yield redis_server
        client.acl_deluser("korvet-acme")


def test_redis_refuses_all_but_the_keys_of_the_tenant_also_inside_functions(server: Server) -> None:
    with server.client() as admin, server.client(username="korvet-acme", password=PASSWORD) as user:
        admin.function_load(PROBE, replace=True)
        try:
            assert user.fcall("probe_write", 0, OWN) == 1
            assert user.fcall("probe_read", 0, OWN) == b"1"
            assert user.fcall("probe_publish", 0, OWN) == 0
            for key in FOREIGN:
                admin.hset(key, "x", "theirs")
                for function in ("probe_read", "probe_write", "probe_publish"):
                    with pytest.raises(ResponseError, match=r"NOPERM|can't|ermission"):
                        user.fcall(function, 0, key)
                for command in (
                    ("HGETALL", key),
                    ("FCALL_RO", "korvet_quotas_read", 1, key, -1),
                    ("SPUBLISH", key, ""),
                ):
                    with pytest.raises(NoPermissionError):
                        user.execute_command(*command)
                assert admin.hgetall(key) == {b"x": b"theirs"}
        finally:
            admin.function_delete("probe")


@pytest.mark.parametrize(
    "command",
    ["FUNCTION LOAD REPLACE x", "FUNCTION FLUSH", "KEYS *", "SCAN 0", "FLUSHALL", "ACL LIST", "CONFIG GET *",
     "EVAL return(1) 0", "MONITOR", "CLIENT LIST", "SHUTDOWN", "PUBLISH korvet:{globex:x 1"],
)  # fmt: skip
def test_user_may_do_nothing_to_the_server(server: Server, command: str) -> None:
    with server.client(username="korvet-acme", password=PASSWORD) as user, pytest.raises(NoPermissionError):
        user.execute_command(*command.split())


def test_front_end_serves_the_tenant_as_this_user(server: Server) -> None:
    url = server.url.replace("unix://", "unix://korvet-acme:right%3D%2C%C3%A4@")
    with running_broker(redis_url=url, namespace="acme", broker={"max.connections.per.ip": "100"}) as broker:
        topic = created(broker.port)
        produced(broker.port, topic, records(1, 100), records(1, 20_000))
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = ask(broker.port, "offset_commit", 8, group_id="g", **values)
        assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"
        assert "NOPERM" not in broker.log and "warning" not in broker.log, broker.log
        with server.client() as client:
            assert all(key.startswith(b"korvet:{acme:") for key in client.scan_iter())


@pytest.mark.parametrize("name", ["*", "acme*", "a?", "A", "-a", "a-", "a" * 41, "", "a}b", "@tenants"])
def test_names_that_are_no_tenants_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Attack: a pattern in place of a name."""
    assert run(["tenants", "redis-user", "--password-file", "/dev/null", "--", name]) == 1
    assert "a name has at most 40" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["acme", "--front-ends"], []])
def test_either_a_tenant_or_front_ends_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tenants", "redis-user", *words, "--password-file", "/dev/null"]) == 2
    assert "either NAME or --front-ends" in capsys.readouterr().err


def test_doctor_knows_the_user_of_front_ends(
    redis_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    assert run(["tenants", "redis-user", "--front-ends", "--password-file", str(secret)]) == 0
    line = capsys.readouterr().out
    with redis_server.client() as client:
        client.execute_command(*line.split())
        try:
            run(["doctor", "--json", "--redis", redis_server.url.replace("unix://", "unix://korvet:secret@")])
            found = {item["subject"]: item for item in json.loads(capsys.readouterr().out)}
            assert found["rights"]["verdict"] == "ok"
            assert "tenant-redis-passwords" in found["rights"]["text"]
            client.execute_command("ACL", "SETUSER", "korvet", "-xadd")
            run(["doctor", "--json", "--redis", redis_server.url.replace("unix://", "unix://korvet:secret@")])
            found = {item["subject"]: item for item in json.loads(capsys.readouterr().out)}
            assert found["rights"]["verdict"] == "mend"
        finally:
            client.acl_deluser("korvet")
