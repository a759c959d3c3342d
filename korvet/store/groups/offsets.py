"""Committed offsets of groups: read, committed and forgotten. `held_offsets` has those of open transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final
from uuid import UUID

import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups import replies
from korvet.store.groups.call import GroupCalls, chunks
from korvet.store.groups.redis_mirror import RedisMirror
from korvet.store.groups.types import CommitRequest, Offset, TopicPartition, name_of
from korvet.store.outcomes import Failures

log = structlog.get_logger()

_UNSTABLE: Final = b"unstable"
_AT_ONCE: Final = 1000
"""The most offsets of one call; Redis takes one or two milliseconds for a thousand."""
_MINUTE_MS: Final = 60_000


def retention_ms(catalog: Catalog) -> int:
    """Milliseconds for which Redis keeps the offsets of a group without members."""
    return catalog.integer(None, "offsets.retention.minutes") * _MINUTE_MS


def portions(request: CommitRequest) -> Iterable[Sequence[str]]:
    """A request's offsets in portions for one call each; one empty portion if it names no offset.

    As in Kafka, the last offset of a repeated partition counts.
    """
    texts = {}
    for partition, (offset, leader_epoch, topic_id, metadata) in request.offsets:
        texts[name_of(partition)] = f"{offset} {leader_epoch} {topic_id.hex} {metadata}"
    flat = [part for pair in texts.items() for part in pair]
    return chunks(flat, 2 * _AT_ONCE) if len(flat) > 2 * _AT_ONCE else (flat,)


class Offsets:
    """The committed offsets of one namespace's groups."""

    def __init__(self, calls: GroupCalls, catalog: Catalog, mirror: RedisMirror) -> None:
        self._calls = calls
        self._catalog = catalog
        self._mirror = mirror
        self._on_commit: dict[str, Callable[[Iterable[TopicPartition]], None]] = {}

    async def commit(self, request: CommitRequest) -> int:
        """Commit offsets; returns one code for all. If not 0, a part of very many may be committed."""
        for some in portions(request):
            code: int = await self._calls.call(
                "korvet_group_commit",
                request.group_id,
                is_awaited=True,
                member_id=request.member_id,
                instance_id=request.instance_id or "",
                generation=request.generation,
                version=request.version,
                retention=retention_ms(self._catalog),
                offsets=some,
            )
            if code != 0:
                return code
        self.committed(request.group_id, request.partitions)
        return 0

    def on_commit(self, group_id: str, callback: Callable[[Iterable[TopicPartition]], None]) -> None:
        """Call back with the partitions of each commit of a group that this front-end makes."""
        self._on_commit[group_id] = callback

    def committed(self, group_id: str, partitions: Sequence[tuple[TopicPartition, str]]) -> None:
        """Report committed offsets to the Redis mirror and callbacks, each with its topic's id in hex."""
        self._mirror.committed(group_id, partitions)
        if group_id in self._on_commit:
            self._on_commit[group_id](partition for partition, _ in partitions)

    async def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, Offset]:
        """The committed offsets of some partitions, or of all; partitions without one are left out."""
        return (await self._fetch(group_id, partitions, with_held=False))[0]

    async def fetch_stable(
        self, group_id: str, partitions: Iterable[TopicPartition] | None
    ) -> tuple[Mapping[TopicPartition, Offset], Set[TopicPartition]]:
        """As `fetch`, and the partitions whose offsets an open transaction may change."""
        return await self._fetch(group_id, partitions, with_held=True)

    async def _fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, with_held: bool
    ) -> tuple[Mapping[TopicPartition, Offset], Set[TopicPartition]]:
        found: dict[TopicPartition, Offset] = {}
        unstable: set[TopicPartition] = set()
        async for flat in self._read(group_id, partitions, with_held=with_held):
            for name, text in zip(flat[::2], flat[1::2], strict=True):
                partition = replies.topic_partition(name)
                if text == _UNSTABLE:
                    unstable.add(partition)
                elif text:
                    found[partition] = replies.offset(text)
        return found, unstable

    async def _read(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, with_held: bool
    ) -> AsyncIterator[Sequence[bytes]]:
        """Partitions and offsets, as many at a time as one call returns."""
        if partitions is None:
            cursor = b"0"
            while True:
                cursor, flat = await self._calls.call(
                    "korvet_group_offsets", group_id, has_optional_keys=with_held, cursor=cursor
                )
                yield flat
                if cursor == b"0":
                    return
        for some in chunks(list(dict.fromkeys(partitions)), _AT_ONCE):
            yield await self._calls.call(
                "korvet_group_fetch", group_id, has_optional_keys=with_held, partitions=list(map(name_of, some))
            )

    async def delete(
        self, group_id: str, partitions: Sequence[tuple[TopicPartition, str]]
    ) -> tuple[int, Sequence[int]]:
        """Delete committed offsets, including pending ones of transactions, and detach their Redis groups.

        :param partitions: each with its topic's id in hex.
        :returns: a code for all, and if that is none, one for each.
        """
        code, codes = 0, list[int]()
        for some in chunks(partitions, _AT_ONCE) if partitions else [()]:
            names = [name_of(partition) for partition, _ in some]
            code, some_codes = await self._calls.call("korvet_group_offset_delete", group_id, partitions=names)
            codes += some_codes
            await self._mirror.uncommitted(
                group_id, [one for one, of in zip(some, some_codes, strict=False) if of == 0]
            )
            if code != 0:
                break
        return code, codes

    # ------------------------------------------------------------------ deleted topics

    async def topic_ids(self) -> Set[UUID]:
        """The ids of all topics."""
        await self._catalog.refresh()
        return frozenset(topic.id for topic in self._catalog.topics())

    async def forget_former_topics(self, failures: Failures) -> None:
        """Delete committed offsets of topics that were deleted, or made again since.

        Leaves out groups on a failing server, and adds the failure to ``failures``.
        """
        for some in await self._calls.index.group_ids():
            for group_id in some:
                try:
                    await self._forget_former_topics(group_id)
                except StoreError as error:
                    log.error("a group's offsets cannot be read", group=group_id, reason=str(error))
                except KorvetError as error:
                    failures.append(error)

    async def _forget_former_topics(self, group_id: str) -> None:
        committed = await self.fetch(group_id, None)
        if self._former(committed):
            # The cache of the catalog may lack new topics. After this read it has each topic of the commits above.
            await self._catalog.refresh()
        former = [part for partition, id in self._former(committed) for part in (name_of(partition), id.hex)]
        for some in chunks(former, _AT_ONCE):
            await self._calls.call("korvet_group_offset_forget", group_id, partitions=some)

    def _former(self, committed: Mapping[TopicPartition, Offset]) -> Sequence[tuple[TopicPartition, UUID]]:
        """The partitions of committed offsets whose topics are gone, each with its topic's id."""
        ids: dict[str, Any] = {topic.name: topic.id for topic in self._catalog.topics()}
        return [(one, offset.topic_id) for one, offset in committed.items() if ids.get(one[0]) != offset.topic_id]
