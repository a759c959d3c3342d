"""Slots that move under load: producers and groups go on, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from korvet.redis.topology import slot_of
from korvet.store.keys import Namespace
from tests.api.data import connected, fetch, produce_request, records, wanted
from tests.api.raw import created
from tests.cluster.load import IN_TIER, SETTINGS, Load, running_load, until
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import KINDS, Kind, Server
from tests.support.topologies import Cluster, running_cluster

OPEN_S = 0.25
"""The seconds for which a slot stays open with all its keys on one side."""
REFUSED_WITHIN_S = 60.0


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def cluster(kind: Kind) -> Iterator[Cluster]:
    with running_cluster(kind) as running:
        yield running


@pytest.fixture(scope="module")
def server(kind: Kind, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KorvetServer]:
    # One kind of server is enough to show it with a tier, too.
    tier = str(tmp_path_factory.mktemp("tier")) if kind == "valkey" else None
    with running_broker(redis_url=cluster.url, broker=SETTINGS, tier=tier) as running:
        yield running


def load_of(server: KorvetServer, name: str) -> AbstractContextManager[Load]:
    """A load on a topic that is in the tier if there is one."""
    return running_load(server.bootstrap, name, configs=IN_TIER if server.tier else {})


def hot_slots(load: Load) -> list[int]:
    """The slots of a partition, of the group and of the catalog."""
    namespace = Namespace()
    return [
        slot_of(namespace.partition(load.topic, 0).log),
        slot_of(namespace.group(load.group).group),
        slot_of(namespace.catalog.meta),
    ]


def refusals(cluster: Cluster) -> set[str]:
    """The kinds of errors that the nodes have answered with."""
    stats = [cluster.ask(node, "INFO", "errorstats") for node in cluster.nodes]
    return {name.removeprefix("errorstat_") for told in stats if isinstance(told, dict) for name in told}


def owner_and_next(cluster: Cluster, slot: int) -> tuple[Server, Server]:
    owner = cluster.owner(slot)
    return owner, cluster.nodes[(cluster.nodes.index(owner) + 1) % len(cluster.nodes)]


def test_load_goes_on_while_slots_move_to_and_fro(cluster: Cluster, server: KorvetServer) -> None:
    with load_of(server, "legacy") as load:
        _, of_group, _ = slots = hot_slots(load)
        for slot in slots * 2:
            source, target = owner_and_next(cluster, slot)
            with cluster.open_slot(slot, source, target):
                time.sleep(OPEN_S)
                cluster.move_keys(slot, source, target)
                time.sleep(OPEN_S)
                if slot == of_group:
                    # The group's calls need a key that was never made.
                    until(lambda: {"ASK", "TRYAGAIN"} <= refusals(cluster), "group's calls sent on", REFUSED_WITHIN_S)
                cluster.move_keys(slot, source, target)
            load.go_on()
        load.settle()
    assert {"ASK", "MOVED", "TRYAGAIN"} <= refusals(cluster)
    assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", ["valkey"], indirect=True)
def test_load_goes_on_while_slots_move_at_once(cluster: Cluster, server: KorvetServer) -> None:
    with load_of(server, "atomic") as load:
        for slot in hot_slots(load) * 2:
            cluster.migrate_at_once(slot, *owner_and_next(cluster, slot))
            load.go_on()
        load.settle()
    assert "Traceback" not in server.log


def test_load_goes_on_at_a_new_node_without_the_library(cluster: Cluster, server: KorvetServer) -> None:
    with cluster.joined() as fresh, load_of(server, "fresh") as load:
        slots = hot_slots(load)
        owners = {slot: cluster.owner(slot) for slot in slots}
        for slot in slots:
            cluster.move_slot(slot, owners[slot], fresh)
        load.go_on()
        for slot in slots:
            cluster.move_slot(slot, fresh, owners[slot])
        load.go_on()
        load.settle()
    assert "Traceback" not in server.log


def test_large_batch_of_a_client_that_left_is_sent_again_in_an_open_slot(
    cluster: Cluster, server: KorvetServer
) -> None:
    """An open slot takes no temporary key. The client waits for no answer."""
    topic = created(server.port, partitions=4)
    for index in range(4):
        slot = slot_of(Namespace().partition(topic, index).log)
        source, target = owner_and_next(cluster, slot)
        with cluster.open_slot(slot, source, target):
            with connected(server.port) as connection:
                connection.send("produce", 12, **produce_request(topic, records(size=20_000), partition=index, acks=0))
            read = partial(fetch, server.port, topic, wanted(0, index))
            until(lambda: read()[0]["high_watermark"] == 3, f"partition {index} has the batch", 20.0)  # noqa: B023
            cluster.move_keys(slot, source, target)
