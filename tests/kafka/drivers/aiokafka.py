"""Driver of aiokafka."""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.kafka.drivers.alike import Reader, error_code, member_settings, received, sent_at, to_send
from tests.kafka.drivers.serve import emit, serve
from tests.kafka.records import Record

TIMEOUT_MS = 30_000


class AiokafkaDriver(Reader):
    """The driver."""

    async def shut(self) -> None:
        if self.member is not None:
            await self.op_leave()

    async def op_produce(
        self, topic: str, records: list[dict[str, Any]], options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, **_producer_settings(options))
        await producer.start()
        try:
            if options["one_by_one"]:
                return [await _outcome(await producer.send(topic, **to_send(data))) for data in records]
            futures = [await producer.send(topic, **to_send(data)) for data in records]
            return [await _outcome(future) for future in futures]
        finally:
            await producer.stop()

    async def op_begin(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactor = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        await self.transactor.start()

    async def op_transact(self, topic: str, values: list[str], outcome: str, group: str | None, offset: int) -> None:
        await self.transactor.begin_transaction()
        for value in values:
            await self.transactor.send(topic, value.encode(), partition=0)
        if group is not None:
            await self.transactor.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group)
        if outcome == "commit":
            await self.transactor.commit_transaction()
        elif outcome == "abort":
            await self.transactor.flush()
            await self.transactor.abort_transaction()
        else:
            await self.transactor.flush()

    async def op_end(self) -> None:
        await self.transactor.stop()
        self.transactor = None

    async def op_read_committed(self, topic: str, count: int, timeout_ms: int) -> list[str]:
        self.reader = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, isolation_level="read_committed"
        )
        await self.reader.start()
        partition = TopicPartition(topic, 0)
        self.reader.assign([partition])
        await self.reader.seek_to_beginning(partition)
        try:
            found = await self.op_read(count, timeout_ms)
        finally:
            await self.op_close()
        return [(Record.from_json(data).value or b"").decode() for data in found]

    async def op_open(self, topic: str, start: Any) -> None:
        self.reader = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)
        await self.reader.start()
        assigned = [TopicPartition(topic, p) for p in await self._partitions(topic, start)]
        self.reader.assign(assigned)
        await self._seek(assigned, start)
        for partition in assigned:
            await self.reader.position(partition)

    async def _partitions(self, topic: str, start: Any) -> list[int]:
        if isinstance(start, dict) and "offsets" in start:
            return [int(p) for p in start["offsets"]]
        # A consumer knows only the partitions of the topics that it subscribed to.
        async with _Admin(self.bootstrap) as admin:
            [description] = await admin.describe_topics([topic])
        return [partition["partition"] for partition in description["partitions"]]

    async def _seek(self, assigned: list[Any], start: Any) -> None:
        if start == "earliest":
            await self.reader.seek_to_beginning(*assigned)
        elif start == "latest":
            await self.reader.seek_to_end(*assigned)
        elif "offsets" in start:
            for partition in assigned:
                self.reader.seek(partition, start["offsets"][str(partition.partition)])
        else:
            found = await self.reader.offsets_for_times(dict.fromkeys(assigned, start["timestamp"]))
            for partition, position in found.items():
                if position is None:
                    await self.reader.seek_to_end(partition)
                else:
                    self.reader.seek(partition, position.offset)

    async def op_read(self, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_ms / 1000
        found: list[Record] = []
        while len(found) < count and time.monotonic() < deadline:
            for messages in (await self.reader.getmany(timeout_ms=100)).values():
                found.extend(received(message) for message in messages)
        return [record.to_json() for record in found]

    async def op_close(self) -> None:
        await self.reader.stop()
        self.reader = None

    async def op_committed(self, group: str, topic: str) -> dict[str, int]:
        async with _Admin(self.bootstrap) as admin:
            found = await admin.list_consumer_group_offsets(group)
        return {
            str(p.partition): position.offset
            for p, position in found.items()
            if p.topic == topic and position.offset >= 0
        }

    async def op_join(self, group: str, topic: str, options: dict[str, Any]) -> None:
        self.member = AIOKafkaConsumer(
            topic, bootstrap_servers=self.bootstrap, group_id=group, **member_settings(options)
        )
        self.records_left = options["max_records"]
        await self.member.start()

    async def poll_member(self) -> None:
        polled = await self.member.getmany(timeout_ms=100)
        owned = sorted(entry.partition for entry in self.member.assignment())
        if owned != self.owned:
            self.owned = owned
            emit("assignment", partitions=owned)
        for partition, messages in polled.items():
            for message in messages:
                self.report(partition, message)

    async def op_commit(self) -> None:
        await self.member.commit(self.positions)

    async def op_leave(self) -> None:
        await self.member.stop()
        self.member = None

    async def op_create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        async with _Admin(self.bootstrap) as admin:
            answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)], TIMEOUT_MS)
        _raise_for([(name, code) for name, code, *_ in answer.topic_errors])

    async def op_delete_topic(self, topic: str) -> None:
        async with _Admin(self.bootstrap) as admin:
            answer = await admin.delete_topics([topic], TIMEOUT_MS)
        _raise_for(answer.topic_error_codes)

    async def op_topics(self) -> list[str]:
        async with _Admin(self.bootstrap) as admin:
            names: list[str] = await admin.list_topics()
        return names


class _Admin:
    """An AIOKafkaAdminClient, closed at the end of the block."""

    def __init__(self, bootstrap: str) -> None:
        self.client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)

    async def __aenter__(self) -> Any:
        await self.client.start()
        return self.client

    async def __aexit__(self, *exception: object) -> None:
        await self.client.close()


def _raise_for(codes: list[tuple[str, int]]) -> None:
    for topic, code in codes:
        if code:
            raise for_code(code)(topic)


def _producer_settings(options: dict[str, Any]) -> dict[str, Any]:
    names = {
        "idempotent": "enable_idempotence",
        "batch_bytes": "max_batch_size",
        "request_bytes": "max_request_size",
    }
    settings = {names[name]: value for name, value in options.items() if name in names and value is not None}
    if options["compression"] not in (None, "none"):
        settings["compression_type"] = options["compression"]
    if options["acks"] is not None:
        settings["acks"] = "all" if options["acks"] == -1 else options["acks"]
    return settings


async def _outcome(future: Any) -> dict[str, Any]:
    try:
        sent = await future
    except Exception as error:
        return {"error": error_code(error), "message": repr(error)}
    if sent is None:
        return {}
    return sent_at(sent)


class Blocking:
    """The driver's commands as calls that block. Its clients run in the event loop of a thread."""

    def __init__(self, driver: AiokafkaDriver, portal: BlockingPortal) -> None:
        self._driver = driver
        self._portal = portal

    @property
    def is_member(self) -> bool:
        return self._driver.member is not None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._driver, name)
        return lambda **named: self._portal.call(partial(call, **named))

    def poll_member(self) -> None:
        self._portal.call(self._driver.poll_member)

    def shut(self) -> None:
        self._portal.call(self._driver.shut)


if __name__ == "__main__":
    with start_blocking_portal() as portal:
        serve(Blocking(AiokafkaDriver(sys.argv[1]), portal), error_code)
