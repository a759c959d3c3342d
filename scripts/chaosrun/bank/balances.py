"""An accountant: the second stage, through aiokafka: `python -m scripts.chaosrun.bank.balances JOB`.

It reads fixed partitions of the ledger, without a group's protocol, and writes the balances of the accounts in them.
aiokafka does not name its group's member in a transaction, so only a producer of the same transactional id fences it.
Its memory is the topic of balances.
"""

import asyncio
import json
import os
import random
import threading
import traceback
from collections import defaultdict
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from scripts.chaosrun.bank.books import ACCOUNTANT_COUNT, BALANCES, LEDGER, PARTITIONS, Entry
from scripts.chaosrun.bank.producing import ABORTED, BEGIN_ANEW, WITHIN_S
from scripts.chaosrun.jobs import Job, stopped
from scripts.chaosrun.journal import Journal, Transacted, Troubled, now_us

AT_ONCE: Final = 200


class Accountant:
    """A consumer of some partitions of the ledger, and the producer of their balances."""

    def __init__(self, job: Job, journal: Journal) -> None:
        [self._name] = job.names
        self._prefix = f"{self._name}/{job.incarnation}"
        self._job, self._journal = job, journal
        self._chance = random.Random(self._prefix)
        first = int(self._name.rpartition("-")[2])
        self._partitions = range(first, PARTITIONS, ACCOUNTANT_COUNT)
        self._balances: dict[int, int] = defaultdict(int)
        self._number = 0
        self._producer = AIOKafkaProducer(
            bootstrap_servers=job.bootstrap, client_id=self._name, transactional_id=self._name,
            transaction_timeout_ms=job.timeout_ms,
        )  # fmt: skip
        self._consumer = self._reader(job.group)

    def _reader(self, group: str | None) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._job.bootstrap, client_id=self._name, group_id=group, enable_auto_commit=False,
            isolation_level="read_committed", auto_offset_reset="earliest",
        )  # fmt: skip

    async def run(self, stopped: threading.Event) -> None:
        """Write balances until the stop."""
        # A process fences its predecessor first: from then on no record that is read below changes.
        async with asyncio.timeout(WITHIN_S):
            await self._producer.start()
            await self._remember()
            await self._consumer.start()
        self._consumer.assign([TopicPartition(LEDGER, partition) for partition in self._partitions])
        while not stopped.is_set():
            batches = await self._consumer.getmany(timeout_ms=100, max_records=AT_ONCE)
            if batches:
                async with asyncio.timeout(WITHIN_S):
                    await self._take(batches)
        await self._consumer.stop()
        await self._producer.stop()

    async def _remember(self) -> None:
        reader = self._reader(None)
        await reader.start()
        partitions = [TopicPartition(BALANCES, partition) for partition in self._partitions]
        reader.assign(partitions)
        await reader.seek_to_beginning(*partitions)
        ends = await reader.end_offsets(partitions)
        while any([await reader.position(partition) < ends[partition] for partition in partitions]):
            for records in (await reader.getmany(timeout_ms=100)).values():
                self._balances.update({int(record.key): json.loads(record.value)["balance"] for record in records})
        # aiokafka raises its own cancellations here while it fetches.
        with suppress(asyncio.CancelledError):
            await reader.stop()

    async def _take(self, batches: dict[Any, list[Any]]) -> None:
        entries = [Entry.parse(record.value) for records in batches.values() for record in records]
        balances = dict.fromkeys((entry.account for entry in entries), 0)
        for account in balances:
            balances[account] = self._balances[account]
        for entry in entries:
            balances[entry.account] += entry.amount
        if await self._write(balances, {partition: records[-1].offset + 1 for partition, records in batches.items()}):
            self._balances.update(balances)
        else:
            for partition, records in batches.items():
                self._consumer.seek(partition, records[0].offset)

    async def _write(self, balances: dict[int, int], positions: dict[Any, int]) -> bool:
        """End the transaction. Returns True if it was committed."""
        self._number += 1
        transaction = f"{self._prefix}/{self._number}"
        is_commit = self._chance.random() >= ABORTED
        await self._producer.begin_transaction()
        for account, balance in balances.items():
            value = json.dumps({"balance": balance, "transaction": transaction})
            await self._producer.send(BALANCES, value.encode(), str(account).encode(), account % PARTITIONS)
        await self._producer.send_offsets_to_transaction(positions, self._job.group)
        if is_commit:
            await self._producer.commit_transaction()
        else:
            await self._producer.flush()
            await self._producer.abort_transaction()
        self._journal.add(
            Transacted(at_us=now_us(), client=self._name, transaction=transaction, is_commit=is_commit)
        )  # fmt: skip
        return is_commit


async def _run(job: Job, journal: Journal) -> None:
    await Accountant(job, journal).run(stopped())


def main() -> None:
    """Be an accountant until stdin ends; if its client fails it ends at once, and another process goes on."""
    job = Job.of_this_process()
    with Journal(job.journal_path) as journal:
        try:
            asyncio.run(_run(job, journal))
        except TimeoutError:
            text = f"a transaction was not ended in {WITHIN_S:.0f} s"
            journal.add(Troubled(at_us=now_us(), client=job.names[0], text=text, fatal=True))
            os._exit(BEGIN_ANEW)
        except Exception:
            traceback.print_exc()
            os._exit(BEGIN_ANEW)


if __name__ == "__main__":
    main()
