"""ShareFetch and ShareAcknowledge as raw requests: sessions, records, and who wakes for them."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest

from korvet.store.contract import arguments
from korvet.store.keys import Namespace, share_partition
from tests.api.data import Connection, now_ms, produce, records
from tests.api.raw import ask, created, unique
from tests.api.transactions import producer
from tests.oracle.batches import describe
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.redis import running_server
from tests.wire.whole import Whole, built, read

NONE = "NONE"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
RECORD_LIMIT = 1
INVALID_RECORD_STATE = 121
GROUP = 32
WAIT_MS = 20_000


class Member:
    """A member of a share group, on a connection of its own."""

    def __init__(self, broker: KorvetServer, group: str, id: str | None = None) -> None:
        self.connection = Connection(broker.port)
        self.group, self.id = group, id or str(uuid4())
        self.epoch = 0

    def send(self, *topics: Mapping[str, Any], epoch: int | None = None, **values: Any) -> None:
        """Send a ShareFetch of the next epoch."""
        self._send("share_fetch", epoch, topics, {
            "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
            "forgotten_topics_data": [], **values,
        })  # fmt: skip

    def _send(
        self, api: str, epoch: int | None, topics: Sequence[Mapping[str, Any]], values: Mapping[str, Any]
    ) -> None:
        epoch = self.epoch if epoch is None else epoch
        self.connection.send(
            api, 2, group_id=self.group, member_id=self.id, share_session_epoch=epoch, topics=topics, **values
        )
        self.epoch = epoch + 1

    def fetch(self, *topics: Mapping[str, Any], epoch: int | None = None, **values: Any) -> Any:
        self.send(*topics, epoch=epoch, **values)
        return self.connection.receive()

    def acknowledge(self, *topics: Mapping[str, Any], epoch: int | None = None, **values: Any) -> Any:
        self._send("share_acknowledge", epoch, topics, values)
        return self.connection.receive()


def part(topic: UUID, *acknowledged: tuple[int, int, int], index: int = 0) -> dict[str, Any]:
    """A partition of a request, with acknowledgements of first and last offset and a type."""
    batches = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [type]} for first, last, type in acknowledged
    ]
    return {"topic_id": topic, "partitions": [{"partition_index": index, "acknowledgement_batches": batches}]}


def parts(answer: Any) -> dict[int, Any]:
    """The partitions of an answer about one topic."""
    assert answer["error_code"] == NONE, answer
    return {one["partition_index"]: one for topic in answer["responses"] for one in topic["partitions"]}


def acquired(answer: Any, index: int = 0) -> list[tuple[int, int, int]]:
    """What an answer says was acquired: first and last offset, and the count."""
    one = parts(answer).get(index)
    if one is None:
        return []
    assert one["error_code"] == NONE, one
    return [(each["first_offset"], each["last_offset"], each["delivery_count"]) for each in one["acquired_records"]]


def set_of_group(broker: KorvetServer, group: str, **configs: str) -> None:
    """Set configs of a group."""
    changes = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": changes}
    (answer,) = ask(broker.port, "incremental_alter_configs", 1, resources=[resource])["responses"]
    assert answer["error_code"] == NONE, answer


class Topic:
    """A topic that a share group reads from its beginning."""

    def __init__(
        self, broker: KorvetServer, group: str, partitions: int = 1, name: str | None = None, **configs: str
    ) -> None:
        self.broker, self.group, self.partitions = broker, group, partitions
        self.name = created(broker.port, name, partitions, **configs)
        (found,) = ask(broker.port, "metadata", 12, topics=[{"topic_id": UUID(int=0), "name": self.name}])["topics"]
        self.id: UUID = found["topic_id"]
        self.begin(group)

    def begin(self, group: str, start: int = 0) -> None:
        """Begin the share partitions of a group, as a member's heartbeat does."""
        with self.broker.redis() as client:
            for index in range(self.partitions):
                keys, given = self.keys(group, index), (self.id.hex, group, "cgp_1", start, "begin")
                code, _ = client.fcall("korvet_share_set", 4, *keys, *given)
                assert code == 0

    def acquire(self, member: str, lock_ms: int = 30_000) -> None:
        """Acquire everything for a member, as a front-end does that is gone since."""
        named: dict[str, str | int] = {
            "outages": "", "topic_id": self.id.hex, "group": self.group, "member": member, "nonce": "of-another",
            "max_records": 500, "max_bytes": -1, "mode": "batches", "isolation": "uncommitted", "lock_ms": lock_ms,
            "limit": 5, "window": 2000, "reset": "", "backoff_ms": 0, "backoff_most_ms": 0, "dead_letters": 0,
        }  # fmt: skip
        given = arguments("korvet_share_acquire", named)
        with self.broker.redis() as client:
            code, *_ = client.fcall("korvet_share_acquire", 4, *self.keys(self.group), *given)
        assert code == 0

    def keys(self, group: str, index: int = 0) -> Sequence[str]:
        """The keys of a share partition."""
        return share_partition(Namespace().partition(self.name, index), group)

    def append(self, count: int = 1, index: int = 0, **values: Any) -> None:
        """Append a batch."""
        assert produce(self.broker.port, self.name, records(count, **values), partition=index)["error_code"] == NONE


