"""One front-end's view of the catalog in Redis, and the calls that change it.

The view follows the catalog's channel and is also read periodically. A caller that needs the current state calls
`Catalog.refresh`, which transfers nothing while the version is the same. `korvet.store.topics` has the steps that
change both catalog and partitions.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import UUID

import anyio
import structlog
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from korvet.errors import KorvetError, StoreError, StoreFull, StoreUnavailable
from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.activity import Activity
from korvet.store.catalog.settings import NOTHING, ConfigChange, Owner, Settings
from korvet.store.catalog.topic import Topic, TopicEntry, parse_topic, topic_entry, unified_names
from korvet.store.contract import LOST, RETRY
from korvet.store.damaged_keys import REPAIR
from korvet.store.every import every
from korvet.store.keys import Namespace
from korvet.store.tenants import TenantLimit

log = structlog.get_logger()

_REFRESH_S = 30.0
_IDLE_REFRESH_S = 300.0
_FORMER_LAYOUT = (
    "namespace {0} holds the data of korvet 0.6 or older, whose keys have other names ({1}): serve it with that "
    "version, or name another namespace in [[listener]] and copy the topics with MirrorMaker or the pipeline"
)
_DELETED = "{} or {} was deleted: front-ends that know it write it back, or " + REPAIR
_UNKNOWN_VERSION = -1
_NO_BOUND = -1
_TOPICS_A_CALL: Final = 500
_MOMENT_S: Final = 5.0


class DeletedTopic(NamedTuple):
    """A topic that was in the tier. Its objects are garbage, because its id never comes back."""

    name: str
    id: str
    """32 hexadecimal digits."""
    partitions: int
    deleted_ms: int
    """Redis's time of the deletion."""


class _Reading(NamedTuple):
    """A numbered read of the catalog in progress."""

    number: int
    known_version: int
    first: Awaitable[Any]
    """The first page."""


