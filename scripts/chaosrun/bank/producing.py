"""Transactions on the ledger by librdkafka, for tellers and clerks.

A transaction ends in one of three ways: the journal has its commit, or its abort, or neither. The end is unknown if the
producer was fenced, failed or died. Another process goes on after that (`BEGIN_ANEW`), and begins with InitProducerId.
"""

import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from scripts.chaosrun.bank.books import LEDGER, Order, entries, partition_of
from scripts.chaosrun.jobs import RECONNECT_MAX_MS, Job, stopped
from scripts.chaosrun.journal import Journal, Transacted, Troubled, now_us

BEGIN_ANEW: Final = 3
"""The exit code of a process that cannot go on, but has a successor that can."""
ABORTED: Final = 0.15
"""The share of transactions that are aborted on purpose."""
STEP_S: Final = 5.0
WITHIN_S: Final = 75.0

Read = tuple[list[TopicPartition], object]  # positions after the records read, and their consumer in its group


class Ended(Exception):
    """The producer cannot go on."""


class Poster:
    """The transactional producer of a client."""

    def __init__(self, job: Job, journal: Journal) -> None:
        [self.name] = job.names
        self._prefix = f"{self.name}/{job.incarnation}"
        self._journal = journal
        self.chance = random.Random(self._prefix)
        self._number = 0
        self._producer = Producer({
            "bootstrap.servers": job.bootstrap, "client.id": self.name, "transactional.id": self.name,
            "transaction.timeout.ms": job.timeout_ms, "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
        })  # fmt: skip

    def begin(self) -> None:
        """Take over the transactional id. Raises Ended."""
        try:
            self._patiently(self._producer.init_transactions)
        except KafkaException as error:
            raise Ended(str(error)) from error

    def post(self, orders: list[Order], read: Read | None = None) -> bool:
        """Carry out orders in a transaction. Returns True if it was committed.

        Raises Ended if the end is not known.
        """
        self._number += 1
        transaction = f"{self._prefix}/{self._number}"
        is_commit = self.chance.random() >= ABORTED
        try:
            self._write(transaction, orders, read)
            if is_commit:
                self._patiently(self._producer.commit_transaction)
            else:
                self._abort()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if not reason.txn_requires_abort():
                raise Ended(str(reason)) from error
            is_commit = False
            self._abort_after(reason)
        self._journal.add(
            Transacted(at_us=now_us(), client=self.name, transaction=transaction, is_commit=is_commit)
        )  # fmt: skip
        return is_commit

    def _write(self, transaction: str, orders: list[Order], read: Read | None) -> None:
        self._producer.begin_transaction()
        for entry in entries(transaction, orders):
            self._producer.produce(
                LEDGER, entry.to_json(), key=str(entry.account), partition=partition_of(entry.account)
            )  # fmt: skip
        if read is not None:
            self._patiently(self._producer.send_offsets_to_transaction, *read)

    def _abort(self) -> None:
        # By then a transaction has all its records in the log, or none, or some on their way.
        if self.chance.random() < 0.5:
            self._producer.flush(STEP_S)
        self._patiently(self._producer.abort_transaction)

    def _abort_after(self, reason: KafkaError) -> None:
        self._journal.add(Troubled(at_us=now_us(), client=self.name, text=str(reason), fatal=False))
        try:
            self._patiently(self._producer.abort_transaction)
        except KafkaException as error:
            raise Ended(str(error)) from error

    def _patiently(self, call: Callable[..., None], *args: object) -> None:
        """Repeat a call as long as librdkafka says that it may be repeated. Raises KafkaException for other errors."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                return call(*args, STEP_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if time.monotonic() > deadline:
                    text = f"{call.__name__} was not answered in {WITHIN_S:.0f} s: {error}"
                    self._journal.add(Troubled(at_us=now_us(), client=self.name, text=text, fatal=True))
                    raise Ended(text) from error


def run(work: Callable[[Job, Journal, threading.Event], Any]) -> None:
    """Work until stdin ends; a worker that cannot go on exits at once, without a word to the broker."""
    job, end = Job.of_this_process(), stopped()
    with Journal(job.journal_path) as journal:
        try:
            work(job, journal, end)
        except Ended:
            traceback.print_exc()
            os._exit(BEGIN_ANEW)