@pytest.fixture
def group() -> str:
    return unique("share")


@pytest.fixture
def topic(broker: KorvetServer, group: str) -> Topic:
    return Topic(broker, group)


@pytest.fixture
def join(broker: KorvetServer, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members, of the test's group unless another one is given."""
    with ExitStack() as stack:

        def make(of: str = group, id: str | None = None) -> Member:
            member = Member(broker, of, id)
            stack.callback(member.connection.socket.close)
            return member

        yield make


Join = Callable[..., Member]


@pytest.fixture
def member(join: Join) -> Member:
    return join()


def batches(answer: Any) -> list[int]:
    """The base offsets of the batches in an answer."""
    return [batch["base_offset"] for batch in describe(parts(answer)[0]["records"]) or ()]


def acknowledged(answer: Any, index: int = 0) -> int:
    """The code of a ShareFetch's acknowledgements in a partition."""
    return int(parts(answer)[index]["acknowledge_error_code"])


# ---------------------------------------------------------------------- records


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestPiggybackedAccept")
@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestSuccess testShareAcknowledgeRequestSuccessAccept")
@kafka("SharePartitionManagerTest.testAcknowledgeSinglePartition")
@kafka("ShareFetchUtilsTest.testProcessFetchResponseWhenNoRecordsAreAcquired")
def test_member_gets_records_and_acknowledges_them(topic: Topic, member: Member) -> None:
    topic.append(10)
    first = member.fetch(part(topic.id))
    assert acquired(first) == [(0, 9, 1)]
    assert first["acquisition_lock_timeout"] == 30_000
    assert batches(first) == [0]
    topic.append(5)
    second = member.fetch(part(topic.id, (0, 9, ACCEPT)))
    assert acknowledged(second) == 0
    assert acquired(second) == [(10, 14, 1)]
    answer = member.acknowledge(part(topic.id, (10, 14, ACCEPT)))
    assert parts(answer)[0]["error_code"] == NONE
    assert acquired(member.fetch(part(topic.id))) == []


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestPiggybackedRelease")
def test_released_records_come_again_with_a_greater_count(topic: Topic, member: Member) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    assert acquired(member.fetch(part(topic.id, (0, 3, ACCEPT), (4, 9, RELEASE)))) == [(4, 9, 2)]


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestPiggybackedReject")
def test_rejected_records_do_not_come_again(topic: Topic, member: Member) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    assert acquired(member.fetch(part(topic.id, (0, 9, REJECT)))) == []


def test_rejected_record_goes_to_the_groups_dead_letter_topic(
    broker: KorvetServer, group: str, topic: Topic, member: Member, join: Join
) -> None:
    target = Topic(broker, unique("reader"), name=unique("dlq."), errors_deadletterqueue_group_enable="true")
    name = "errors.deadletterqueue"
    set_of_group(broker, group, **{f"{name}.topic.name": target.name, f"{name}.copy.record.enable": "true"})
    topic.append(3, size=6)
    member.fetch(part(topic.id))
    assert acknowledged(member.fetch(part(topic.id, (0, 0, ACCEPT), (1, 1, REJECT), (2, 2, ACCEPT)))) == 0
    (copy,) = read(parts(join(target.group).fetch(part(target.id), max_wait=WAIT_MS))[0]["records"])
    assert (copy.record.value, dict(copy.record.headers)["__dlq.errors.offset"]) == (b"vvvvvv", b"1")


def test_partition_with_an_error_has_no_leader_to_which_a_client_may_move_it(topic: Topic, member: Member) -> None:
    topic.append(3)
    member.fetch(part(topic.id))
    refused = [member.acknowledge(part(topic.id, (7, 7, ACCEPT))), member.fetch(part(topic.id, index=5))]
    leaders = [
        one["current_leader"] for answer in refused for one in parts(answer).values() if one["error_code"] != NONE
    ]
    assert leaders == [{"leader_id": -1, "leader_epoch": -1}] * 2


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestSuccessfulSharingBetweenMultipleConsumers")
@kafka("SharePartitionManagerTest.testAcknowledgeIncorrectMemberId")
def test_members_of_one_group_share_the_records(join: Join, topic: Topic, member: Member) -> None:
    for _ in range(3):
        topic.append(4)
    other = join()
    assert acquired(member.fetch(part(topic.id), max_records=4)) == [(0, 3, 1)]
    assert acquired(other.fetch(part(topic.id), max_records=4)) == [(4, 7, 1)]
    assert acquired(member.fetch(max_records=4)) == [(8, 11, 1)]
    assert acquired(other.fetch(max_records=4)) == []
    answer = other.acknowledge(part(topic.id, (0, 3, ACCEPT)))
    assert parts(answer)[0]["error_code"] == "INVALID_RECORD_STATE"


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestNoSharingBetweenMultipleConsumersFromDifferentGroups")
def test_groups_do_not_share_the_records(join: Join, topic: Topic, member: Member) -> None:
    topic.append(4)
    assert acquired(member.fetch(part(topic.id))) == [(0, 3, 1)]
    group = unique("share")
    topic.begin(group)
    assert acquired(join(group).fetch(part(topic.id))) == [(0, 3, 1)]


def test_whole_batches_come_beyond_the_number_of_records(topic: Topic, member: Member) -> None:
    topic.append(10)
    topic.append(10)
    assert acquired(member.fetch(part(topic.id), max_records=3)) == [(0, 9, 1)]


@kafka("ShareConsumerTest.testPollInRecordLimitMode")
def test_record_limit_gives_exactly_as_many_records(topic: Topic, member: Member) -> None:
    topic.append(10)
    answer = member.fetch(part(topic.id), max_records=3, share_acquire_mode=RECORD_LIMIT)
    assert acquired(answer) == [(0, 2, 1)]
    assert acquired(member.fetch(max_records=4, share_acquire_mode=RECORD_LIMIT)) == [(3, 6, 1)]


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestMultipleBatchesWithMaxRecordsAndBatchSize")
def test_acquired_range_is_split_at_batches(topic: Topic, member: Member) -> None:
    for _ in range(4):
        topic.append(5)
    assert acquired(member.fetch(part(topic.id), batch_size=8)) == [(0, 9, 1), (10, 19, 1)]


def test_records_stored_one_by_one_come_alone(broker: KorvetServer, group: str, member: Member) -> None:
    topic = Topic(broker, group, korvet_storage="record")
    topic.append(10, size=2000)
    answer = member.fetch(part(topic.id), max_records=2, share_acquire_mode=RECORD_LIMIT)
    assert acquired(answer) == [(0, 1, 1)]
    assert len(parts(answer)[0]["records"]) < 3 * 2000


def test_small_islands_of_released_records_come_with_their_batches(topic: Topic, member: Member) -> None:
    for _ in range(5):
        topic.append(100)
    member.fetch(part(topic.id))
    kept = [(0, 10, ACCEPT), (11, 12, RELEASE), (13, 249, ACCEPT), (250, 251, RELEASE), (252, 299, ACCEPT)]
    answer = member.fetch(part(topic.id, *kept, (300, 499, RELEASE)))
    assert acquired(answer) == [(11, 12, 2), (250, 251, 2), (300, 499, 2)]
    bases = batches(answer)
    assert sorted(set(bases)) == bases
    assert {0, 200, 300, 400} <= set(bases)


@pytest.mark.parametrize(
    "isolation, expected", [("read_committed", [(0, 1, 1), (4, 6, 1)]), ("read_uncommitted", [(0, 6, 1)])]
)
def test_aborted_records_are_left_out_for_readers_of_committed_ones(
    broker: KorvetServer, topic: Topic, member: Member, isolation: str, expected: list[tuple[int, int, int]]
) -> None:
    set_of_group(broker, topic.group, **{"share.isolation.level": isolation})
    topic.append(2)
    aborting = producer(broker.port)
    aborting.sent(topic.name, count=2)
    assert aborting.end(commit=False) == NONE
    topic.append(2)
    assert acquired(member.fetch(part(topic.id))) == expected


def test_members_get_no_open_transaction_if_they_read_committed_records(
    broker: KorvetServer, topic: Topic, member: Member
) -> None:
    set_of_group(broker, topic.group, **{"share.isolation.level": "read_committed"})
    topic.append(2)
    committing = producer(broker.port)
    committing.sent(topic.name, count=3)
    assert acquired(member.fetch(part(topic.id))) == [(0, 1, 1)]
    assert acquired(member.fetch()) == []
    member.send(max_wait=WAIT_MS)
    assert committing.end() == NONE
    assert acquired(member.connection.receive()) == [(2, 5, 1)]


@kafka("ShareFetchUtilsTest.testProcessFetchResponseWithLsoMovementForTopicPartition")
def test_deleted_records_are_passed_over(broker: KorvetServer, topic: Topic, member: Member) -> None:
    topic.append(5)
    topic.append(5)
    deleted = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 7}]}]
    ask(broker.port, "delete_records", 2, topics=deleted, timeout=5000)
    assert acquired(member.fetch(part(topic.id))) == [(7, 9, 1)]


