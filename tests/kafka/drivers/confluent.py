"""Driver of confluent-kafka (librdkafka)."""

import sys
import time
import uuid
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.kafka.drivers.serve import emit, emit_record, serve
from tests.kafka.records import Record

TIMEOUT_S = 30.0
SERVES_TIMEOUT_S = 5.0
SET = AlterConfigOpType.SET
ENDS = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}
# The client itself looks for topics that fit a pattern this often.
REFRESH_MS = 1000


class ConfluentDriver:
    """The driver has at most one reader, from `open`, and one member, from `join`."""

    def __init__(self, bootstrap: str) -> None:
        self.common: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.common)
        self.reader: Any = None
        self.transactor: Any = None
        self.member: Any = None
        self.topic = ""
        self.owned: list[int] = []
        self.positions: dict[tuple[str, int], int] = {}
        self.records_left: int | None = None

    @property
    def is_member(self) -> bool:
        return self.member is not None

    def shut(self) -> None:
        if self.member is not None:
            self.op_leave()

    def op_produce(self, topic: str, records: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
        producer = Producer(self.common | _producer_settings(options))
        outcomes: list[dict[str, Any]] = [{} for _ in records]
        for outcome, data in zip(outcomes, records, strict=True):
            _send(producer, topic, Record.from_json(data), outcome)
            if options["one_by_one"]:
                producer.flush(TIMEOUT_S)
        producer.flush(TIMEOUT_S)
        return outcomes

    def op_begin(self, transactional_id: str, timeout_ms: int) -> None:
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self.transactor = Producer(self.common | settings)
        self.transactor.init_transactions(TIMEOUT_S)

    def op_transact(self, topic: str, values: list[str], outcome: str, group: str | None, offset: int) -> None:
        self.transactor.begin_transaction()
        for value in values:
            self.transactor.produce(topic, value.encode(), partition=0)
        if group is not None:
            consumer = Consumer(self.common | {"group.id": group})
            position = TopicPartition(topic, 0, offset)
            self.transactor.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), TIMEOUT_S)
            consumer.close()
        if outcome == "commit":
            self.transactor.commit_transaction(TIMEOUT_S)
        elif outcome == "abort":
            self.transactor.flush(TIMEOUT_S)
            self.transactor.abort_transaction(TIMEOUT_S)
        else:
            self.transactor.flush(TIMEOUT_S)

    def op_end(self) -> None:
        self.transactor = None

    def op_read_committed(self, topic: str, count: int, timeout_ms: int) -> list[str]:
        self.op_open(topic, {"offsets": {"0": 0}})
        try:
            found = self.op_read(count, timeout_ms)
        finally:
            self.op_close()
        return [(Record.from_json(data).value or b"").decode() for data in found]

    def op_open(self, topic: str, start: Any) -> None:
        settings = {"group.id": f"reader-{uuid.uuid4()}", "enable.auto.commit": False, "enable.partition.eof": True}
        self.reader = Consumer(self.common | settings)
        self.reader.assign(self._start_positions(topic, start))
        if start == "latest":
            self._await_ends(len(self.reader.assignment()))

    def _start_positions(self, topic: str, start: Any) -> list[TopicPartition]:
        if isinstance(start, dict) and "offsets" in start:
            return [TopicPartition(topic, int(p), offset) for p, offset in start["offsets"].items()]
        partitions = self.reader.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        if isinstance(start, dict):
            wanted = [TopicPartition(topic, p, start["timestamp"]) for p in partitions]
            found: list[TopicPartition] = self.reader.offsets_for_times(wanted, timeout=TIMEOUT_S)
            return found
        offset = OFFSET_BEGINNING if start == "earliest" else OFFSET_END
        return [TopicPartition(topic, p, offset) for p in partitions]

    def _await_ends(self, partition_count: int) -> None:
        """Wait until librdkafka reports the ends, which it looks up when it starts to fetch."""
        deadline = time.monotonic() + TIMEOUT_S
        reached = 0
        while reached < partition_count and time.monotonic() < deadline:
            message = self.reader.poll(0.1)
            if message is not None and _is_end(message):
                reached += 1

    def op_read(self, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_ms / 1000
        found: list[Record] = []
        while len(found) < count and time.monotonic() < deadline:
            for message in self.reader.consume(500, timeout=0.05):
                if message.error() is None:
                    found.append(_record(message))
                elif not _is_end(message):
                    raise KafkaException(message.error())
        return [record.to_json() for record in found]

    def op_close(self) -> None:
        self.reader.close()
        self.reader = None

    def op_committed(self, group: str, topic: str) -> dict[str, int]:
        consumer = Consumer(self.common | {"group.id": group})
        try:
            partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
            found = consumer.committed([TopicPartition(topic, p) for p in partitions], timeout=TIMEOUT_S)
        finally:
            consumer.close()
        return {str(entry.partition): entry.offset for entry in found if entry.offset >= 0}

    def op_join(self, group: str, topic: str, options: dict[str, Any]) -> None:
        self.member = Consumer(self.common | {"group.id": group} | _member_settings(options))
        self.records_left = options["max_records"]
        self.topic = topic
        self.member.subscribe([options["pattern"] or topic])

    def poll_member(self) -> None:
        message = self.member.poll(0.1)
        owned = sorted(entry.partition for entry in self.member.assignment())
        if owned != self.owned:
            self.owned = owned
            emit("assignment", partitions=owned)
        if message is None:
            return
        if message.error() is not None:
            emit("trouble", message=str(message.error()))
        elif self.records_left is None or self.records_left > 0:
            self._report(message)

    def _report(self, message: Any) -> None:
        self.positions[message.topic(), message.partition()] = message.offset() + 1
        if self.records_left is not None:
            self.records_left -= 1
        emit_record(_record(message))

    def op_commit(self) -> None:
        offsets = [TopicPartition(topic, p, offset) for (topic, p), offset in self.positions.items()]
        self.member.commit(offsets=offsets, asynchronous=False)

    def op_pause(self, partitions: list[int]) -> None:
        self.member.pause([TopicPartition(self.topic, p) for p in partitions])

    def op_resume(self, partitions: list[int]) -> None:
        self.member.resume([TopicPartition(self.topic, p) for p in partitions])

    def op_seek(self, partition: int, position: int | str) -> None:
        if isinstance(position, int):
            self.positions[self.topic, partition] = position
        offset = ENDS[position] if isinstance(position, str) else position
        self.member.seek(TopicPartition(self.topic, partition, offset))

    def op_leave(self) -> None:
        self.member.close()
        self.member = None

    def op_create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        created = self.admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])
        created[topic].result(TIMEOUT_S)

    def op_delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def op_topics(self) -> list[str]:
        return list(self.admin.list_topics(timeout=TIMEOUT_S).topics)

    def op_topic_id(self, topic: str) -> str:
        description = self.admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
        return str(description.topic_id)

    def op_serves(self, topic: str, partitions: int) -> bool:
        consumer = Consumer(self.common | {"group.id": "none"})
        try:
            for p in range(partitions):
                consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=SERVES_TIMEOUT_S)
        except KafkaException:
            return False
        finally:
            consumer.close()
        return True

    def op_delete_records(self, topic: str, offsets: dict[str, int]) -> None:
        wanted = [TopicPartition(topic, int(p), offset) for p, offset in offsets.items()]
        for future in self.admin.delete_records(wanted).values():
            future.result(TIMEOUT_S)

    def op_set_offsets(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = [TopicPartition(topic, int(p), offset) for p, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, wanted)
        self.admin.alter_consumer_group_offsets([request])[group].result(TIMEOUT_S)

    def op_configure_group(self, group: str, configs: dict[str, str]) -> None:
        changes = [ConfigEntry(name, text, incremental_operation=SET) for name, text in configs.items()]
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=changes)
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def _producer_settings(options: dict[str, Any]) -> dict[str, Any]:
    names = {
        "compression": "compression.type",
        "acks": "acks",
        "idempotent": "enable.idempotence",
        "batch_bytes": "batch.size",
        "request_bytes": "message.max.bytes",
    }
    return {names[name]: value for name, value in options.items() if name in names and value is not None}


