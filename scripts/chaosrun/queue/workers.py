"""Redis workers of a queue: threads that take and settle records by `korvet_queue_take` and `korvet_queue_settle`."""

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import redis

from korvet.store.keys import Namespace, share_partition
from scripts.chaosrun.journal import Journal, Partition, Settled, Taken, now_us
from scripts.chaosrun.queue.members import Kind, kind
from scripts.chaosrun.stage import Stage

LIMIT: Final = 5
"""The default of share.delivery.count.limit."""
PAUSE_S: Final = 0.05
_WORDS: Final[dict[Kind, str]] = {"accept": "done", "release": "retry", "reject": "reject"}


def keys_of(partition: Partition, group: str) -> list[str]:
    """The keys of the functions of a share partition."""
    return list(share_partition(Namespace("default").partition(*partition), group))


class Worker(threading.Thread):
    """A worker that goes from partition to partition, until it is stopped."""

    def __init__(
        self,
        stage: Stage,
        journal: Journal,
        name: str,
        group: str,
        partitions: Sequence[Partition],
        lock_ms: int,
        work_ms: int,
    ) -> None:
        super().__init__(name=name)
        self.stopped = threading.Event()
        self._stage, self._journal, self._group = stage, journal, group
        self._partitions, self._lock_ms, self._work_s = partitions, lock_ms, work_ms / 1000

    def run(self) -> None:
        """Work until the stop; after an error with another connection."""
        while not self.stopped.is_set():
            try:
                with self._stage.redis() as client:
                    while not self.stopped.wait(PAUSE_S):
                        for partition in self._partitions:
                            self._work(client, partition)
            except (redis.RedisError, OSError):
                self.stopped.wait(PAUSE_S)

    def _work(self, client: Any, partition: Partition) -> None:
        keys = keys_of(partition, self._group)
        _, *records = client.fcall("korvet_queue_take", 4, *keys, self._group, self.name, 1, self._lock_ms)
        for offset, deliveries, _, fields in records:
            value = dict(zip(fields[::2], fields[1::2], strict=True))[b"value"].decode()
            self._journal.add(Taken(
                at_us=now_us(), client=self.name, group=self._group, partition=partition, offset=offset, value=value,
                deliveries=deliveries,
            ))  # fmt: skip
            time.sleep(self._work_s)
            chosen, error = kind(value, deliveries), ""
            try:
                client.fcall(
                    "korvet_queue_settle", 4, *keys, self._group, self.name, _WORDS[chosen], 0, LIMIT, offset
                )  # fmt: skip
            except (redis.RedisError, OSError) as failed:
                error = str(failed) or repr(failed)
            self._journal.add(Settled(
                at_us=now_us(), client=self.name, group=self._group, value=value, kind=chosen, error=error
            ))  # fmt: skip