@pytest.mark.parametrize(
    "reset, expected",
    [
        ("latest", []),
        ("earliest", [(0, 4, 1)]),
        ("by_duration:PT1H", [(5, 9, 1)]),
        ("by_duration:P9999999999D", [(0, 9, 1)]),
    ],
)
def test_group_begins_where_its_setting_says(
    join: Join, broker: KorvetServer, topic: Topic, reset: str, expected: list[tuple[int, int, int]]
) -> None:
    if reset == "earliest":
        topic.append(5)
    else:
        topic.append(5, timestamp=now_ms() - 7_200_000)
        topic.append(5)
    group = unique("share")
    topic.begin(group, start=-1)
    set_of_group(broker, group, **{"share.auto.offset.reset": reset})
    member = join(group)
    assert acquired(member.fetch(part(topic.id))) == expected
    if reset == "latest":
        topic.append(3)
        assert acquired(member.fetch()) == [(10, 12, 1)]


# ---------------------------------------------------------------------- acknowledgements


@pytest.mark.parametrize("is_allowed", [True, False])
def test_renewal_prolongs_a_lock_if_the_group_allows_it(
    broker: KorvetServer, topic: Topic, member: Member, is_allowed: bool
) -> None:
    if not is_allowed:
        set_of_group(broker, topic.group, **{"share.renew.acknowledge.enable": "false"})
    topic.append(10)
    member.fetch(part(topic.id))
    answer = member.acknowledge(part(topic.id, (0, 4, ACCEPT), (5, 9, RENEW)), is_renew_ack=True)
    assert parts(answer)[0]["error_code"] == (NONE if is_allowed else "INVALID_RECORD_STATE")
    nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "is_renew_ack": True}
    renewed = member.fetch(part(topic.id, (5, 9, RENEW)), **nothing)
    assert acknowledged(renewed) == (0 if is_allowed else INVALID_RECORD_STATE)
    assert acquired(renewed) == []


