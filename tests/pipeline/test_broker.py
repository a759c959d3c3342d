"""What the jobs read of offsets that other clients committed, and after an outage."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.pipeline import broker as module
from korvet.pipeline.broker import Broker, Position, close_consumer
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from tests.api.consumers import Member, share_beat
from tests.api.groups import commit
from tests.pipeline.sourcing import create
from tests.support.broker import KorvetServer


@pytest.fixture
def topic(broker: KorvetServer) -> Iterator[str]:
    name = f"noted-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2)])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)


def test_metadata_of_another_client_is_read_with_whatever_follows_it(broker: KorvetServer, topic: str) -> None:
    """The longer text comes first, so that the client's memory keeps its rest behind the shorter one."""
    longer, shorter = "ü" * 4096, "x" * 4000
    assert commit(broker.port, f"{topic}-longer", topic, 1, 2, metadata=longer) == ["NONE"] * 2
    assert commit(broker.port, f"{topic}-shorter", topic, 3, 4, metadata=shorter) == ["NONE"] * 2
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        for _ in range(50):
            assert all(found.metadata.startswith(longer) for found in admin.committed(f"{topic}-longer").values())
            told = admin.committed(f"{topic}-shorter")
            assert [found.offset for found in told.values()] == [3, 4]
            assert all(found.metadata.startswith(shorter) for found in told.values())


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_commit_to_a_group_that_another_client_joined_says_so(broker: KorvetServer, topic: str, kind: str) -> None:
    group, member = f"{topic}-{kind}", str(uuid4())
    if kind == "share":
        assert share_beat(broker.port, group, member, 0, topic)["error_code"] == "NONE"
    else:
        assert Member(broker.port, group, member).join(subscribed_topic_names=[topic])["error_code"] == "NONE"
    with (
        Broker({"bootstrap.servers": broker.bootstrap}) as admin,
        pytest.raises(PipelineError, match=rf"{topic}-0 of group {group}: other clients have joined the group"),
    ):
        admin.commit(group, {(topic, 0): Position(offset=0, leader_epoch=None)})


def test_group_requests_succeed_again_after_an_outage_of_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 2.0)
    server = KorvetServer(tmp_path).start()
    try:
        create(server, "outage")
        with Broker({"bootstrap.servers": server.bootstrap}) as admin:
            positions = {("outage", 0): Position(offset=0, leader_epoch=None)}
            admin.commit("outage", positions)
            server.kill()
            with pytest.raises(BrokerUnreachable):
                admin.committed("outage")
            server.start()
            for _ in range(10):
                with suppress(BrokerUnreachable):
                    assert admin.committed("outage") == positions
                    return
    finally:
        server.kill()
    pytest.fail("no request for the group succeeded")


def test_consumer_that_never_closes_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck:
        ends = Event()
        close = ends.wait

    stuck: Any = Stuck
    close_consumer(stuck, 0.01)
    assert "did not close within 0.01 s" in caplog.text
    Stuck.ends.set()
    close_consumer(stuck)
