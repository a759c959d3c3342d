"""Transactions: the library's functions as typed calls, and the carrying out of what was decided.

A transaction's state is in its transactional id's shard. Ending one is a sequence: the decision there, then a control
batch on each of its partitions, then each group's offsets, and when all of that is done its completion in the shard.
Each step may be repeated by anybody, and each carries the transaction's ordinal, so that none touches a later one. Who
decided carries it out before the client is answered; what fails or is cut short is left to the sweep of any front-end
(`korvet.store.transaction_sweep`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, NamedTuple

import anyio
import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, StoreError, StoreUnavailable
from korvet.store import transaction_types as types
from korvet.store.catalog import Catalog
from korvet.store.client import Purpose, Store
from korvet.store.contract import FRESH_ID, LATE
from korvet.store.group_replies import named, text
from korvet.store.group_types import CommitRequest, Place
from korvet.store.groups import Groups
from korvet.store.keys import TRANSACTION_SHARDS, Namespace
from korvet.store.log import Ending, Log, Partition
from korvet.store.transaction_types import Added, Decision, ProducerId, TransactionDescription

log = structlog.get_logger()

CONCURRENT: Final = int(ErrorCode.concurrent_transactions)
NOT_FOUND: Final = int(ErrorCode.transactional_id_not_found)
NO_ID: Final = -1
_COMMITTED: Final = "CompleteCommit"
_ENDED: Final = frozenset({"Empty", _COMMITTED, "CompleteAbort"})
_ATTEMPTS: Final = 4
_PAUSES_S: Final = (0.02,) * 5
"""As add.partitions.to.txn.retry.backoff.ms, up to add.partitions.to.txn.retry.backoff.max.ms."""
_KEYS_KEPT: Final = 10_000
_LATE_CALLS: Final = 5
_AT_ONCE: Final = 500
_FAILURES_KEPT: Final = 1000
_MOST_DUE: Final = 100
_IDS_AT_ONCE: Final = 1000


class Member(NamedTuple):
    """A producer's transaction, for the batches that it sends (`korvet.store.log.append.Membership`)."""

    transactions: Transactions
    transactional_id: str
    producer_id: int
    producer_epoch: int
    joins: bool
    """Whether partitions come into the transaction by its batches."""

    async def ordinals(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        """The ordinal of the transaction that the partitions are in, for each; a code where one is in none.

        As Kafka, this waits a while for the end of the transaction before.
        """
        members = [(f"{one.topic.name}:{one.index}", one.topic_id) for one in partitions]
        for pause_s in (*_PAUSES_S, None):
            added = await self.transactions.add(
                self.transactional_id, self.producer_id, self.producer_epoch, members, is_verified=not self.joins
            )
            if added.code != CONCURRENT or pause_s is None:
                break
            await anyio.sleep(pause_s)
        codes = added.codes if added.code == 0 else [added.code] * len(members)
        return [(code, added.ordinal) for code in codes]


class Transactions:
    """The transactions of one namespace."""

    def __init__(self, namespace: Namespace, store: Store, catalog: Catalog, log: Log, groups: Groups) -> None:
        self._namespace = namespace
        self._store = store
        self._catalog = catalog
        self._log = log
        self._groups = groups
        self._keys = lru_cache(_KEYS_KEPT)(namespace.transaction)
        self._failures: OrderedDict[str, str] = OrderedDict()
        """Why transactional ids could not be tended last, the oldest first."""

    def _call(self, function: str, transactional_id: str, *args: str | int) -> Awaitable[Any]:
        return self._store.fcall(Purpose.COORDINATE, function, self._keys(transactional_id), transactional_id, *args)

    async def _timely(
        self, function: str, transactional_id: str, args: Sequence[str | int], members: Sequence[str] = ()
    ) -> Any:
        """A call that does nothing where it waited while Redis or this front-end stood still, made again until it did
        not; see `Groups`, where it is the same.
        """
        key = self._keys(transactional_id).id
        for _ in range(_LATE_CALLS):
            known = self._groups.outages.known_at(key)
            reply = await self._call(function, transactional_id, *args, known, *members)
            if reply[0] != LATE:
                return reply
            await self._groups.outages.catch_up(key)
        raise StoreUnavailable("Redis stands still again and again", outcome_unknown=False)

    @property
    def _expiration_ms(self) -> int:
        return int(self._catalog.setting(None, "transactional.id.expiration.ms"))

    async def fresh_id(self) -> int:
        """A producer id that was never given out."""
        _, producer_id = await self._store.fcall(Purpose.COORDINATE, "korvet_producer_id", self._namespace.catalog)
        return int(producer_id)

    # ------------------------------------------------------------------ what producers ask for

    async def init(self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int) -> ProducerId:
        """The id and epoch of a transactional id's producer, all before it fenced and its open transaction aborted.

        :param producer_id: what the producer has, and its epoch; -1 where it has none.
        """

        def init(fresh_id: int) -> Awaitable[Any]:
            return self._timely(
                "korvet_txn_init", transactional_id, (timeout_ms, producer_id, producer_epoch, fresh_id)
            )

        return await self._ended(transactional_id, init)

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool, version: int
    ) -> ProducerId:
        """Decide how a transaction ends and carry it out. With version 2 the answer tells the producer's next epoch."""

        def end(fresh_id: int) -> Awaitable[Any]:
            outcome = "commit" if is_commit else "abort"
            return self._timely(
                "korvet_txn_end", transactional_id, (producer_id, producer_epoch, outcome, version, fresh_id)
            )

        return await self._ended(transactional_id, end)

    async def _ended(self, transactional_id: str, call: Callable[[int], Awaitable[Any]]) -> ProducerId:
        """A call that may need a fresh producer id, and that may have to wait for a decision to be carried out."""
        fresh_id, answer = NO_ID, ProducerId(CONCURRENT)
        for _ in range(_ATTEMPTS):
            code, producer_id, epoch, *decided = await call(fresh_id)
            if code == FRESH_ID:
                fresh_id = await self.fresh_id()
                continue
            answer = ProducerId(code, producer_id, epoch)
            if not decided:
                return answer
            is_done = await self._try_to_finish(transactional_id, types.decision(decided[0]))
            if code != CONCURRENT or not is_done:
                return answer
        return answer

    async def add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        members: Iterable[tuple[str, str]],
        *,
        is_verified: bool = False,
    ) -> Added:
        """Take partitions (with their topics' ids in hex) and groups (with '') into the producer's open transaction.

        :param is_verified: take none in, but tell which are in it.
        """
        flat = [part for member in members for part in member]
        mode = "verify" if is_verified else "add"
        answer = Added(CONCURRENT)
        for _ in range(_ATTEMPTS):
            code, ordinal, codes, *decided = await self._timely(
                "korvet_txn_add", transactional_id, (producer_id, producer_epoch, mode), flat
            )
            answer = Added(code, int(ordinal), codes)
            if not decided or not await self._try_to_finish(transactional_id, types.decision(decided[0])):
                return answer
        return answer

    async def commit_offsets(
        self, request: CommitRequest, transactional_id: str, producer_id: int, producer_epoch: int, *, joins: bool
    ) -> int:
        """Hold offsets that the transaction commits when it is committed; the code is for all of them.

        :param joins: whether the group comes into the transaction by this.
        """
        added = await self.add(
            transactional_id, producer_id, producer_epoch, [(request.group_id, "")], is_verified=not joins
        )
        code = added.code or added.codes[0]
        if code != 0:
            return code
        return await self._groups.hold(request, transactional_id, producer_id, producer_epoch, added.ordinal)

    # ------------------------------------------------------------------ carrying out

    async def _try_to_finish(self, transactional_id: str, decision: Decision) -> bool:
        """Carry out a decision; where Redis fails, say so and leave it to the sweep."""
        try:
            await self.finish(transactional_id, decision)
        except KorvetError as error:
            self.note_failure(transactional_id, error)
            return False
        return True

    def note_failure(self, transactional_id: str, error: KorvetError) -> None:
        """Say in the log that a transaction could not be ended; not again for the same reason."""
        reason = str(error)
        if self._failures.get(transactional_id) != reason:
            log.warning("a transaction cannot be ended yet", transactional_id=transactional_id, reason=reason)
        self._failures[transactional_id] = reason
        if len(self._failures) > _FAILURES_KEPT:
            self._failures.popitem(last=False)

    async def finish(self, transactional_id: str, decision: Decision) -> None:
        """Carry out a decision: control batches, offsets, completion. May be repeated at any point, by anybody.

        What can be ended is, whatever becomes of the rest: a partition that cannot be written holds up no other.

        :raises StoreUnavailable, StoreFull, StoreError: where a step did; the decision stands.
        """
        marked = await self._mark(decision)
        ended = await self._end_groups(decision)
        for failure in (*marked, *ended):
            raise failure
        await self._call("korvet_txn_complete", transactional_id, decision.ordinal, self._expiration_ms)
        self._failures.pop(transactional_id, None)

    async def _mark(self, decision: Decision) -> Sequence[KorvetError]:
        ending = Ending(decision.ordinal, decision.producer_id, decision.producer_epoch, decision.is_commit)
        present = await self._present(decision.places)
        return await _failures(
            partial(self._log.mark, self._log.partition(topic, index), ending) for topic, index in present
        )

    async def _present(self, places: Sequence[tuple[Place, str]]) -> list[tuple[Any, int]]:
        """The partitions whose topics are still there; the catalog is read where its cache lacks one."""
        for is_fresh in (False, True):
            present = []
            for (name, index), topic_id in places:
                topic = self._catalog.topic(name)
                if topic is not None and topic.id.hex == topic_id and index < topic.partitions:
                    present.append((topic, index))
            if is_fresh or len(present) == len(places):
                break
            await self._catalog.refresh()
        return present

    async def _end_groups(self, decision: Decision) -> Sequence[KorvetError]:
        return await _failures(
            partial(
                self._groups.release, group_id, decision.producer_id, decision.ordinal, is_commit=decision.is_commit
            )
            for group_id in decision.groups
        )

    async def tend(self, transactional_id: str) -> None:
        """Do what is due of a transactional id: abort what lasted too long, carry out what was decided, forget it.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        _, *decided = await self._call("korvet_txn_expire", transactional_id, self._expiration_ms)
        if decided:
            await self.finish(transactional_id, types.decision(decided[0]))

    async def due(self, shard: int) -> Sequence[str]:
        """Transactional ids of a shard of which something is due."""
        deadlines = self._namespace.transaction_deadlines(shard)
        found = await self._store.fcall(Purpose.COORDINATE, "korvet_txn_due", [deadlines], _MOST_DUE)
        return [text(transactional_id) for transactional_id in found]

    async def close_hanging(self) -> None:
        """Close what is open in partitions and over for its coordinator, as where a history went back.

        By what the coordinator says of that very transaction, aborted where it knows nothing of it. Partitions that
        cannot be read or written are left out, with a line in the log for the first.

        :raises StoreUnavailable, StoreFull:
        """
        unreadable: list[StoreError] = []
        for topic in tuple(self._catalog.topics()):
            partitions = [self._log.partition(topic, index) for index in range(topic.partitions)]
            for partition in await self._hanging(partitions, unreadable):
                try:
                    await self._close_hanging_at(partition)
                except StoreError as error:
                    unreadable.append(error)
        if unreadable:
            log.error("open transactions cannot be looked for", partitions=len(unreadable), reason=str(unreadable[0]))

    async def _hanging(self, partitions: Sequence[Partition], unreadable: list[StoreError]) -> Sequence[Partition]:
        """Those whose last stable offset is below the end; why some cannot be read is added to ``unreadable``."""
        try:
            metas = await self._log.metas(partitions)
        except StoreError as error:
            if len(partitions) > 1:
                return [one for partition in partitions for one in await self._hanging([partition], unreadable)]
            unreadable.append(error)
            return ()
        known = zip(partitions, metas, strict=True)
        return [partition for partition, meta in known if meta is not None and meta.stable < meta.end]

    async def _close_hanging_at(self, partition: Partition) -> None:
        for producer in await self._log.producers(partition) or ():
            if producer.first_open < 0 or producer.ordinal < 0:
                continue
            # Asked after the partition: its coordinator knew of the transaction before the partition did.
            known = await self.describe(producer.transactional_id)
            is_same = known is not None and known.ordinal == producer.ordinal
            if known is None or not is_same or known.state in _ENDED:
                is_commit = is_same and known is not None and known.state == _COMMITTED
                ending = Ending(producer.ordinal, producer.producer_id, producer.epoch, is_commit)
                log.warning("a transaction that was left open is closed", log=partition.keys.log, ending=ending)
                await self._log.mark(partition, ending)

    # ------------------------------------------------------------------ administration

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """A transactional id; None where there is no such."""
        keys = self._keys(transactional_id)
        reply = await self._store.fcall(Purpose.COORDINATE, "korvet_txn_describe", [keys.id])
        return None if reply[0] == NOT_FOUND else types.described(transactional_id, named(reply))

    async def all(self) -> Sequence[TransactionDescription]:
        """Every transactional id, but those whose keys cannot be read."""
        found: list[TransactionDescription] = []
        for shard in range(TRANSACTION_SHARDS):
            name = self._namespace.transaction_deadlines(shard)
            ids = await self._store.call(Purpose.COORDINATE, name, "ZRANGE", name, 0, -1)
            for at in range(0, len(ids), _IDS_AT_ONCE):
                described = await _outcomes(partial(self.describe, text(one)) for one in ids[at : at + _IDS_AT_ONCE])
                for one, outcome in zip(ids[at:], described, strict=False):
                    if isinstance(outcome, StoreError):
                        self.note_failure(text(one), outcome)
                    elif isinstance(outcome, KorvetError):
                        raise outcome
                    elif outcome is not None:
                        found.append(outcome)
        return found

    async def now_ms(self) -> int:
        """The time by Redis, in ms since 1970."""
        meta = self._namespace.catalog.meta
        seconds, microseconds = await self._store.call(Purpose.COORDINATE, meta, "TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000


async def _outcomes(calls: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """What each of the pipelined calls came to: what it returns, or the store's failure.

    :raises BaseException: what is none of the store's, when every call has ended.
    """
    outcomes = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, KorvetError):
            raise outcome
    return outcomes


async def _failures(calls: Iterable[Callable[[], Awaitable[Any]]]) -> list[KorvetError]:
    """Make all calls, some at once; what failed of them."""
    left, failures = iter(calls), []
    while some := list(islice(left, _AT_ONCE)):
        failures += [outcome for outcome in await _outcomes(some) if isinstance(outcome, KorvetError)]
    return failures