def test_renewal_with_a_wish_for_records_is_refused(topic: Topic, member: Member) -> None:
    member.fetch(part(topic.id))
    answer = member.fetch(part(topic.id, (0, 0, RENEW)), is_renew_ack=True)
    assert answer["error_code"] == "INVALID_REQUEST"


@kafka("KafkaApisTest.testHandleShareAcknowledgeRequestBatchValidationError")
def test_wrong_acknowledgements_change_nothing(topic: Topic, member: Member) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    for wrong in ([(5, 4, ACCEPT)], [(0, 4, ACCEPT), (3, 9, ACCEPT)], [(0, 9, RENEW)], [(0, 20, ACCEPT)]):
        answer = member.acknowledge(part(topic.id, *wrong))
        assert parts(answer)[0]["error_code"] == "INVALID_REQUEST", wrong
    answer = member.acknowledge(part(topic.id, (0, 9, ACCEPT)))
    assert parts(answer)[0]["error_code"] == NONE


@kafka(
    "ShareFetchAcknowledgeRequestTest.testShareAcknowledgeRequestSuccessReject",
    "ShareFetchAcknowledgeRequestTest.testShareAcknowledgeRequestMaxDeliveryAttemptExhausted",
    "SharePartitionManagerTest.testAcknowledgeIndividualOffsets testAcknowledgeMultiplePartition",
)
def test_rejected_and_too_often_delivered_records_come_no_more(
    broker: KorvetServer, group: str, member: Member
) -> None:
    topic = Topic(broker, group, partitions=2)
    set_of_group(broker, group, **{"share.delivery.count.limit": "2"})
    topic.append(4)
    topic.append(4, index=1)
    both = part(topic.id), part(topic.id, index=1)
    member.fetch(*both)
    types = [ACCEPT, RELEASE, REJECT, RELEASE]
    single = {"first_offset": 0, "last_offset": 3, "acknowledge_types": types}
    one = {"topic_id": topic.id, "partitions": [{"partition_index": 0, "acknowledgement_batches": [single]}]}
    member.acknowledge(one, part(topic.id, (0, 3, REJECT), index=1))
    assert acquired(member.fetch(max_records=1)) == [(1, 1, 2)]
    assert acquired(member.fetch(max_records=1)) == [(3, 3, 2)]
    member.acknowledge(part(topic.id, (1, 1, RELEASE), (3, 3, RELEASE)))
    assert parts(member.fetch(*both)) == {}


