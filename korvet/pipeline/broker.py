"""The jobs' questions to a broker: topics, offsets, settings. A thin layer over confluent-kafka's AdminClient.

It works on korvet and on any Kafka since 3.1. Failures become `PipelineError` with one sentence.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, OffsetSpec, ResourceType

from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.plan.positions import Partition as Partition
from korvet.pipeline.plan.positions import Position as Position
from korvet.pipeline.plan.positions import Topic as Topic

TIMEOUT_S: Final = 30.0
_CLOSE_S: Final = 10.0
_log: Final = logging.getLogger(__name__)
# Their constructors have no types.
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
}

_NOT_LET_IN = {KafkaError._AUTHENTICATION, KafkaError._SSL}
_OCCUPIED = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.GROUP_ID_NOT_FOUND}
"""The refusals of a commit without a member: the group has members, or is a share group."""
_LEADERLESS = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._NOENT,
}
_LEADERS: Final = 20
_FIRST_LOOK_S: Final = 1.0
_MOST_ERRORS: Final = 16
_LEADER_AFTER_S: Final = 0.25
_STABLE_AFTER_S: Final = 0.1


def close_consumer(consumer: Consumer, within_s: float = _CLOSE_S) -> None:
    """Close a consumer, or leave it to itself after a while.

    librdkafka locks itself out for ever if it learns while it closes that an offset is out of range (its issue 4514).
    """
    closing = Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(within_s)
    if closing.is_alive():
        _log.warning("A consumer did not close within %g s and is left open; its process goes on", within_s)


def _metadata(partition: KafkaPartition) -> str:
    """The metadata of a committed offset.

    librdkafka since 2.6.1 keeps it as it came (its pull request 4876), and confluent-kafka reads it up to a zero. This
    client commits it with a zero, others do not. What then follows may be no UTF-8.
    """
    try:
        return partition.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


class Broker:
    """A connection to the brokers of one cluster, a context manager. Not picklable: open it where it is used.

    :param settings: librdkafka's settings, with ``bootstrap.servers``.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._address = settings.get("bootstrap.servers", "")
        # librdkafka would print the errors of connections. Calls report only that no broker answered in time.
        self._errors: deque[KafkaError] = deque(maxlen=_MOST_ERRORS)
        self._settings: dict[str, Any] = {**settings, "log_level": 0, "error_cb": self._errors.append}
        self._retired: AdminClient | None = None
        try:
            self._admin = AdminClient(self._settings)
        except KafkaException as error:
            raise PipelineError(f"The client does not take its settings: {error.args[0].str().strip()}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # The admin client has no close; librdkafka's threads end with the last reference.
        del self._admin, self._retired

    def topic_names(self) -> list[str]:
        """All topics but the internal ones, sorted.

        :raises BrokerUnreachable:
        """
        return sorted(name for name in self._cluster().topics if not name.startswith("__"))

    def log_ends(self, names: Iterable[str], *, committed_only: bool) -> dict[str, dict[int, int] | PipelineError]:
        """Log ends of topics by partition, or the reason why a topic has none; two requests for any number of topics.

        :raises BrokerUnreachable:
        """
        known = self._cluster().topics
        there = {name: sorted(known[name].partitions) for name in names if name in known}
        partitions = [(name, number) for name, numbers in there.items() for number in numbers]
        reply = self._answers(dict.fromkeys(partitions, _LATEST), committed_only=committed_only)
        return {name: self._ends_of(name, there.get(name), reply) for name in names}

    def _ends_of(
        self, name: str, numbers: Iterable[int] | None, reply: Mapping[Partition, Position | PipelineError]
    ) -> dict[int, int] | PipelineError:
        if numbers is None:
            return UnknownTopic(f"topic {name}: it does not exist at {self._address}")
        ends = {}
        for number in numbers:
            answer = reply[name, number]
            if isinstance(answer, PipelineError):
                return answer
            ends[number] = answer.offset
        return ends

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """The named topics, each with its id and partitions.

        :raises UnknownTopic: if a topic does not exist.
        :raises BrokerUnreachable, PipelineError:
        """
        wanted = list(names)
        if not wanted:
            return {}
        futures = self._admin.describe_topics(TopicCollection(wanted), request_timeout=TIMEOUT_S)
        found = {}
        for name, future in futures.items():
            reply = self._result(future, f"topic {name}")
            numbers = tuple(sorted(partition.id for partition in reply.partitions))
            found[name] = Topic(name=name, id=str(reply.topic_id), partitions=numbers)
        return found

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, Position]:
        """Log start offsets."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST), committed_only=False)

    def latest(self, partitions: Iterable[Partition], *, committed_only: bool) -> dict[Partition, Position]:
        """Log ends: high watermarks, or last stable offsets with ``committed_only``."""
        return self._offsets(dict.fromkeys(partitions, _LATEST), committed_only=committed_only)

    def at_times(self, times_ms: Mapping[Partition, int], *, committed_only: bool) -> dict[Partition, Position]:
        """The first offset with a record of that time or later; -1 if there is none."""
        wanted = {partition: OffsetSpec.for_timestamp(ms) for partition, ms in times_ms.items()}
        return self._offsets(wanted, committed_only=committed_only)

    def topic_settings(self, name: str) -> dict[str, str]:
        """The settings in force for a topic, by Kafka's names.

        :raises UnknownTopic, BrokerUnreachable, PipelineError:
        """
        ((_, future),) = self._describe([name]).items()
        return self._entries(name, future)

    def topics_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """As `topic_settings`, of the topics that exist and whose settings this client may read.

        :raises BrokerUnreachable:
        """
        found = {}
        for name, future in self._describe(names).items():
            try:
                found[name] = self._entries(name, future)
            except BrokerUnreachable:
                raise
            except PipelineError:
                pass
        return found

    def _describe(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(resources, request_timeout=TIMEOUT_S) if resources else {}
        return {resource.name: future for resource, future in futures.items()}

    def _entries(self, name: str, future: Future[Any]) -> dict[str, str]:
        entries: Mapping[str, Any] = self._result(future, f"settings of topic {name}")
        return {key: entry.value for key, entry in entries.items() if entry.value is not None}

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> bool:
        """Create a topic; false if a topic of that name exists.

        :raises BrokerUnreachable, PipelineError:
        """
        topic = NewTopic(name, num_partitions=partitions, config=dict(settings))
        (future,) = self._admin.create_topics([topic], request_timeout=TIMEOUT_S).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self._failed(f"topic {name}", error) from None
        return True

    def group_ids(self, prefix: str) -> list[str]:
        """The ids of groups that begin with the prefix, sorted.

        :raises BrokerUnreachable, PipelineError:
        """
        reply = self._result(self._admin.list_consumer_groups(request_timeout=TIMEOUT_S), "groups")
        for error in reply.errors:
            raise self._failed("groups", KafkaException(error))
        return sorted(group.group_id for group in reply.valid if group.group_id.startswith(prefix))

    def committed(
        self, group_id: str, *, stable: bool = False, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, Position]:
        """The positions of a group, of all its partitions or of some; none if there is no such group.

        :param stable: wait for transactions that commit some of them.
        :raises BrokerUnreachable, PipelineError:
        """
        deadline = time.monotonic() + TIMEOUT_S
        requested = None if partitions is None else [KafkaPartition(*partition) for partition in partitions]
        reply = self._positions(group_id, stable, requested)
        while any(_is_unstable(partition.error) for partition in reply) and time.monotonic() < deadline:
            time.sleep(_STABLE_AFTER_S)
            reply = self._positions(group_id, stable, requested)
        for partition in reply:
            if partition.error is not None:
                raise self._failed(
                    f"{partition.topic}-{partition.partition} of group {group_id}", KafkaException(partition.error)
                )
        return {
            (partition.topic, partition.partition): Position(
                offset=partition.offset, leader_epoch=partition.leader_epoch, metadata=_metadata(partition)
            )
            for partition in reply
            if partition.offset >= 0
        }

    def commit(self, group_id: str, positions: Mapping[Partition, Position]) -> None:
        """Set offsets of a group that has no members.

        :raises UnknownTopic, BrokerUnreachable, PipelineError: the text names the first partition that failed.
        """
        if not positions:
            return
        partitions = []
        for (topic, partition), position in positions.items():
            # The client takes no None for an epoch.
            epoch = {} if position.leader_epoch is None else {"leader_epoch": position.leader_epoch}
            topic_partition = KafkaPartition(topic, partition, position.offset, position.metadata, **epoch)
            partitions.append(topic_partition)
        request = ConsumerGroupTopicPartitions(group_id, partitions)
        self._check_is_there(f"offsets of group {group_id}")
        (future,) = self._admin.alter_consumer_group_offsets([request], request_timeout=TIMEOUT_S).values()
        reply = self._result(future, f"offsets of group {group_id}")
        for topic_partition in reply.topic_partitions:
            if (error := topic_partition.error) is not None:
                what = f"{topic_partition.topic}-{topic_partition.partition} of group {group_id}"
                if error.code() in _OCCUPIED:
                    raise PipelineError(
                        f"{what}: other clients have joined the group, so it takes no commit but theirs "
                        f"({error.name()}); end those that 'korvet groups describe {group_id}' shows, and delete the "
                        "group if it is a share group"
                    )
                raise self._failed(what, KafkaException(error))

    def _positions(self, group_id: str, stable: bool, requested: list[KafkaPartition] | None) -> list[KafkaPartition]:
        self._check_is_there(f"offsets of group {group_id}")
        (future,) = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id, requested)], require_stable=stable, request_timeout=TIMEOUT_S
        ).values()
        try:
            return list(self._result(future, f"offsets of group {group_id}").topic_partitions)
        except UnknownGroup:
            return []

    def _check_is_there(self, what: str) -> None:
        """Ask a broker before its group's coordinator.

        In an outage librdkafka 2.16 aborts the process at a request for a coordinator (an assertion on eonce->refcnt).

        :raises BrokerUnreachable: if no broker answers.
        """
        self._result(self._admin.describe_cluster(request_timeout=TIMEOUT_S), what)

    def _cluster(self) -> ClusterMetadata:
        failure = KafkaException(KafkaError(KafkaError._TIMED_OUT))
        for look_s in _looks(TIMEOUT_S):
            try:
                found = self._admin.list_topics(timeout=look_s)
            except KafkaException as error:
                failure = error
            else:
                self._errors.clear()
                return found
            if failure.args[0].code() not in _AWAY or self._refusal(self._admin) is not None:
                break
        raise self._failed("topics", failure) from None

    def _offsets(self, wanted: Mapping[Partition, OffsetSpec], *, committed_only: bool) -> dict[Partition, Position]:
        found = {}
        for partition, answer in self._answers(wanted, committed_only=committed_only).items():
            if isinstance(answer, PipelineError):
                raise answer
            found[partition] = answer
        return found

    def _answers(
        self, wanted: Mapping[Partition, OffsetSpec], *, committed_only: bool
    ) -> dict[Partition, Position | PipelineError]:
        if not wanted:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        requested = {KafkaPartition(topic, number): spec for (topic, number), spec in wanted.items()}
        admin = self._admin
        for _ in range(_LEADERS):
            futures = admin.list_offsets(requested, isolation_level=isolation, request_timeout=TIMEOUT_S)
            if not any(_is_leaderless(future) for future in futures.values()):
                break
            # The client sends the leader epoch that it knows. Only new metadata brings a newer one.
            time.sleep(_LEADER_AFTER_S)
            self.topic_names()
        return {(each.topic, each.partition): self._answer(each, future) for each, future in futures.items()}

    def _answer(self, partition: KafkaPartition, future: Future[Any]) -> Position | PipelineError:
        try:
            reply = self._result(future, f"offsets of {partition.topic}-{partition.partition}")
        except PipelineError as error:
            return error
        epoch = reply.leader_epoch if reply.leader_epoch is not None and reply.leader_epoch >= 0 else None
        return Position(offset=reply.offset, leader_epoch=epoch)

    def _result(self, future: Future[Any], what: str) -> Any:
        admin = self._admin  # A request ends with its client, which another thread may replace.
        failure = KafkaException(KafkaError(KafkaError._TIMED_OUT))
        for look_s in _looks(TIMEOUT_S + 5):
            try:
                found = future.result(look_s)
            except KafkaException as error:
                failure = error
                break
            except TimeoutError:
                if self._refusal(admin) is not None:
                    break
            else:
                self._errors.clear()
                return found
        failed = self._failed(what, failure)
        if isinstance(failed, BrokerUnreachable) and admin is self._admin:
            # Once a group's coordinator was away, librdkafka lets all later requests for the group time out. The client
            # lives until the next failure, for its end beside such a request may end the process (an assertion).
            self._retired, self._admin = admin, AdminClient(self._settings)
        raise failed from None

    def _failed(self, what: str, failure: KafkaException) -> PipelineError:
        error = failure.args[0]
        if error.code() in _AWAY:
            errors = [one for one in self._errors if one.code() == KafkaError._TRANSPORT]
            error = self._refusal(self._admin) or (errors[-1] if errors else error)
        return explained(what, error, self._address)

    def _refusal(self, admin: AdminClient) -> KafkaError | None:
        """The reason why a broker does not let this client in, if one said so since the last failure."""
        admin.poll(0)
        return next((error for error in reversed(self._errors) if error.code() in _NOT_LET_IN), None)


def _looks(left_s: float) -> Iterator[float]:
    """Waiting times that add up to ``left_s``; between them the caller checks for a refused login."""
    look_s = _FIRST_LOOK_S
    while left_s > 0:
        yield min(look_s, left_s)
        left_s -= look_s
        look_s *= 2


def _is_leaderless(future: Future[Any]) -> bool:
    """True if the client does not know the partition's leader yet."""
    try:
        error = future.exception(TIMEOUT_S + 5)
    except TimeoutError:
        return False
    return isinstance(error, KafkaException) and error.args[0].code() in _LEADERLESS


def _is_unstable(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT


def explained(what: str, error: KafkaError, address: str) -> PipelineError:
    """A client's error as one sentence: what failed, why, and what to do."""
    match error.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
            return UnknownTopic(f"{what}: it does not exist at {address}")
        case KafkaError.GROUP_ID_NOT_FOUND:
            return UnknownGroup(f"{what}: it does not exist at {address}")
        case code if code in _NOT_LET_IN:
            return BrokerUnreachable(
                f"{what}: {address} does not let this client in ({error.str()}); see the client's settings for TLS and "
                "its login"
            )
        case code if code in _AWAY:
            return BrokerUnreachable(
                f"{what}: no broker answers at {address} ({error.str()}); "
                "start one with 'korvet serve', or name another"
            )
        case code if code in _LEADERLESS:
            return BrokerUnreachable(
                f"{what}: no broker leads it at {address} now ({error.str()}); see whether its storage is up"
            )
    return PipelineError(f"{what}: {error.name()}: {error.str()}")


class UnknownGroup(PipelineError):
    """A named group does not exist."""
