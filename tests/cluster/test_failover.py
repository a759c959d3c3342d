"""Another server takes over under load: a replica in a cluster, and the primary that Sentinel names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from korvet.api.list_offsets import EARLIEST_LOCAL, LATEST, LATEST_TIERED
from korvet.redis.topology import slot_of
from korvet.store.keys import Namespace
from tests.cluster.load import IN_TIER, SETTINGS, running_load
from tests.kafka.test_tier import offset_at
from tests.support.broker import running_broker
from tests.support.redis import KINDS, Kind, Server
from tests.support.topologies import SLOTS, running_cluster, running_sentinel, until

SHORT_SESSION_S = 12.0


@contextmanager
def caught_up(primary: Server) -> Iterator[None]:
    """Hold the moment at which a primary has told its replica every write, until the block ends.

    A primary that fails loses acknowledged writes that its replica lacks; these tests are not about that.
    """
    with primary.client() as client:
        client.client_pause(60_000, all=False)
        until(lambda: _is_handed_on(client.info("replication")), "the replica has everything")
        yield


def _is_handed_on(info: dict[str, object]) -> bool:
    replica = info.get("slave0")
    return isinstance(replica, dict) and replica["offset"] == info["master_repl_offset"]


@pytest.mark.parametrize("kind", KINDS)
def test_load_goes_on_after_an_ordered_failover_and_after_a_kill(kind: Kind, tmp_path: Path) -> None:
    # One kind of server is enough to show it with a tier, too.
    has_tier = kind == "valkey"
    tier, configs = (str(tmp_path / "tier"), IN_TIER) if has_tier else (None, {})
    with (
        running_cluster(kind, has_replica=True) as cluster,
        running_broker(redis_url=cluster.url, broker=SETTINGS, tier=tier) as server,
        running_load(server.bootstrap, name_on_first_node(), is_patient=True, configs=configs) as load,
    ):
        if has_tier:
            until(lambda: offset_at(server, load.topic, LATEST_TIERED) > 0, "records are in the tier")
        first, replica = cluster.nodes[0], cluster.replica
        assert replica is not None
        cluster.ask(replica, "CLUSTER", "FAILOVER")
        until(lambda: cluster.is_replica(first), "the replica leads")
        load.go_on()
        with caught_up(replica):
            replica.kill()
        until(lambda: not cluster.is_replica(first), "the first one leads again")
        load.go_on()
        if has_tier:
            end = offset_at(server, load.topic, LATEST)
            until(lambda: offset_at(server, load.topic, EARLIEST_LOCAL) > end, "the tier goes on")
        load.settle(may_repeat=True)
        assert "Traceback" not in server.log


def name_on_first_node() -> str:
    """A name whose first partition and group lie on a cluster's first node."""
    namespace, slots_there = Namespace(), SLOTS // 3
    return next(
        name
        for name in map("failover{}".format, range(1000))
        if slot_of(namespace.partition(f"{name}-topic", 0).log) < slots_there
        and slot_of(namespace.group(f"{name}-group").group) < slots_there
    )


@pytest.mark.parametrize("kind", KINDS)
def test_failover_longer_than_the_session_expires_no_member(kind: Kind) -> None:
    with (
        running_sentinel(kind, down_after_s=SHORT_SESSION_S + 1) as sentinel,
        running_broker(redis_url=sentinel.url, broker=SETTINGS) as server,
        running_load(server.bootstrap, "sentinel", is_patient=True, session_s=SHORT_SESSION_S) as load,
    ):
        with caught_up(sentinel.primary), sentinel.primary.paused():
            began = time.monotonic()
            until(lambda: sentinel.primary_port() == sentinel.replica.port, "the replica is named")
            assert time.monotonic() - began > SHORT_SESSION_S
            load.go_on()
        load.settle(may_repeat=True)
        assert "Traceback" not in server.log