# ---------------------------------------------------------------------- sessions


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestInvalidShareSessionEpoch")
@kafka("ShareFetchAcknowledgeRequestTest.testShareAcknowledgeRequestShareSessionNotFound")
@kafka(
    "ShareFetchAcknowledgeRequestTest.testShareFetchRequestShareSessionNotFound",
    "ShareFetchAcknowledgeRequestTest.testShareAcknowledgeRequestInvalidShareSessionEpoch",
)
@kafka("ShareFetchAcknowledgeRequestTest.testShareAcknowledgeInitialRequestError")
def test_request_outside_of_a_session_is_refused(join: Join, topic: Topic, member: Member) -> None:
    assert member.fetch(part(topic.id), epoch=1)["error_code"] == "SHARE_SESSION_NOT_FOUND"
    assert member.acknowledge(part(topic.id), epoch=-1)["error_code"] == "SHARE_SESSION_NOT_FOUND"
    member.fetch(part(topic.id), epoch=0)
    assert member.fetch(epoch=2)["error_code"] == "INVALID_SHARE_SESSION_EPOCH"
    assert member.acknowledge(part(topic.id), epoch=0)["error_code"] == "INVALID_SHARE_SESSION_EPOCH"
    assert join().fetch(epoch=1)["error_code"] == "SHARE_SESSION_NOT_FOUND"


def test_member_acknowledges_by_another_connection_as_franz_go_does(join: Join, topic: Topic, member: Member) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    other = join(id=member.id)
    answer = other.acknowledge(part(topic.id, (0, 4, ACCEPT), (5, 9, RELEASE)), epoch=member.epoch)
    assert parts(answer)[0]["error_code"] == NONE
    assert acquired(member.fetch(epoch=member.epoch + 1)) == [(5, 9, 2)]
    other.connection.socket.close()
    assert member.fetch(epoch=member.epoch)["error_code"] == NONE


def test_member_without_a_valid_name_is_refused(join: Join, topic: Topic) -> None:
    for id in ("", "x" * 37):
        member = join()
        member.id = id
        answer = member.fetch(part(topic.id))
        assert answer["error_code"] == "INVALID_REQUEST"


@pytest.mark.parametrize("api", ["share_fetch", "share_acknowledge"])
@kafka("ShareFetchAcknowledgeRequestTest.testShareSessionCloseWithShareFetch testShareSessionCloseWithShareAcknowledge")
@kafka("SharePartitionManagerTest.testReleaseSessionSuccess testReleaseSessionCompletesDelayedShareFetchRequest")
def test_end_of_a_session_releases_what_its_member_holds(join: Join, topic: Topic, member: Member, api: str) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    end = member.fetch if api == "share_fetch" else member.acknowledge
    assert end(part(topic.id, (0, 3, ACCEPT)), epoch=-1)["error_code"] == NONE
    other = join()
    assert acquired(other.fetch(part(topic.id), max_wait=WAIT_MS)) == [(4, 9, 2)]
    assert member.fetch(epoch=1)["error_code"] == "SHARE_SESSION_NOT_FOUND"


@kafka("ShareFetchAcknowledgeRequestTest.testShareSessionEvictedOnConnectionDrop")
@kafka("SharePartitionManagerTest.testShareGroupListener")
@kafka("ShareSessionCacheTest.testShareGroupListenerEvents")
def test_end_of_a_connection_releases_what_its_member_holds(join: Join, topic: Topic, member: Member) -> None:
    topic.append(10)
    other = join()
    assert acquired(other.fetch(part(topic.id))) == [(0, 9, 1)]
    member.fetch(part(topic.id))
    member.send(max_wait=WAIT_MS)
    other.connection.socket.close()
    assert acquired(member.connection.receive()) == [(0, 9, 2)]


