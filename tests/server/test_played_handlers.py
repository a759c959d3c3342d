"""Handlers that begin on arrival, over a list of replies: their calls, their steps, and when a task goes on."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from korvet.api import IN_TURN, registry
from korvet.codes import COORDINATOR_NOT_AVAILABLE
from korvet.errors import StoreUnavailable
from korvet.server.conversation.requests import CALLING, ENDED, IN_TASK, Request
from korvet.store.contract import LATE, RESEND, RETRY, UNINDEXED, VERIFY
from korvet.wire.writer import encode_response
from tests.oracle.batches import Batch, encode
from tests.server.played import CATALOG, TOPIC, Played

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


META: Final = [TOPIC.hex.encode(), b"0", b"9", b"0", b"", b"r", b"i", *[None] * 6]
"""The reply to HMGET: a partition's meta hash."""
UNCHANGED: Final = (CATALOG, [0, -1, b"cluster", [], [], b"0"])
PARTS: Final = [{"name": "t", "partitions": [0]}]
TXN: Final = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0}
ORDINARY: Final[Mapping[str, tuple[int, int, Mapping[str, Any], list[tuple[str, Any]]]]] = {
    "ApiVersions": (18, 4, {"client_software_name": "a", "client_software_version": "1"}, []),
    "FindCoordinator": (10, 6, {"coordinator_keys": ["g"]}, []),
    "DescribeCluster": (60, 2, {"endpoint_type": 1}, []),
    "Metadata": (3, 13, {"topics": [{"name": "t"}]}, [UNCHANGED, ("HMGET", META), ("HMGET", META)]),
    "ListOffsets": (
        2, 10, {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]}, [("HMGET", META)],
    ),
    "OffsetForLeaderEpoch": (23, 4, {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}, [("HMGET", META)]),
    "OffsetFetch of one group": (
        9, 9, {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]},
        [("korvet_group_fetch", [b"t:0", b"5 0 %s m" % TOPIC.hex.encode()])],
    ),
    "LeaveGroup": (13, 5, {"group_id": "g", "members": [{"member_id": "m"}]}, [("korvet_group_leave", [0])]),
    "InitProducerId": (22, 5, {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}, [
        ("korvet_producer_id", [0, 7]),
    ]),
    "InitProducerId of a transaction": (
        22, 5, {"transactional_id": "x", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
        [("korvet_txn_init", [0, 7, 0])],
    ),
    "AddPartitionsToTxn": (
        24, 3,
        {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 7, "v3_and_below_topics": PARTS},
        [("korvet_txn_add", [0, 1, [0]])],
    ),
    "AddOffsetsToTxn": (25, 4, {**TXN, "group_id": "g"}, [("korvet_txn_add", [0, 1, [0]])]),
    "TxnOffsetCommit": (
        28, 5, {**TXN, "group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
        [("korvet_txn_add", [0, 1, [0]]), ("korvet_group_txn_commit", 0)],
    ),
    "EndTxn of an empty transaction": (26, 5, TXN, [("korvet_txn_end", [0, 7, 0])]),
    "ConsumerGroupHeartbeat": (
        68, 1, {"group_id": "g", "member_id": "m", "member_epoch": 3, "rebalance_timeout": -1,
                "topic_partitions": None, "subscribed_topic_names": None},
        [("korvet_group_beat", 1)],
    ),
}  # fmt: skip
"""Requests as clients mostly send them: key, version, fields, and the replies of Redis."""


@pytest.mark.parametrize(("key", "version", "values", "replies"), ORDINARY.values(), ids=ORDINARY)
async def test_ordinary_request_ends_with_its_last_reply_and_needs_no_task(
    key: int, version: int, values: Mapping[str, Any], replies: list[tuple[str, Any]]
) -> None:
    played = Played(*replies)
    request = played.request(key, version, **values)
    while played.link.waiting:
        assert request.stage is CALLING
        played.link.answer()
    assert request.error is None and request.stage is ENDED
    assert not played.link.replies
    # It is a whole answer.
    encode_response(key, version, 1, request.answer or {})


def test_only_apis_that_wait_for_others_or_for_time_never_begin_on_arrival() -> None:
    why = {
        "fetch": "it waits for records",
        "share_fetch": "it waits for records",
        "join_group": "it waits for other members",
        "sync_group": "it waits for the leader's assignment",
        "sasl_handshake": "its answer changes what the connection takes",
        "sasl_authenticate": "its answer changes that as well, and a failure waits",
    }
    assert {one.name for one in registry().values() if one.start is IN_TURN} == why.keys()


OWN_TASKS: Final = {"quotas/counting.py", "store/shares/dead_letters.py"}
"""Modules that handlers do not run, and that wait at the end of a task of their own."""


def test_what_handlers_run_waits_for_nothing_at_its_end() -> None:
    """The coroutine of a client that left is closed, and a closed coroutine must not wait."""
    korvet = Path(__file__).parents[2] / "korvet"
    waiting = {
        str(path.relative_to(korvet))
        for layer in ("api", "store", "security", "quotas")
        for path in (korvet / layer).rglob("*.py")
        for tried in ast.walk(ast.parse(path.read_text()))
        if isinstance(tried, ast.Try)
        for step in [*tried.finalbody, *(one for one in tried.handlers if _catches_the_end(one))]
        if any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in ast.walk(step))
    }
    assert waiting == OWN_TASKS


def _catches_the_end(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("BaseException", "GeneratorExit")


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


@pytest.mark.parametrize(
    ("begin", "replies"),
    [(heartbeat, [(BEAT, RETRY), (CATALOG, StoreUnavailable("lost"))]),
     (commit, [(COMMIT, UNINDEXED), ("korvet_group_admit", StoreUnavailable("lost"))])],
)  # fmt: skip
async def test_failed_step_before_a_repeated_call_is_the_outcome_of_the_request(begin: Any, replies: Any) -> None:
    played = Played(*replies)
    request = begin(played)
    for _ in replies:
        played.link.answer()
    assert codes(request) == [COORDINATOR_NOT_AVAILABLE]


async def test_late_commit_and_one_of_an_unknown_topic_go_on_in_a_task() -> None:
    played = Played((COMMIT, LATE), (CATALOG, [0, 2, b"cluster", [], [], b"0"]), ("korvet_probe", None))
    late, unknown = commit(played), commit(played, "u")
    played.link.answer()
    assert late.stage is IN_TASK
    played.link.answer()
    # The catalog does not have it, so no group is asked.
    assert unknown.stage is ENDED
    assert [called[0] for called in played.link.called] == [COMMIT, CATALOG, "korvet_probe"]


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
