"""Handlers that begin on arrival, over a list of replies: their calls, their steps, and when a task goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from korvet.codes import COORDINATOR_NOT_AVAILABLE
from korvet.errors import StoreUnavailable
from korvet.server.conversation.requests import CALLING, ENDED, IN_TASK, Request
from korvet.store.contract import LATE, RESEND, RETRY, UNINDEXED, VERIFY
from tests.oracle.batches import Batch, encode
from tests.server.played import Played

pytestmark = pytest.mark.anyio

NONE = 0
HEARTBEAT, OFFSET_COMMIT, PRODUCE = 12, 8, 0
BEAT: Final = "korvet_group_heartbeat"
COMMIT: Final = "korvet_group_commit"
APPEND: Final = "korvet_log_append"


def heartbeat(played: Played) -> Request:
    return played.request(HEARTBEAT, 4, group_id="g", generation_id=3, member_id="m")


def commit(played: Played, topic: str = "t") -> Request:
    part = {"partition_index": 1, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [part]}]
    return played.request(OFFSET_COMMIT, 9, group_id="g", generation_id_or_member_epoch=1, member_id="m", topics=topics)


def produce(played: Played, *topics: str, acks: int = -1) -> Request:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": encode(Batch())}]} for topic in topics]
    return played.request(PRODUCE, 9, acks=acks, timeout=1000, topic_data=data)


def codes(request: Request) -> list[int]:
    assert request.stage is ENDED and request.answer is not None
    answer: Mapping[str, Any] = request.answer
    if "responses" in answer:
        return [part["error_code"] for topic in answer["responses"] for part in topic["partition_responses"]]
    if "topics" in answer:
        return [part["error_code"] for topic in answer["topics"] for part in topic["partitions"]]
    return [answer["error_code"]]


async def test_heartbeat_is_one_call_and_ends_with_its_reply() -> None:
    played = Played((BEAT, NONE))
    request = heartbeat(played)
    assert request.stage is CALLING
    played.link.answer()
    assert codes(request) == [NONE]
    assert played.link.called == [[BEAT, "", "m", "", "3", played.catalog.topics_digest]]


async def test_heartbeat_of_an_outdated_target_follows_the_catalog_and_calls_again() -> None:
    further = [b"u", b'{"id": "%032x", "partitions": 1}' % 8]
    catalog = [0, 2, b"cluster", further, [], b"0"]
    played = Played((BEAT, RETRY), ("korvet_catalog_read", catalog), (BEAT, NONE))
    before = played.catalog.topics_digest
    request = heartbeat(played)
    for _ in range(3):
        played.link.answer()
    assert codes(request) == [NONE]
    assert played.catalog.topics_digest != before
    assert [called[-1] for called in played.link.called[::2]] == [before, played.catalog.topics_digest]


@pytest.mark.parametrize("begin", [heartbeat, commit])
async def test_lost_redis_ends_a_request_of_a_group_in_one_step(begin: Any) -> None:
    played = Played((BEAT if begin is heartbeat else COMMIT, StoreUnavailable("lost")))
    request = begin(played)
    played.link.answer()
    assert codes(request) == [COORDINATOR_NOT_AVAILABLE]


async def test_commit_of_a_new_group_enters_it_in_the_index_before_and_after_its_call() -> None:
    played = Played((COMMIT, UNINDEXED), ("korvet_group_admit", 0), (COMMIT, NONE), ("korvet_group_index", 1))
    request = commit(played)
    for _ in range(4):
        played.link.answer()
    assert codes(request) == [NONE]
    first, _, second, _ = played.link.called
    assert first[2:4] == ["", ""]
    assert second[2].startswith("cgp_") and second[3] == "played/consumer-groups/g"
    assert first[4:] == second[4:]


async def test_late_commit_and_one_of_an_unknown_topic_go_on_in_a_task() -> None:
    played = Played((COMMIT, LATE), ("korvet_catalog_read", [0, 2, b"cluster", [], [], b"0"]))
    late, unknown = commit(played), commit(played, "u")
    played.link.answer()
    assert late.stage is IN_TASK
    played.link.answer()
    # The catalog does not have it, so no group is asked.
    assert unknown.stage is ENDED
    assert len(played.link.called) == 2


async def test_produces_are_sent_before_any_reply_and_end_with_their_own() -> None:
    played = Played((APPEND, b"0 10 0 1"), (APPEND, b"0 11 0 1"))
    first, second = produce(played, "t"), produce(played, "t", acks=0)
    assert (first.stage, second.stage, len(played.link.called)) == (CALLING, CALLING, 2)
    played.link.answer()
    assert codes(first) == [NONE] and second.stage is CALLING
    played.link.answer()
    assert (second.stage, second.answer) == (ENDED, None)


@pytest.mark.parametrize("code", [RESEND, VERIFY])
async def test_batch_that_has_to_be_sent_again_waits_for_its_turn_in_a_task(code: int) -> None:
    """Those after it may be refused because of it, and are sent again after it."""
    played = Played((APPEND, b"%d -1 -1 -1" % code))
    request = produce(played, "t")
    played.link.answer()
    assert request.stage is IN_TASK and not played.link.replies


async def test_produce_to_an_unknown_topic_sends_nothing_before_its_turn() -> None:
    played = Played()
    assert produce(played, "t", "unknown").stage is IN_TASK


async def test_reply_after_the_end_of_a_request_changes_nothing() -> None:
    played = Played((COMMIT, NONE))
    request = commit(played)
    request.close()
    played.link.answer()
    assert request.stage is CALLING
