"""Front-ends behind HAProxy, configured as docs/load-balancer.md says."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from korvet.store.keys import Namespace
from tests.api.raw import created, unique
from tests.oracle.messages import parse_answer, request_frame
from tests.server.load import Load, read_all
from tests.support.broker import KorvetServer
from tests.support.haproxy import HAProxy, running_haproxy
from tests.support.redis import Server, free_port

PARTITIONS = 6
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def started(valkey_server: Server) -> Iterator[tuple[HAProxy, list[KorvetServer]]]:
    """Three front-ends that advertise the balancer, and learn from it which client connects."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        balancer = stack.enter_context(running_haproxy(ports))
        front_ends = []
        for port in ports:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            front_end = KorvetServer(
                directory,
                redis_url=valkey_server.url,
                port=port,
                namespace="balanced",
                advertised=balancer.address,
                proxy_protocol=True,
                # A member that joins after this time makes a second generation.
                broker={"group.initial.rebalance.delay.ms": "10000"},
            )
            stack.callback(front_end.kill)
            front_ends.append(front_end.start())
        yield balancer, front_ends


@pytest.fixture
def fleet(started: tuple[HAProxy, list[KorvetServer]]) -> tuple[HAProxy, list[KorvetServer]]:
    """The balancer and its front-ends, all of them up."""
    balancer, front_ends = started
    for front_end in front_ends:
        if not front_end.is_running:
            front_end.start()
    balancer.wait_until_up()
    return started


def generation(server: KorvetServer, group: str) -> int:
    with server.redis() as client:
        found: Any = client.hget(Namespace("balanced").group(group).group, "generation")
        return int(found)


def test_death_of_a_front_end_costs_clients_only_a_reconnect(fleet: tuple[HAProxy, list[KorvetServer]]) -> None:
    balancer, front_ends = fleet
    topic, group = created(balancer.port, partitions=PARTITIONS), unique("g")
    with Load(balancer.bootstrap, topic, group, partitions=PARTITIONS, members=3) as load:
        load.wait_until_settled()
        balancer.wait_for(lambda: all(one.connections for one in balancer.backends()), "connections to all front-ends")
        before = generation(front_ends[0], group)
        for front_end in front_ends:
            front_end.kill()
            load.wait_for(20)
            front_end.start()
            balancer.wait_until_up()
            load.wait_for(20)
        assert generation(front_ends[0], group) == before
        assert [(one.assignments, one.revocations) for one in load.members] == [(1, 0)] * 3
        load.finish()
    assert load.all_errors == []
    assert read_all(balancer.bootstrap, topic, PARTITIONS) == sorted(load.acknowledged)
    assert not [line for one in front_ends for line in one.log.splitlines() if "malformed" in line]


def ask(client: socket.socket, api: str, version: int, **values: Any) -> Any:
    client.sendall(request_frame(api, version, values, 7))
    size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
    return parse_answer(api, version, client.recv(size, socket.MSG_WAITALL), 7)


def test_clients_are_shown_by_their_own_addresses(fleet: tuple[HAProxy, list[KorvetServer]]) -> None:
    balancer, _ = fleet
    for host in ("127.0.0.71", "127.0.0.72"):
        group = unique("g")
        with socket.create_connection(("127.0.0.1", balancer.port), WITHIN_S, source_address=(host, 0)) as client:
            protocols = [{"name": "range", "metadata": b""}]
            times = {"session_timeout": 30_000, "rebalance_timeout": 60_000}
            values = {"group_id": group, "member_id": "", "protocol_type": "consumer", "protocols": protocols}
            assert ask(client, "join_group", 3, **values, **times)["error_code"] == "NONE"
            (described,) = ask(client, "describe_groups", 5, groups=[group])["groups"]
            assert [one["client_host"] for one in described["members"]] == [f"/{host}"]


def test_clients_of_a_hung_front_end_go_to_the_others(fleet: tuple[HAProxy, list[KorvetServer]]) -> None:
    balancer, front_ends = fleet
    topic, group = created(balancer.port, partitions=PARTITIONS), unique("g")
    with Load(balancer.bootstrap, topic, group, partitions=PARTITIONS, members=2) as load:
        load.wait_until_settled()
        before = generation(front_ends[0], group)
        os.kill(front_ends[1].pid, signal.SIGSTOP)
        try:
            load.wait_for(20)
            balancer.wait_until_up(count=2)
        finally:
            os.kill(front_ends[1].pid, signal.SIGCONT)
        balancer.wait_until_up()
        load.wait_for(20)
        assert generation(front_ends[0], group) == before
    assert load.all_errors == []
