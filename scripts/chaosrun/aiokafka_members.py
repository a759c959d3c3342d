"""Members of a group through aiokafka: `python -m scripts.chaosrun.aiokafka_members JOB`."""

import asyncio
import time
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError

from scripts.chaosrun.jobs import Job, stopped
from scripts.chaosrun.journal import Assigned, Committed, Consumed, Journal, Partition, Revoked, Troubled, now_us

COMMIT_EVERY_S: Final = 0.5
ASSIGNORS: Final = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """One consumer of the group. All its assignments are eager."""

    def __init__(self, job: Job, name: str, journal: Journal) -> None:
        self._job, self._name, self._journal = job, name, journal
        self._member_id, self._generation = "", -1
        self._uncommitted: dict[Partition, int] = {}
        self._commit_at = 0.0
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=job.bootstrap,
            client_id=name,
            group_id=job.group,
            group_instance_id=name if job.is_static else None,
            partition_assignment_strategy=(ASSIGNORS[job.strategy],),
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.heartbeat_ms,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )

    async def run(self, stopped: asyncio.Event) -> None:
        """Consume until the stop, then leave the group."""
        self._consumer.subscribe(self._job.topics, listener=self)
        await self._consumer.start()
        try:
            while not stopped.is_set():
                for messages in (await self._consumer.getmany(timeout_ms=100)).values():
                    for message in messages:
                        self._take(message)
                if self._uncommitted and time.monotonic() >= self._commit_at:
                    await self._commit()
        finally:
            await self._consumer.stop()

    def _take(self, message: Any) -> None:
        partition = (message.topic, message.partition)
        self._uncommitted[partition] = message.offset + 1
        self._journal.add(Consumed(
            at_us=now_us(), client=self._name, group=self._job.group, member_id=self._member_id,
            generation=self._generation, partition=partition, offset=message.offset, value=message.value.decode(),
        ))  # fmt: skip

    async def _commit(self) -> None:
        self._commit_at = time.monotonic() + COMMIT_EVERY_S
        offsets, self._uncommitted = self._uncommitted, {}
        try:
            await self._consumer.commit({TopicPartition(*partition): offset for partition, offset in offsets.items()})
        except KafkaError as error:
            self._journal.add(Troubled(at_us=now_us(), client=self._name, text=repr(error), fatal=False))
        else:
            self._journal.add(Committed(
                at_us=now_us(), client=self._name, group=self._job.group, offsets=list(offsets.items()),
            ))  # fmt: skip

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        if self._uncommitted:
            await self._commit()
        self._uncommitted.clear()
        partitions = sorted((entry.topic, entry.partition) for entry in revoked)
        self._journal.add(
            Revoked(at_us=now_us(), client=self._name, group=self._job.group, partitions=partitions, lost=False)
        )

    async def on_partitions_assigned(self, assigned: set[Any]) -> None:
        coordinator = self._consumer._coordinator  # the public API has neither member id nor generation
        self._member_id, self._generation = coordinator.member_id, coordinator.generation
        partitions = sorted((entry.topic, entry.partition) for entry in assigned)
        self._journal.add(Assigned(
            at_us=now_us(), client=self._name, group=self._job.group, member_id=self._member_id,
            generation=self._generation, added=partitions, owned=partitions,
        ))  # fmt: skip


async def _run(job: Job, journal: Journal) -> None:
    ended, stopping = stopped(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name in job.names:
            tasks.create_task(Member(job, name, journal).run(stopping))
        await asyncio.to_thread(ended.wait)
        stopping.set()


def main() -> None:
    """Run the members until stdin ends."""
    job = Job.of_this_process()
    with Journal(job.journal_path) as journal:
        asyncio.run(_run(job, journal))


if __name__ == "__main__":
    main()
