"""Driver of kafka-python."""

import sys
import time
from typing import Any

import kafka
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from tests.kafka.drivers.alike import Reader, error_code, member_settings, received, sent_at, to_send
from tests.kafka.drivers.serve import emit, serve
from tests.kafka.records import Record

TIMEOUT_S = 30.0

# A poll that ends during a join can lose the assignment for good. In 3.0.12 the leader's own assignment makes
# need_rejoin() false before the next poll takes the finished join. So polls are long, and the first one is longest.
POLL_MS = 500
JOINING_POLL_MS = 5000


class KafkaPythonDriver(Reader):
    """The driver."""

    @property
    def is_member(self) -> bool:
        return self.member is not None

    def shut(self) -> None:
        if self.member is not None:
            self.op_leave()

    def op_produce(self, topic: str, records: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, **_producer_settings(options))
        try:
            if options["one_by_one"]:
                return [_outcome(producer.send(topic, **to_send(data))) for data in records]
            futures = [producer.send(topic, **to_send(data)) for data in records]
            return [_outcome(future) for future in futures]
        finally:
            producer.close()

    def op_begin(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactor = KafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self.transactor.init_transactions()

    def op_transact(self, topic: str, values: list[str], outcome: str, group: str | None, offset: int) -> None:
        self.transactor.begin_transaction()
        for value in values:
            self.transactor.send(topic, value.encode(), partition=0)
        if group is not None:
            positions = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
            self.transactor.send_offsets_to_transaction(positions, ConsumerGroupMetadata(group, -1, "", None))
        if outcome == "commit":
            self.transactor.commit_transaction()
        elif outcome == "abort":
            self.transactor.flush(TIMEOUT_S)
            self.transactor.abort_transaction()
        else:
            self.transactor.flush(TIMEOUT_S)

    def op_end(self) -> None:
        self.transactor.close(0)
        self.transactor = None

    def op_read_committed(self, topic: str, count: int, timeout_ms: int) -> list[str]:
        self.reader = KafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, isolation_level="read_committed"
        )
        partition = TopicPartition(topic, 0)
        self.reader.assign([partition])
        self.reader.seek_to_beginning(partition)
        try:
            found = self.op_read(count, timeout_ms)
        finally:
            self.op_close()
        return [(Record.from_json(data).value or b"").decode() for data in found]

    def op_open(self, topic: str, start: Any) -> None:
        self.reader = KafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)
        partitions = self.reader.partitions_for_topic(topic)
        if isinstance(start, dict) and "offsets" in start:
            partitions = [int(p) for p in start["offsets"]]
        assigned = [TopicPartition(topic, p) for p in partitions]
        self.reader.assign(assigned)
        self._seek(assigned, start)
        for partition in assigned:
            self.reader.position(partition)

    def _seek(self, assigned: list[Any], start: Any) -> None:
        if start == "earliest":
            self.reader.seek_to_beginning(*assigned)
        elif start == "latest":
            self.reader.seek_to_end(*assigned)
        elif "offsets" in start:
            for partition in assigned:
                self.reader.seek(partition, start["offsets"][str(partition.partition)])
        else:
            found = self.reader.offsets_for_times(dict.fromkeys(assigned, start["timestamp"]))
            for partition, position in found.items():
                if position is None:
                    self.reader.seek_to_end(partition)
                else:
                    self.reader.seek(partition, position.offset)

    def op_read(self, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_ms / 1000
        found: list[Record] = []
        while len(found) < count and time.monotonic() < deadline:
            for messages in self.reader.poll(timeout_ms=100).values():
                found.extend(received(message) for message in messages)
        return [record.to_json() for record in found]

    def op_close(self) -> None:
        self.reader.close()
        self.reader = None

    def op_committed(self, group: str, topic: str) -> dict[str, int]:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False)
        try:
            partitions = consumer.partitions_for_topic(topic)
            found = {p: consumer.committed(TopicPartition(topic, p)) for p in partitions}
        finally:
            consumer.close()
        return {str(p): offset for p, offset in found.items() if offset is not None}

    def op_join(self, group: str, topic: str, options: dict[str, Any]) -> None:
        self.member = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, **member_settings(options))
        self.records_left = options["max_records"]
        self.member.subscribe([topic], listener=_Listener(self))

    def poll_member(self) -> None:
        polled = self.member.poll(timeout_ms=POLL_MS if self.owned else JOINING_POLL_MS)
        for partition, messages in polled.items():
            for message in messages:
                self.report(partition, message)

    def op_commit(self) -> None:
        self.member.commit({p: OffsetAndMetadata(offset, "", -1) for p, offset in self.positions.items()})

    def op_leave(self) -> None:
        self.member.close()
        self.member = None

    def op_create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        with _Admin(self.bootstrap) as admin:
            admin.create_topics({topic: wanted})

    def op_delete_topic(self, topic: str) -> None:
        with _Admin(self.bootstrap) as admin:
            admin.delete_topics([topic])

    def op_topics(self) -> list[str]:
        with _Admin(self.bootstrap) as admin:
            return list(admin.list_topics())

    def op_set_offsets(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = {TopicPartition(topic, int(p)): OffsetAndMetadata(o, "", -1) for p, o in offsets.items()}
        with _Admin(self.bootstrap) as admin:
            outcomes = admin.alter_group_offsets(group, wanted)
        for error in outcomes.values():
            if error is not kafka.errors.NoError:
                raise error()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Reports an assignment inside the poll that got it."""

    def __init__(self, driver: KafkaPythonDriver) -> None:
        self.driver = driver

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: the next assignment names all partitions."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.driver.owned = sorted(entry.partition for entry in assigned)
        emit("assignment", partitions=self.driver.owned)


class _Admin:
    """A KafkaAdminClient, closed at the end of the block."""

    def __init__(self, bootstrap: str) -> None:
        self.client = KafkaAdminClient(bootstrap_servers=bootstrap)

    def __enter__(self) -> Any:
        return self.client

    def __exit__(self, *exception: object) -> None:
        self.client.close()


def _producer_settings(options: dict[str, Any]) -> dict[str, Any]:
    names = {"acks": "acks", "idempotent": "enable_idempotence", "batch_bytes": "batch_size"}
    settings = {names[name]: value for name, value in options.items() if name in names and value is not None}
    if options["compression"] not in (None, "none"):
        settings["compression_type"] = options["compression"]
    if options["request_bytes"] is not None:
        settings["max_request_size"] = options["request_bytes"]
    return settings


def _outcome(future: Any) -> dict[str, Any]:
    try:
        sent = future.get(timeout=TIMEOUT_S)
    except KafkaError as error:
        return {"error": error_code(error), "message": repr(error)}
    return sent_at(sent)


if __name__ == "__main__":
    serve(KafkaPythonDriver(sys.argv[1]), error_code)