class Catalog(Settings):
    """One front-end's view of a namespace's topics and settings. ``static`` are broker configs of its config file."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        wakeups: Wakeups,
        static: Mapping[str, str] = NOTHING,
        activity: Activity | None = None,
    ) -> None:
        super().__init__(static)
        self.cluster_id = ""
        self.generation = 0
        """The number of states read; values derived from settings are valid while this is the same."""
        self.topics_digest = ""
        """A digest of the topics' names, ids and numbers of partitions, without configs."""
        self._name, self._former = namespace.name, namespace.former_catalog
        self._keys = namespace.catalog
        self._store = store
        self._wakeups = wakeups
        self._activity = activity or Activity()
        self._channels = (namespace.catalog.meta, namespace.frontends)
        self._version = _UNKNOWN_VERSION
        self._readings = self._taken = 0
        """The numbers of the last read begun and the last one taken over."""
        self._topics: dict[str, Topic] = {}
        self._unified: Mapping[str, Sequence[str]] | None = None
        self._by_id: dict[UUID, Topic] = {}
        self._deleting: list[Topic] = []
        self._gone: dict[str, float] = {}
        self._parsed: dict[bytes, TopicEntry] = {}
        self._configs: Sequence[bytes] = ()
        self._changed = anyio.Event()
        store.on_history_change(self._distrust)

    # ------------------------------------------------------------------ the cache

    async def open(self) -> None:
        """Create the cluster id if there is none, and read everything.

        :raises KorvetError: the namespace holds data under an older korvet's key names.
        :raises StoreUnavailable, StoreFull, StoreError:
        """
        if await self._store.call(Purpose.COORDINATE, self._former, "EXISTS", self._former):
            raise KorvetError(_FORMER_LAYOUT.format(self._name, self._former))
        await self._init(base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="))
        await self.refresh()

    async def _init(self, cluster_id: str) -> None:
        await self._store.call_function(Purpose.COORDINATE, "korvet_catalog_init", self._keys, cluster_id=cluster_id)

    async def follow(self) -> None:
        """Keep the cache current until cancelled: read at each announced change, and every 30 s.

        In an idle namespace it reads every five minutes, and as soon as the namespace is active.
        """
        complaint = "the catalog cannot be read; its last known state serves"
        await every(0.0, self._follow, complaint, has_reported=self._store.has_reported)

    async def _follow(self) -> None:
        """Read the catalog, and return when it should be read again."""
        with self._wakeups.listen(self._channels) as listening:
            await listening.ready()
            await self.refresh()
            await listening.wait(_IDLE_REFRESH_S if self._activity.is_idle else _REFRESH_S)

    async def changed(self, generation: int) -> None:
        """Wait for a later state than ``generation``'s."""
        while self.generation == generation:
            await self._changed.wait()

    def _count_change(self) -> None:
        self.generation += 1
        self._changed.set()
        self._changed = anyio.Event()

    async def refresh(self) -> None:
        """Read the catalog; transfers nothing if the version is the known one.

        Restores a lost catalog's cluster id, because clients identify the cluster by it, and topics or settings deleted
        by hand, as last read.

        :raises StoreUnavailable, StoreError:
        """
        if not await self._take(self._begin_reading(), restores=True):
            with suppress(StoreFull):
                await self._init(self.cluster_id)

    async def read(self) -> bool:
        """As `refresh`, but write nothing; false if there is no catalog.

        :raises StoreUnavailable, StoreError:
        """
        return await self._take(self._begin_reading())

    def _begin_reading(self) -> _Reading:
        """Request the catalog unless its version is the known one; queues the first page before it returns."""
        self._readings += 1
        return _Reading(self._readings, self._version, self._page(self._version))

    def _page(self, known_version: int, cursor: str | bytes = "0") -> Awaitable[Any]:
        return self._store.call_function(
            Purpose.COORDINATE, "korvet_catalog_read", self._keys, known_version=known_version, cursor=cursor
        )

    async def _take(self, reading: _Reading, *, restores: bool = False) -> bool:
        """Take over a read, unless a later one has been taken over already. False without a cluster id.

        Later pages may be of later versions, so the first page's version becomes the known one.

        :raises StoreError: topics or settings were deleted by hand, and are not restored.
        """
        known_version = reading.known_version
        code, version, cluster_id, topics, configs, cursor = await reading.first
        if code == LOST and restores and version == self._version:
            await self._restore(version)
            code, version, cluster_id, topics, configs, cursor = await self._page(known_version)
        while code == RETRY or cursor != b"0":
            if code == RETRY:
                # Another server holds the catalog now.
                known_version = _UNKNOWN_VERSION
                code, version, cluster_id, topics, configs, cursor = await self._page(known_version)
            else:
                code, _, _, further, _, cursor = await self._page(known_version, cursor)
                topics += further
        if code == LOST:
            raise StoreError(_DELETED.format(self._keys.topics, self._keys.configs))
        if reading.number > self._taken:
            self._taken = reading.number
            self.cluster_id = cluster_id.decode() or self.cluster_id
            if version != known_version:
                self._configs = configs
                self._take_configs(_pairs(configs))
                self._replace_topics(topics)
                self._count_change()
                self._version = version
        return bool(cluster_id)

    async def _restore(self, version: int) -> None:
        """Write topics and settings back as they were at a version, for a catalog that lost them at this version."""
        topics = [part for name, entry in self._parsed.items() for part in (name, entry.text)]
        for table, flat in (("topics", topics), ("configs", self._configs)):
            for at in range(0, len(flat) or 1, 2 * _TOPICS_A_CALL):
                some, is_last = flat[at : at + 2 * _TOPICS_A_CALL], at + 2 * _TOPICS_A_CALL >= len(flat)
                await self._store.call_function(
                    Purpose.COORDINATE, "korvet_catalog_restore", self._keys,
                    version=version, hash=table, is_last="true" if is_last else "false", fields=some,
                )  # fmt: skip
        log.warning("what was deleted from the catalog in redis is written back", key=self._keys.topics)

    @property
    def version(self) -> int:
        """The catalog's version, which grows with each change, as last read; no I/O."""
        return self._version

    def topic(self, name: str) -> Topic | None:
        """The topic of this name as last read; no I/O."""
        return self._topics.get(name)

    def topic_by_id(self, id: UUID) -> Topic | None:
        """The topic of this id as last read; no I/O."""
        return self._by_id.get(id)

    def was_deleted_just_now(self, name: str) -> bool:
        """True if this front-end saw a topic of this name deleted a moment ago; no I/O."""
        return monotonic() - self._gone.get(name, -_MOMENT_S) < _MOMENT_S

    def topics(self) -> Collection[Topic]:
        """All topics except deleting ones, as last read; no I/O."""
        return self._topics.values()

    def unified(self) -> Mapping[str, Sequence[str]]:
        """`unified_names` of all topics, as last read; no I/O."""
        if self._unified is None:
            self._unified = unified_names(self._topics)
        return self._unified

    def deleting(self) -> Sequence[Topic]:
        """The topics with an unfinished deletion, as last read; no I/O."""
        return self._deleting

    def _distrust(self) -> None:
        """Forget the known version: after a rollback of history it may recur with other contents."""
        self._version = _UNKNOWN_VERSION

    def _replace_topics(self, flat: Sequence[bytes]) -> None:
        """Take over the catalog's topics; parses only new texts."""
        parsed: dict[bytes, TopicEntry] = {}
        for name, text in _pairs(flat):
            known = self._parsed.get(name)
            if known is not None and known.text == text:
                parsed[name] = known
                continue
            try:
                parsed[name] = topic_entry(name, text)
            except StoreError:
                reason = f"field {name.decode(errors='replace')} of {self._keys.topics} cannot be read"
                log.error("a topic's entry is damaged; it stays as it was last read", reason=reason)
                if known is not None:
                    parsed[name] = known
        topics = [entry.topic for entry in parsed.values()]
        self._parsed = parsed
        self.topics_digest = f"{sum(entry.digest for entry in parsed.values()):x}"
        former, now = self._topics.keys(), monotonic()
        self._topics = {topic.name: topic for topic in topics if not topic.deleting}
        self._gone = {name: since for name, since in self._gone.items() if now - since < _MOMENT_S}
        self._gone.update(dict.fromkeys(former - self._topics.keys(), now))
        self._unified = None
        self._by_id = {topic.id: topic for topic in topics if not topic.deleting}
        self._deleting = [topic for topic in topics if topic.deleting]

    def take_static(self, static: Mapping[str, str]) -> None:
        """Replace the broker configs of the front-end's config file."""
        self._take_static(static)
        self._count_change()

    # ------------------------------------------------------------------ changes

    async def create(
        self, name: str, id: UUID, partitions: int, configs: Mapping[str, str]
    ) -> tuple[ErrorCode, Topic | None]:
        """Add a topic, before its partitions' keys exist. TOPIC_ALREADY_EXISTS also during the deletion of a former
        one; POLICY_VIOLATION beyond a tenant's limits.

        :returns: the code and, without an error, the topic; so does `grow`.
        :raises StoreUnavailable, StoreFull, StoreError: as do the other changes.
        """
        text, most = json.dumps(dict(configs)), {}
        if self.limits:
            most = {
                "most_topics": self.limits.get(TenantLimit.TOPICS, _NO_BOUND),
                "most_partitions": self.limits.get(TenantLimit.PARTITIONS, _NO_BOUND),
            }
        reply = await self._change(
            "korvet_topic_create", name=name, id=id.hex, partitions=partitions, configs=text, **most
        )
        return _topic_of(name, reply)

    async def grow(self, topic: Topic, partitions: int) -> tuple[ErrorCode, Topic | None]:
        """Raise the number of partitions. UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, POLICY_VIOLATION."""
        most = self.limits.get(TenantLimit.PARTITIONS)
        bound = {} if most is None else {"most_partitions": most}
        reply = await self._change(
            "korvet_topic_grow", name=topic.name, id=topic.id.hex, partitions=partitions, **bound
        )
        return _topic_of(topic.name, reply)

    async def configure(self, topic: Topic, change: ConfigChange) -> ErrorCode:
        """Change a topic's own configs. UNKNOWN_TOPIC_OR_PARTITION."""
        text = change.as_json()
        return _code_of(await self._change("korvet_topic_configure", name=topic.name, id=topic.id.hex, change=text))

    async def begin_delete(self, topic: Topic) -> ErrorCode:
        """Hide a topic; repeatable. UNKNOWN_TOPIC_OR_PARTITION."""
        return _code_of(await self._change("korvet_topic_delete", name=topic.name, id=topic.id.hex, step="begin"))

    async def finish_delete(self, topic: Topic) -> ErrorCode:
        """Forget a topic whose partitions are gone; repeatable. UNKNOWN_TOPIC_OR_PARTITION."""
        return _code_of(await self._change("korvet_topic_delete", name=topic.name, id=topic.id.hex, step="finish"))

    async def deleted(self) -> Sequence[DeletedTopic]:
        """The deleted topics whose objects in the tier have to go.

        :raises StoreUnavailable, StoreError:
        """
        found: dict[str, DeletedTopic] = {}
        cursor: bytes | str = "0"
        while True:
            _, cursor, flat = await self._store.call_function(
                Purpose.COORDINATE, "korvet_topic_deleted", [self._keys.meta], cursor=cursor
            )
            for field, text in _pairs(flat):
                try:
                    id, (name, partitions, ms) = field.decode().partition(":")[2], text.decode().split()
                    found[id] = DeletedTopic(name, UUID(hex=id).hex, int(partitions), int(ms))
                except ValueError:
                    reason = f"field {field.decode(errors='replace')} of {self._keys.meta} cannot be read"
                    log.error("a note of a deleted topic is damaged and is left out; delete it", reason=reason)
            if cursor == b"0":
                return list(found.values())

    async def clear_deleted(self, topic: DeletedTopic) -> None:
        """Forget a deleted topic, after its objects are gone; repeatable.

        :raises StoreUnavailable, StoreError:
        """
        await self._change("korvet_topic_delete", name=topic.name, id=topic.id, step="clear")

    async def tier(self) -> str:
        """The id of the namespace's tier, given by `name_tier`; empty if it never had one.

        :raises StoreUnavailable, StoreError:
        """
        meta = self._keys.meta
        found: bytes | None = await self._store.call(Purpose.COORDINATE, meta, "HGET", meta, "tier")
        return (found or b"").decode(errors="replace")

    async def name_tier(self, former: str, id: str) -> str:
        """Give the namespace a tier, if it still has the former one, or none (empty), and no topic there. Returns the
        id of the one that it has then.

        Topics may have `remote.storage.enable` from then on.

        :raises StoreUnavailable, StoreError:
        """
        _, found = await self._store.call_function(
            Purpose.COORDINATE, "korvet_catalog_tier", self._keys, former=former, id=id
        )
        return bytes(found).decode(errors="replace")

    async def configure_cluster(self, change: ConfigChange) -> ErrorCode:
        """Change the cluster-wide configs."""
        return _code_of(await self._change("korvet_catalog_configure", change=change.as_json()))

    async def configure_own(
        self, owner: Owner, name: str, change: ConfigChange, most: int, *, validate_only: bool
    ) -> ErrorCode:
        """Change the own configs of a group (which need not exist), a subscription or a broker.

        POLICY_VIOLATION if more than ``most`` of this kind would have own configs.
        """
        text, step = self.own_change(owner, name, change).as_json(), "check" if validate_only else "change"
        return _code_of(await self._change("korvet_catalog_configure", change=text, most=most, step=step))

    async def _change(self, function: str, /, **named: str | int) -> Sequence[Any]:
        # The first page is queued after the change, so one round trip does both unless there are many topics.
        changed = self._store.call_function(Purpose.COORDINATE, function, self._keys, **named)
        reading = self._begin_reading()
        # The read shows a change that was made, and `follow` makes up for a lost read.
        with suppress(StoreUnavailable):
            await self._take(reading, restores=True)
        reply: Sequence[Any] = await changed
        return reply


def _code_of(reply: Sequence[Any]) -> ErrorCode:
    return ErrorCode(i16(reply[0]))


def _topic_of(name: str, reply: Sequence[Any]) -> tuple[ErrorCode, Topic | None]:
    code = _code_of(reply)
    return code, parse_topic(name.encode(), reply[1]) if code is ErrorCode.none else None


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
