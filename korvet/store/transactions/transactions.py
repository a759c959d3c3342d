"""Transactions: the library's functions as typed calls.

A transaction's state lies in its transactional id's shard. Its end is a sequence: the shard decides, and the front-end
that requested the decision carries it out before it answers the client (`korvet.store.transactions.decisions`). After
a failure or interruption, any front-end's sweep finishes it (`korvet.store.background.transaction_sweep`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

import anyio
import structlog

from korvet.codes import CONCURRENT_TRANSACTIONS, POLICY_VIOLATION, TRANSACTION_ABORTABLE, TRANSACTIONAL_ID_NOT_FOUND
from korvet.errors import KorvetError, StoreUnavailable
from korvet.name_cache import NameCache
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Named, Purpose, Store
from korvet.store.calls import Calls
from korvet.store.catalog.catalog import Catalog
from korvet.store.contract import CHECK, FRESH_ID
from korvet.store.groups.groups import Groups
from korvet.store.groups.replies import named, text
from korvet.store.groups.types import CommitRequest
from korvet.store.keys import TRANSACTION_SHARDS, Namespace
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import Wanted, all_of_them, settled
from korvet.store.tenants import TenantLimit
from korvet.store.transactions import types
from korvet.store.transactions.check import Check
from korvet.store.transactions.decisions import Decisions
from korvet.store.transactions.hanging import Hanging
from korvet.store.transactions.listing import ids_of, listed
from korvet.store.transactions.types import Added, Decision, Listed, ProducerId, TransactionDescription

log = structlog.get_logger()

NO_ID: Final = -1
_ATTEMPTS: Final = 6
_PAUSES_S: Final = (0.02,) * 5
"""As add.partitions.to.txn.retry.backoff.ms, up to add.partitions.to.txn.retry.backoff.max.ms."""
_KEYS_KEPT: Final = 10_000
_MOST_DUE: Final = 100
_DISK_WITHIN_S: Final = 10.0
_MOST_MEMBERS: Final = 1000
"""The most arguments of one call; two for each member that joins a transaction."""


class Member(NamedTuple):
    """A producer's transaction, for its batches (`korvet.store.log.appending.membership.Membership`)."""

    transactions: Transactions
    transactional_id: str
    producer_id: int
    producer_epoch: int
    joins: bool
    """True if batches add their partitions to the transaction."""

    async def ordinals(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        """For each partition a code, and the ordinal of its transaction.

        As in Kafka, this waits a while for the end of the previous transaction.
        """
        for pause_s in (*_PAUSES_S, None):
            added = await self.transactions.add(
                self.transactional_id, self.producer_id, self.producer_epoch, partitions, is_verified=not self.joins
            )
            if added.code != CONCURRENT_TRANSACTIONS or pause_s is None:
                break
            await anyio.sleep(pause_s)
        codes = added.codes if added.code == 0 else [added.code] * len(partitions)
        return [(code, added.ordinal) for code in codes]


class Transactions:
    """The transactions of one namespace."""

    def __init__(self, namespace: Namespace, store: Store, catalog: Catalog, log: Log, groups: Groups) -> None:
        self._namespace = namespace
        self._store = store
        self._calls = Calls(store, groups.outages, groups.room)
        self._catalog = catalog
        self._log = log
        self._groups = groups
        self._keys = NameCache(namespace.transaction, _KEYS_KEPT).__getitem__
        self.seen_us: dict[str, float] = {}
        """The last known time of each shard's server, by the shard's key of deadlines."""
        self._lines = RateLimitedLog()
        self._synced = -1, False
        """True if a topic has korvet.acks.fsync, with the catalog's generation at the check."""
        self._decisions = Decisions(self._complete, catalog, log, groups)

    def _call(self, function: str, transactional_id: str, **named: Named) -> Awaitable[Any]:
        keys = self._keys(transactional_id)
        return self._calls.call(function, keys, {"transactional_id": transactional_id, **named})

    @property
    def _most_ids_of_a_shard(self) -> int:
        most = self._catalog.at_most("korvet.max.transactional.ids", TenantLimit.TRANSACTIONAL_IDS)
        return -(-most // TRANSACTION_SHARDS)

    @property
    def _expiration_ms(self) -> int:
        return self._catalog.integer(None, "transactional.id.expiration.ms")

    async def fresh_id(self) -> int:
        """A new producer id."""
        _, producer_id = await self._store.call_function(
            Purpose.COORDINATE, "korvet_producer_id", self._namespace.catalog
        )
        return int(producer_id)

    @property
    def store(self) -> Store:
        return self._store

    # ------------------------------------------------------------------ requests of producers

    async def init(self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int) -> ProducerId:
        """Give a transactional id's producer its producer id and epoch, and fence all earlier producers.

        :param producer_id: the producer's current id; -1 if it has none; likewise ``producer_epoch``.
        """

        def init(fresh_id: int) -> Awaitable[Any]:
            return self._call(
                "korvet_txn_init",
                transactional_id,
                timeout=timeout_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                fresh_id=fresh_id,
                most=self._most_ids_of_a_shard,
            )

        answer = await self._ended(transactional_id, init)
        if answer.code == POLICY_VIOLATION:
            event = "new transactional ids are refused: there are as many as korvet.max.transactional.ids allows"
            self._lines.write("warning", event, transactional_id=transactional_id)
        return answer

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool, version: int
    ) -> ProducerId:
        """Decide how a transaction ends, and finish the decision. With version 2 the answer has the next epoch.

        :raises StoreUnavailable: also if, with `korvet.acks.fsync`, a commit may not be on disk yet, or a server cannot
            report on its disk.
        """
        if is_commit and self._awaits_disk:
            await self._log.replicas.require_disk(self._groups.outages.probe_keys())
        checked = ""

        async def end(fresh_id: int) -> Any:
            nonlocal checked
            call = partial(
                self._call,
                "korvet_txn_end",
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                decision="commit" if is_commit else "abort",
                version=version,
                fresh_id=fresh_id,
                checked=checked,
            )
            # After a restart of Redis only this call knows that it checked the members of this very transaction.
            reply = await (types.insist(call) if checked else call())
            if reply[0] == CHECK:
                checked = await self._checked(transactional_id, producer_id, *reply[3])
            return reply

        answer = await self._ended(transactional_id, end)
        if is_commit and answer.code == TRANSACTION_ABORTABLE:
            log.warning("a transaction is aborted because a part of it may be lost", transactional_id=transactional_id)
        elif is_commit and answer.code == 0:
            await self._reach_the_disk()
        return answer

    async def _reach_the_disk(self) -> None:
        """Wait for the disks of all servers, if a topic has korvet.acks.fsync.

        The members of a committed transaction are no longer known. So a repeated call waits for all servers, as does
        the first one.
        """
        if self._awaits_disk and not await self._log.replicas.flushed(
            self._groups.outages.probe_keys(), _DISK_WITHIN_S
        ):
            raise StoreUnavailable("the commit is not on the disk yet", outcome_unknown=True)

    @property
    def _awaits_disk(self) -> bool:
        generation, is_synced = self._synced
        if generation != self._catalog.generation:
            topics = self._catalog.topics()
            is_synced = any(self._catalog.boolean(one, "korvet.acks.fsync") for one in topics)
            self._synced = self._catalog.generation, is_synced
        return is_synced

    async def _checked(
        self, transactional_id: str, producer_id: int, ordinal: int, size: int, cursor: bytes, flat: Sequence[bytes]
    ) -> str:
        """The argument ``checked`` of korvet_txn_end, after the check of an open transaction's members."""
        check = Check(self._catalog, self._log, self._groups, producer_id, ordinal)
        while True:
            if lost := await check.lost(dict(zip(flat[::2], flat[1::2], strict=True))):
                log.warning("writes of a transaction may be lost", transactional_id=transactional_id, member=lost)
                return f"{ordinal} {size} lost"
            if cursor == b"0":
                return f"{ordinal} {size} held"
            key = self._keys(transactional_id).id
            code, cursor, flat = await self._store.call_function(
                Purpose.COORDINATE, "korvet_txn_members", [key], ordinal=ordinal, cursor=cursor
            )
            if code != 0:
                return ""

    async def _ended(self, transactional_id: str, call: Callable[[int], Awaitable[Any]]) -> ProducerId:
        """Make a call; repeat it if it needs a new producer id, or a decision must be finished first."""
        fresh_id, answer = NO_ID, ProducerId(CONCURRENT_TRANSACTIONS)
        for _ in range(_ATTEMPTS):
            code, producer_id, epoch, *decided = await call(fresh_id)
            if code == CHECK:
                continue
            if code == FRESH_ID:
                fresh_id = await self.fresh_id()
                continue
            answer = ProducerId(code, producer_id, epoch)
            if not decided:
                return answer
            is_done = await self._decisions.try_to_finish(transactional_id, types.decision(*decided))
            if code != CONCURRENT_TRANSACTIONS or not is_done:
                return answer
        return answer

    async def add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Partition] = (),
        groups: Sequence[str] = (),
        *,
        is_verified: bool = False,
    ) -> Added:
        """Add partitions and groups to the producer's open transaction.

        :param is_verified: add none; return which are in the transaction.
        """
        replid, group_keys = self._store.replid, self._namespace.group
        flat = [
            part
            for one in partitions
            for part in (f"{one.topic.name}:{one.index}", f"{one.topic_id} {replid(one.keys.log)}")
        ]
        flat += [part for name in groups for part in (name, f" {replid(group_keys(name).group)}")]
        call = partial(
            self._call,
            "korvet_txn_add",
            transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            mode="verify" if is_verified else "add",
        )
        added = Added(0)
        for at in range(0, max(1, len(flat)), _MOST_MEMBERS):
            some = await self._add(transactional_id, partial(call, members=flat[at : at + _MOST_MEMBERS]))
            if some.code != 0:
                return some
            if at > 0 and some.ordinal != added.ordinal:
                # The transaction that the first members joined is over.
                return Added(CONCURRENT_TRANSACTIONS)
            added = Added(0, some.ordinal, [*added.codes, *some.codes])
        return added

    async def _add(self, transactional_id: str, call: Callable[[], Awaitable[Any]]) -> Added:
        answer = Added(CONCURRENT_TRANSACTIONS)
        for _ in range(_ATTEMPTS):
            code, ordinal, codes, *decided = await call()
            answer = Added(code, int(ordinal), codes)
            if not decided or not await self._decisions.try_to_finish(transactional_id, types.decision(*decided)):
                return answer
        return answer

    async def commit_offsets(
        self, request: CommitRequest, transactional_id: str, producer_id: int, producer_epoch: int, *, joins: bool
    ) -> int:
        """Hold offsets until the transaction ends; the code is for all of them.

        :param joins: true to add the group to the transaction.
        """
        added = await self.add(
            transactional_id, producer_id, producer_epoch, groups=[request.group_id], is_verified=not joins
        )
        code = added.code or added.codes[0]
        if code != 0:
            return code
        hold = self._groups.held_offsets.hold
        return await hold(request, transactional_id, producer_id, producer_epoch, added.ordinal)

    async def _complete(self, transactional_id: str, ordinal: int, done: Sequence[str]) -> Decision | None:
        """Note the finished members. Returns the decision about the others; None if there are none."""
        decided: Sequence[Any] = ()
        for at in range(0, max(1, len(done)), _MOST_MEMBERS):
            _, *decided = await self._call(
                "korvet_txn_complete",
                transactional_id,
                ordinal=ordinal,
                expiration=self._expiration_ms,
                finished=done[at : at + _MOST_MEMBERS],
            )
        return types.decision(*decided) if decided else None

    # ------------------------------------------------------------------ called by the sweep

    def note_failure(self, transactional_id: str, error: KorvetError) -> None:
        """Log that a transaction could not be ended, once for each reason."""
        self._decisions.note_failure(transactional_id, error)

    async def tend(self, transactional_id: str) -> None:
        """Do the due work of a transactional id: abort an overdue transaction, finish a decision, or forget the id.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        _, *decided = await self._call("korvet_txn_expire", transactional_id, expiration=self._expiration_ms)
        if decided:
            await self._decisions.finish(transactional_id, types.decision(*decided))

    async def shards_in_use(self) -> Sequence[int]:
        """The shards that hold a transactional id, and the shards that failed."""
        keys = [self._namespace.transaction_deadlines(shard) for shard in range(TRANSACTION_SHARDS)]
        is_cluster = self._store.url.kind == "cluster"
        if not is_cluster and not await self._store.call(Purpose.COORDINATE, keys[0], "EXISTS", *keys):
            return ()
        there = await settled(self._store.call(Purpose.COORDINATE, key, "EXISTS", key) for key in keys)
        # One node's failure must not stop the sweep of other nodes' shards.
        return [shard for shard, outcome in enumerate(there) if outcome != 0]

    async def due(self, shard: int) -> Sequence[str]:
        """The transactional ids of a shard whose deadlines have passed; all ids if the clock went back.

        :raises StoreUnavailable, StoreError:
        """
        deadlines = self._namespace.transaction_deadlines(shard)
        if await self._went_back(deadlines):
            return await ids_of(self._namespace, self._store, shard)
        found = await self._store.call_function(Purpose.COORDINATE, "korvet_txn_due", [deadlines], most=_MOST_DUE)
        return [text(transactional_id) for transactional_id in found]

    async def _went_back(self, deadlines: str) -> bool:
        """True if the clock of a shard's server went back since the last call, or since the newest transaction."""
        seconds, microseconds = await self._store.call(Purpose.COORDINATE, deadlines, "TIME")
        now_us, seen_us = int(seconds) * 1_000_000 + int(microseconds), self.seen_us.get(deadlines)
        if seen_us is None:
            seen_us = float(await self._store.call(Purpose.COORDINATE, deadlines, "ZSCORE", deadlines, "") or 0)
        self.seen_us[deadlines] = now_us
        return now_us < seen_us

    async def next_due_s(self, shards: Sequence[int]) -> float:
        """The seconds until a transactional id of the shards is due; infinite if none is.

        :raises StoreUnavailable, StoreError:
        """
        keys = [self._namespace.transaction_deadlines(shard) for shard in shards]
        replies = [self._store.call(Purpose.COORDINATE, key, "ZRANGE", key, 0, 0, "WITHSCORES") for key in keys]
        first_ms = [float(found[-1]) for found in [await one for one in replies] if found]
        return (min(first_ms) - await self.now_ms()) / 1000 if first_ms else inf

    async def close_hanging(self) -> None:
        """Close transactions that are open in partitions or groups, but over or unknown at their coordinator.

        :raises StoreUnavailable, StoreFull:
        """
        await Hanging(self.describe, self.tend, self._catalog, self._log, self._groups).close()

    # ------------------------------------------------------------------ administration

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """A transactional id, with some of the partitions of its transaction; None if it does not exist."""
        return (await self._describe(transactional_id, b"0"))[0]

    async def describe_all(self, transactional_id: str) -> TransactionDescription | None:
        """A transactional id, with all partitions of its transaction; None if it does not exist."""
        found, cursor = await self._describe(transactional_id, b"0")
        partitions = dict(found.partitions) if found is not None else {}
        while cursor != b"0":
            further, cursor = await self._describe(transactional_id, cursor)
            partitions.update(further.partitions if further is not None else ())
        return None if found is None else replace(found, partitions=sorted(partitions.items()))

    async def _describe(self, transactional_id: str, cursor: bytes) -> tuple[TransactionDescription | None, bytes]:
        keys = self._keys(transactional_id)
        reply = await self._store.call_function(Purpose.COORDINATE, "korvet_txn_describe", [keys.id], cursor=cursor)
        if reply[0] == TRANSACTIONAL_ID_NOT_FOUND:
            return None, b"0"
        values = named(reply)
        return types.described(transactional_id, values), values["cursor"]

    async def all(self, wanted: Wanted = all_of_them) -> Sequence[Listed]:
        """Every wanted transactional id; see `korvet.store.transactions.listing.listed`."""
        found, unreadable = await listed(self._namespace, self._store, wanted)
        for transactional_id, error in unreadable.items():
            self._decisions.note_failure(transactional_id, error)
        return found

    async def now_ms(self) -> int:
        """Redis's time, in ms since 1970."""
        meta = self._namespace.catalog.meta
        seconds, microseconds = await self._store.call(Purpose.COORDINATE, meta, "TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000