def test_records_that_redis_acquires_for_a_client_that_has_left_are_released(
    broker: KorvetServer, join: Join, topic: Topic
) -> None:
    gone, other = join(), join()
    gone.fetch(part(topic.id))
    topic.append(10)
    with broker.redis() as client:
        client.client_pause(1000, all=False)
        gone.send()
        while not any("b" in one["flags"] and one["cmd"] == "fcall" for one in client.client_list()):
            time.sleep(0.01)
        gone.connection.socket.close()
    assert acquired(other.fetch(part(topic.id), max_wait=WAIT_MS)) == [(0, 9, 2)]


def test_member_that_comes_back_gets_what_it_held_by_a_killed_front_end(
    join: Join, broker: KorvetServer, topic: Topic
) -> None:
    topic.append(10)
    member = join()
    topic.acquire(member.id)
    assert acquired(member.fetch(part(topic.id))) == [(0, 9, 2)]


def test_new_session_of_a_connection_keeps_what_the_former_one_acquired(topic: Topic, member: Member) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    assert acquired(member.fetch(part(topic.id), epoch=0)) == []
    answer = member.acknowledge(part(topic.id, (0, 9, ACCEPT)))
    assert parts(answer)[0]["error_code"] == NONE


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestForgetTopicPartitions")
def test_forgotten_partition_is_fetched_no_more(broker: KorvetServer, group: str, member: Member) -> None:
    topic = Topic(broker, group, partitions=2)
    member.fetch(part(topic.id), part(topic.id, index=1))
    forgotten = [{"topic_id": topic.id, "partitions": [1]}]
    member.fetch(forgotten_topics_data=forgotten)
    topic.append(2, index=0)
    topic.append(2, index=1)
    assert parts(member.fetch()).keys() == {0}


@kafka("ShareFetchUtilsTest.testProcessFetchResponseWithEmptyRecords")
def test_answer_names_only_partitions_with_news(broker: KorvetServer, group: str, member: Member) -> None:
    topic = Topic(broker, group, partitions=3)
    assert parts(member.fetch(part(topic.id), part(topic.id, index=1))).keys() == {0, 1}
    assert parts(member.fetch()).keys() == set()
    topic.append(2, index=1)
    assert parts(member.fetch()).keys() == {1}
    assert parts(member.fetch(part(topic.id, index=2))).keys() == {2}


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestSuccessMultiplePartitions")
@kafka("ShareFetchUtilsTest.testProcessFetchResponseWithMaxFetchRecords")
def test_number_of_records_is_one_for_all_partitions(broker: KorvetServer, group: str, member: Member) -> None:
    topic = Topic(broker, group, partitions=3)
    for index in range(3):
        topic.append(4, index=index)
    first = member.fetch(*(part(topic.id, index=index) for index in range(3)), max_records=5)
    assert [acquired(first, index) for index in range(3)] == [[(0, 3, 1)], [(0, 3, 1)], []]
    assert acquired(member.fetch(max_records=5), 2) == [(0, 3, 1)]


@pytest.mark.parametrize("max_records", [1, 7, 30, 500])
def test_many_partitions_give_no_more_records_than_asked_for(
    broker: KorvetServer, group: str, member: Member, max_records: int
) -> None:
    topic = Topic(broker, group, partitions=40)
    for index in range(40):
        topic.append(4, index=index)
    answer = member.fetch(
        *(part(topic.id, index=index) for index in range(40)), max_records=max_records, share_acquire_mode=RECORD_LIMIT
    )
    got: set[tuple[int, int]] = set()
    for _ in range(200):
        new = {
            (index, offset)
            for index in parts(answer)
            for first, last, _ in acquired(answer, index)
            for offset in range(first, last + 1)
        }
        assert len(new) <= max_records and not new & got
        got |= new
        if len(got) == 160:
            return
        answer = member.fetch(max_records=max_records, share_acquire_mode=RECORD_LIMIT)
    raise AssertionError(len(got))


@kafka("SharePartitionManagerTest.testGetErroneousAndValidTopicIdPartitions")
def test_unknown_topics_and_partitions_have_their_errors(topic: Topic, member: Member) -> None:
    unknown = uuid4()
    answer = member.fetch(part(topic.id, index=7), part(unknown))
    found = {one["topic_id"]: [each["error_code"] for each in one["partitions"]] for one in answer["responses"]}
    assert found == {topic.id: ["UNKNOWN_TOPIC_OR_PARTITION"], unknown: ["UNKNOWN_TOPIC_ID"]}
    answer = member.acknowledge(part(topic.id, (0, 0, ACCEPT), index=7), part(unknown, (0, 0, ACCEPT)))
    found = {one["topic_id"]: [each["error_code"] for each in one["partitions"]] for one in answer["responses"]}
    assert found == {topic.id: ["UNKNOWN_TOPIC_OR_PARTITION"], unknown: ["UNKNOWN_TOPIC_ID"]}


