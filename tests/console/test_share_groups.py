"""Share groups, which an Apache Kafka beside the console has."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.share_group_heartbeat.v1 import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from korvet.cli import run
from korvet.cli.cluster import Cluster
from korvet.cli.kafka.client import Client
from tests.console.conftest import running_console
from tests.console.test_guard import asked
from tests.support.kafka import Kafka, KafkaUnavailable, running_kafka
from tests.support.tools import cannot_run

TOPIC, GROUP = "shared", "sharers"
STABLE = f">{GROUP}</a></td><td>share</td><td>Stable</td>"
ASSIGNED_WITHIN_S = 120.0


@pytest.fixture
def sharing() -> Iterator[Kafka]:
    """An Apache Kafka of its own: other tests compare with one that has no share groups.

    Its share coordinator knows no topic before the cluster's metadata move, and members get no partition until then.
    """
    try:
        with running_kafka(features=["share.version=1"], settings={"metadata.max.idle.interval.ms": "500"}) as kafka:
            yield kafka
    except KafkaUnavailable as error:
        cannot_run(str(error))


def beat(client: Client, member: str, epoch: int) -> ShareGroupHeartbeatResponse:
    """A heartbeat; with epoch 0 the member joins, and with -1 it leaves."""
    request = ShareGroupHeartbeatRequest(
        group_id=GroupId(GROUP),
        member_id=member,
        member_epoch=i32(epoch),
        subscribed_topic_names=None if epoch else (TopicName(TOPIC),),
    )
    return client.ask_coordinator(GROUP, request, ShareGroupHeartbeatResponse)


def beat_until_assigned(client: Client, members: list[str]) -> None:
    """Send heartbeats until each member has a partition."""
    epochs, until = dict.fromkeys(members, 0), time.monotonic() + ASSIGNED_WITHIN_S
    assigned: set[str] = set()
    while len(assigned) < len(members):
        assert time.monotonic() < until, epochs
        for member in members:
            answer = beat(client, member, epochs[member])
            if answer.error_code is ErrorCode.none:
                epochs[member] = int(answer.member_epoch)
            if answer.assignment is not None and answer.assignment.topic_partitions:
                assigned.add(member)
        time.sleep(0.1)


def test_share_group_has_its_kind_members_and_assignments(sharing: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    admin = AdminClient({"bootstrap.servers": sharing.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)
    members = [str(uuid.uuid4()), str(uuid.uuid4())]
    flags = ["--bootstrap-server", sharing.bootstrap]
    with running_console(*flags, "--allow-changes") as url, Cluster(bootstrap=sharing.bootstrap).client() as client:
        beat_until_assigned(client, members)
        assert STABLE in asked(url, "GET", "/groups")[1]
        status, page, _ = asked(url, "GET", f"/group?id={GROUP}")
        assert status == 200
        assert all(member in page for member in members)
        # Both share the only partition.
        assert f"{TOPIC}-0</a>" in page
        assert '<td class="long">2 members</td>' in page
        assert page.count('<td class="n">1</td>') == len(members)
        # Kafka has other requests for these, which the console does not make.
        assert "Remove</button>" not in page
        assert "Show the plan" not in page
        assert run(["groups", "describe", GROUP, *flags, "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
        assignments = {member["member_id"]: member["assignment"] for member in told["members"]}
        assert assignments == {member: [f"{TOPIC}-0"] for member in members}
        # The partition is not one member's.
        assert [partition["member_id"] for partition in told["partitions"]] == [None]