def _member_settings(options: dict[str, Any]) -> dict[str, Any]:
    names = {
        "reset": "auto.offset.reset",
        "session_timeout_ms": "session.timeout.ms",
        "auto_commit": "enable.auto.commit",
        "protocol": "group.protocol",
        "instance_id": "group.instance.id",
    }
    chosen = {names[name]: value for name, value in options.items() if name in names and value is not None}
    if options["cooperative"] and options["protocol"] == "classic":
        chosen["partition.assignment.strategy"] = "cooperative-sticky"
    return chosen | ({"topic.metadata.refresh.interval.ms": REFRESH_MS} if options["pattern"] else {})


def _send(producer: Any, topic: str, record: Record, outcome: dict[str, Any]) -> None:
    """Hand one record to the producer; a later poll or flush fills in its outcome."""

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            outcome.update(error=error.code(), message=str(error))
        else:
            outcome.update(partition=message.partition(), offset=message.offset())

    chosen: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
    if record.partition is not None:
        chosen["partition"] = record.partition
    if record.timestamp_ms is not None:
        chosen["timestamp"] = record.timestamp_ms
    producer.produce(topic, record.value, record.key, on_delivery=delivered, **chosen)
    producer.poll(0)


def _is_end(message: Any) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _record(message: Any) -> Record:
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
        partition=message.partition(),
        offset=message.offset(),
    )


def _error_code(error: Exception) -> int:
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return max(int(error.args[0].code()), -1)
    return -1


if __name__ == "__main__":
    serve(ConfluentDriver(sys.argv[1]), _error_code)