def test_answer_with_errors_alone_comes_after_a_pause(member: Member) -> None:
    """Clients repeat the request at once."""
    began = time.monotonic()
    assert parts(member.fetch(part(uuid4()), max_wait=WAIT_MS))[0]["error_code"] == "UNKNOWN_TOPIC_ID"
    assert time.monotonic() - began >= 0.09


def test_group_without_this_share_partition_is_not_found(join: Join, topic: Topic) -> None:
    answer = join(unique("other")).fetch(part(topic.id))
    assert parts(answer)[0]["error_code"] == "GROUP_ID_NOT_FOUND"


# ---------------------------------------------------------------------- waits


@kafka("DelayedShareFetchTest.testDelayedShareFetchTryCompleteReturnsTrue")
def test_append_ends_a_wait(topic: Topic, member: Member) -> None:
    member.fetch(part(topic.id))
    member.send(max_wait=WAIT_MS)
    topic.append(3)
    assert acquired(member.connection.receive()) == [(0, 2, 1)]


@kafka("ShareFetchAcknowledgeRequestTest.testShareAcknowledgeRequestSuccessRelease")
@kafka("SharePartitionManagerTest.testAcknowledgeCompletesDelayedShareFetchRequest")
def test_release_by_another_member_ends_a_wait(join: Join, topic: Topic, member: Member) -> None:
    topic.append(3)
    other = join()
    other.fetch(part(topic.id))
    member.fetch(part(topic.id))
    member.send(max_wait=WAIT_MS)
    other.acknowledge(part(topic.id, (0, 2, RELEASE)))
    assert acquired(member.connection.receive()) == [(0, 2, 2)]


def test_end_of_a_lock_ends_a_wait(broker: KorvetServer, topic: Topic, member: Member) -> None:
    set_of_group(broker, topic.group, **{"share.record.lock.duration.ms": "15000"})
    topic.append(3)
    topic.acquire("gone", lock_ms=1_500)
    assert acquired(member.fetch(part(topic.id), max_wait=WAIT_MS)) == [(0, 2, 2)]


@pytest.mark.parametrize("was_acquired, code", [(False, "UNKNOWN_SERVER_ERROR"), (True, "CORRUPT_MESSAGE")])
def test_damaged_records_end_no_wait_for_others(
    broker: KorvetServer, group: str, member: Member, was_acquired: bool, code: str
) -> None:
    topic = Topic(broker, group, partitions=2)
    topic.append(3)
    if was_acquired:
        topic.acquire("gone", lock_ms=1)
    log, *_ = topic.keys(group)
    with broker.redis() as client:
        client.xtrim(log, maxlen=0)
        client.xadd(log, {"foo": "bar"}, id="4-0")
    member.send(part(topic.id), part(topic.id, index=1), max_wait=WAIT_MS)
    assert not select.select([member.connection.socket], [], [], 0.5)[0]
    topic.append(2, index=1)
    answer = member.connection.receive()
    assert parts(answer)[0]["error_code"] == code
    assert acquired(answer, 1) == [(0, 1, 1)]


def test_append_costs_one_acquisition_however_many_members_wait(join: Join, broker: KorvetServer, topic: Topic) -> None:
    members = [join() for _ in range(20)]
    for member in members:
        member.fetch(part(topic.id))
    with broker.redis() as client, client.monitor() as monitor:
        for member in members:
            member.send(max_wait=WAIT_MS)
        got, left = [], members
        for _ in range(10):
            topic.append(1)
            ready, _, _ = select.select([one.connection.socket for one in left], [], [], WAIT_MS / 1000)
            (receiver,) = (one for one in left if one.connection.socket in ready)
            got += acquired(receiver.connection.receive())
            left = [one for one in left if one is not receiver]
        client.echo("the end")
        commands = (command["command"] for command in monitor.listen())
        seen = list(itertools.takewhile(lambda command: command != "ECHO the end", commands))
    assert got == [(offset, offset, 1) for offset in range(10)]
    # A subscription that is confirmed late is news, too.
    assert sum("korvet_share_acquire" in command for command in seen) < 20


def test_fetch_that_acknowledges_makes_one_call(broker: KorvetServer, topic: Topic, member: Member) -> None:
    for _ in range(11):
        topic.append(1)
    assert acquired(member.fetch(part(topic.id), max_records=1)) == [(0, 0, 1)]
    with broker.redis() as client, client.monitor() as monitor:
        for offset in range(10):
            answer = member.fetch(part(topic.id, (offset, offset, ACCEPT)), max_records=1)
            assert parts(answer)[0]["acknowledge_error_code"] == 0
            assert acquired(answer) == [(offset + 1, offset + 1, 1)]
        client.echo("the end")
        commands = (command["command"] for command in monitor.listen())
        seen = list(itertools.takewhile(lambda command: command != "ECHO the end", commands))
    assert sum("FCALL korvet_share_" in command and topic.name in command for command in seen) == 10


def test_members_that_wait_get_records_at_their_times_by_few_calls(
    join: Join, broker: KorvetServer, group: str, topic: Topic
) -> None:
    set_of_group(broker, group, **{"korvet.share.delivery.time.header": "at"})
    members = [join() for _ in range(20)]
    for member in members:
        member.fetch(part(topic.id))
    with broker.redis() as client, client.monitor() as monitor:
        for member in members:
            member.send(max_wait=WAIT_MS)
        due_ms = now_ms() + 1000
        headers = [(("at", b"%d" % (due_ms + 3_600_000 * number)),) for number in range(100)]
        _, data = built(*(Whole(headers=one, timestamp=now_ms()) for one in headers))
        assert produce(broker.port, topic.name, data)["error_code"] == NONE
        ready, _, _ = select.select([one.connection.socket for one in members], [], [], WAIT_MS / 1000)
        (receiver,) = (one for one in members if one.connection.socket in ready)
        assert (acquired(receiver.connection.receive()), now_ms() >= due_ms) == ([(0, 0, 1)], True)
        client.echo("the end")
        commands = (command["command"] for command in monitor.listen())
        seen = list(itertools.takewhile(lambda command: command != "ECHO the end", commands))
    # After the append, after what it delayed, and at the first record's time; each of them may find that there is more.
    assert sum("korvet_share_acquire" in command for command in seen) < 20


def test_member_ends_its_session_after_it_left_with_a_request_under_way(
    join: Join, topic: Topic, member: Member
) -> None:
    topic.append(10)
    member.fetch(part(topic.id))
    member.send(max_wait=WAIT_MS)
    member.connection.socket.close()
    other = join(id=member.id)
    answer = other.acknowledge(part(topic.id, (0, 9, ACCEPT)), epoch=-1)
    assert parts(answer)[0]["error_code"] == NONE


def test_member_acknowledges_at_another_front_end_of_its_address() -> None:
    """franz-go has a connection for each; a load balancer gives them to any front-ends."""
    group = unique("share")
    with (
        running_server("valkey") as server,
        running_broker(redis_url=server.url, advertised=("127.0.0.1", 9)) as one,
        running_broker(redis_url=server.url, advertised=("127.0.0.1", 9)) as other,
    ):
        topic, member = Topic(one, group), Member(one, group)
        topic.append(10)
        assert acquired(member.fetch(part(topic.id))) == [(0, 9, 1)]
        away = Member(other, group, member.id)
        answer = away.acknowledge(
            part(topic.id, (0, 3, ACCEPT), (4, 5, RELEASE), (6, 6, RENEW)), epoch=1, is_renew_ack=True
        )
        assert parts(answer)[0]["error_code"] == NONE
        assert acquired(member.fetch(epoch=2)) == [(4, 5, 2)]
        assert away.acknowledge(part(topic.id, (0, 3, ACCEPT)), epoch=3)["error_code"] == NONE
        stranger = Member(other, group)
        answer = stranger.acknowledge(part(topic.id, (6, 6, ACCEPT)), epoch=1)
        assert answer["error_code"] == "SHARE_SESSION_NOT_FOUND"
        answer = away.acknowledge(part(topic.id, (4, 6, ACCEPT)), epoch=-1)
        assert parts(answer)[0]["error_code"] == NONE
        assert acquired(stranger.fetch(part(topic.id), epoch=0, max_wait=WAIT_MS)) == [(7, 9, 2)]
        for one_member in (member, away, stranger):
            one_member.connection.socket.close()


def test_waiting_members_are_answered_when_the_front_end_stops(group: str) -> None:
    with running_broker() as broker:
        topic = Topic(broker, group)
        members = [Member(broker, group) for _ in range(3)]
        for member in members:
            member.fetch(part(topic.id))
            member.send(max_wait=10 * WAIT_MS)
        broker.stop()
        for member in members:
            assert acquired(member.connection.receive()) == []
            member.connection.socket.close()
