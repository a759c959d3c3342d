"""The topics and the cluster-wide configs: a cache of the catalog in Redis, and the calls that change it.

The cache follows the catalog's channel and is read again now and then; whoever must be sure calls `Catalog.refresh`,
which transfers nothing while the version is the same. What a topic's life asks of both catalog and partitions is in
`korvet.store.topics`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from korvet.errors import KorvetError, StoreError, StoreFull, StoreUnavailable
from korvet.store.client import Purpose, Store
from korvet.store.config_tables import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS
from korvet.store.configs import Config, Source
from korvet.store.keys import Namespace
from korvet.store.wakeup import Wakeups

log = structlog.get_logger()

_REFRESH_S = 30.0
_GROUP: Final = "group:"
"""Fields of the configs' hash that are a group's: this, its id percent-encoded, a colon and the config's name."""
_UNKNOWN_VERSION = -1
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NOTHING_SET: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the catalog has it; ``configs`` are its own, as they were set. Clients do not see a deleting one."""

    name: str
    id: UUID
    partitions: int
    configs: Mapping[str, str]
    deleting: bool = False


class _Entry(NamedTuple):
    """A topic as its text was read; ``digest`` is of what consumers see of it, 0 while it is being deleted."""

    text: bytes
    topic: Topic
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """What to set and what to drop; with ``replace`` everything that is not set is dropped."""

    set: Mapping[str, str]
    delete: Collection[str] = ()
    replace: bool = False

    def applied_to(self, configs: Mapping[str, str]) -> dict[str, str]:
        """The configs after the change."""
        kept = {} if self.replace else {name: value for name, value in configs.items() if name not in self.delete}
        return {**kept, **self.set}

    def as_json(self) -> str:
        return json.dumps({"set": dict(self.set), "delete": list(self.delete), "replace": self.replace})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A config's value under one of its names, and where it was set."""

    name: str
    value: str
    source: Source


class Catalog:
    """One front-end's view of the catalog. ``static`` are broker configs of the front-end's own config file."""

    def __init__(
        self, namespace: Namespace, store: Store, wakeups: Wakeups, static: Mapping[str, str] = _NOTHING
    ) -> None:
        self.cluster_id = ""
        self.generation = 0
        """Counts the states that were read: what was made of settings is good while this is the same."""
        self.topics_digest = ""
        """The same wherever there are the same topics, by name, id and number of partitions, whatever their configs."""
        self._keys = namespace.catalog
        self._store = store
        self._wakeups = wakeups
        self._static = static
        self._version = _UNKNOWN_VERSION
        self._cluster_configs: Mapping[str, str] = _NOTHING
        self._group_configs: Mapping[str, Mapping[str, str]] = _NOTHING_SET
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._deleting: list[Topic] = []
        self._parsed: dict[bytes, _Entry] = {}
        self._effective: dict[tuple[UUID | None, str], str] = {}
        store.on_history_change(self._distrust)

    # ------------------------------------------------------------------ the cache

    async def open(self) -> None:
        """Mint the cluster id where there is none, and read everything.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        await self._init(base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="))
        await self.refresh()

    async def _init(self, cluster_id: str) -> None:
        await self._store.fcall(Purpose.COORDINATE, "korvet_catalog_init", self._keys, cluster_id)

    async def follow(self) -> None:
        """Keep the cache current until cancelled: read at each change that is announced, and every 30 s."""
        while True:
            with self._wakeups.listen([self._keys.meta]) as listening:
                await listening.ready()
                try:
                    await self.refresh()
                except KorvetError as error:
                    log.warning("the catalog cannot be read; its last known state serves", reason=str(error))
                await listening.wait(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the catalog; nothing is transferred when the version is the known one.

        A catalog that was lost gets the cluster id back: clients know the cluster by it.

        :raises StoreUnavailable, StoreError:
        """
        asked = self._version
        reply = await self._read(asked)
        self._take(asked, reply)
        if not reply[2]:
            with suppress(StoreFull):
                await self._init(self.cluster_id)

    def _read(self, known_version: int) -> Awaitable[Any]:
        return self._store.fcall(Purpose.COORDINATE, "korvet_catalog_read", self._keys, known_version)

    def _take(self, asked: int, reply: Any) -> None:
        """Take over a read's reply: they come in the order of the reads, so the last one is the newest."""
        _, version, cluster_id, topics, configs = reply
        self.cluster_id = cluster_id.decode() or self.cluster_id
        if version != asked:
            self._cluster_configs, self._group_configs = _sorted_configs(configs)
            self._replace_topics(topics)
            self._effective.clear()
            self.generation += 1
            self._version = version

    def topic(self, name: str) -> Topic | None:
        """The topic of this name as last read; no I/O."""
        return self._topics.get(name)

    def topic_by_id(self, id: UUID) -> Topic | None:
        """The topic of this id as last read; no I/O."""
        return self._by_id.get(id)

    def topics(self) -> Collection[Topic]:
        """All topics but those that are being deleted, as last read; no I/O."""
        return self._topics.values()

    def deleting(self) -> Sequence[Topic]:
        """The topics whose deletion has begun and not ended, as last read; no I/O."""
        return self._deleting

    def _distrust(self) -> None:
        """After history went back, the known version may come again with another content."""
        self._version = _UNKNOWN_VERSION

    def _replace_topics(self, flat: Sequence[bytes]) -> None:
        """Take the catalog's topics over, parsing only those whose text is new."""
        parsed: dict[bytes, _Entry] = {}
        for name, text in _pairs(flat):
            known = self._parsed.get(name)
            parsed[name] = known if known is not None and known.text == text else _entry(name, text)
        topics = [entry.topic for entry in parsed.values()]
        self._parsed = parsed
        self.topics_digest = f"{sum(entry.digest for entry in parsed.values()):x}"
        self._topics = {topic.name: topic for topic in topics if not topic.deleting}
        self._by_id = {topic.id: topic for topic in topics if not topic.deleting}
        self._deleting = [topic for topic in topics if topic.deleting]

    # ------------------------------------------------------------------ configs

    def setting(self, topic: Topic | None, name: str) -> str:
        """A config's effective value: the topic's own, else the cluster's, else the config file's, else the default.

        :raises KeyError: when korvet knows no config of that name.
        """
        key = (None if topic is None else topic.id, name)
        value = self._effective.get(key)
        if value is None:
            value = self._effective[key] = self._setting(topic, name)
        return value

    def _setting(self, topic: Topic | None, name: str) -> str:
        config = TOPIC_CONFIGS[name] if topic is not None else BROKER_CONFIGS.get(name) or TOPIC_CONFIGS[name]
        if topic is not None and name in topic.configs:
            return topic.configs[name].strip()
        chain = self.broker_values(config.synonym if config.name in TOPIC_CONFIGS else name)
        set_values = (effective.value for effective in chain if effective.source is not Source.DEFAULT)
        return next(set_values, config.default or "").strip()

    def broker_values(self, name: str | None) -> list[Effective]:
        """Every value a broker config has, the one that counts first (kafka.server.ConfigHelper.configSynonyms)."""
        chain: list[Config] = []
        while name is not None:
            chain.append(BROKER_CONFIGS[name])
            name = chain[-1].synonym
        values = [
            Effective(name=config.name, value=layer[config.name], source=source)
            for source, layer in ((Source.CLUSTER, self._cluster_configs), (Source.STATIC, self._static))
            for config in chain
            if config.name in layer
        ]
        values += [
            Effective(name=config.name, value=config.default, source=Source.DEFAULT)
            for config in chain
            if config.default is not None
        ]
        # A value under a fallback's name alone is not listed under the first name.
        return list(dropwhile(lambda effective: effective.name != chain[0].name, values))

    def cluster_configs(self) -> Mapping[str, str]:
        """What is set for all brokers, as last read; no I/O."""
        return self._cluster_configs

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """What is set for a group, whether or not it exists, as last read; no I/O."""
        return self._group_configs.get(quote(group_id, safe=""), _NOTHING)

    def configured_groups(self) -> list[str]:
        """The groups for which something is set, as last read; no I/O."""
        return [unquote(group_id) for group_id in self._group_configs]

    def group_setting(self, group_id: str, name: str) -> str:
        """A group config's effective value: the group's own, else the broker's.

        :raises KeyError: when korvet knows no config of that name.
        """
        own = self._group_configs and self.group_configs(group_id).get(name)
        return own.strip() if own else self.setting(None, GROUP_CONFIGS[name].synonym or name)

    # ------------------------------------------------------------------ changes

    async def create(
        self, name: str, id: UUID, partitions: int, configs: Mapping[str, str]
    ) -> tuple[ErrorCode, Topic | None]:
        """Enter a topic; its partitions' keys come after it. TOPIC_ALREADY_EXISTS also while the former one is deleted.

        :returns: the code and, without an error, the topic; so does `grow`.
        :raises StoreUnavailable, StoreFull, StoreError: as do the other changes.
        """
        text = json.dumps(dict(configs))
        return _topic_of(name, await self._change("korvet_topic_create", name, id.hex, partitions, text))

    async def grow(self, topic: Topic, partitions: int) -> tuple[ErrorCode, Topic | None]:
        """Raise the number of partitions. UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS."""
        reply = await self._change("korvet_topic_grow", topic.name, topic.id.hex, partitions)
        return _topic_of(topic.name, reply)

    async def configure(self, topic: Topic, change: ConfigChange) -> ErrorCode:
        """Change a topic's own configs. UNKNOWN_TOPIC_OR_PARTITION."""
        reply = await self._change("korvet_topic_configure", topic.name, topic.id.hex, change.as_json())
        return _code_of(reply)

    async def begin_delete(self, topic: Topic) -> ErrorCode:
        """Hide a topic; repeatable. UNKNOWN_TOPIC_OR_PARTITION."""
        return _code_of(await self._change("korvet_topic_delete", topic.name, topic.id.hex, "begin"))

    async def finish_delete(self, topic: Topic) -> ErrorCode:
        """Forget a topic whose partitions are gone; repeatable. UNKNOWN_TOPIC_OR_PARTITION."""
        return _code_of(await self._change("korvet_topic_delete", topic.name, topic.id.hex, "finish"))

    async def configure_cluster(self, change: ConfigChange) -> ErrorCode:
        """Change the cluster-wide configs."""
        return _code_of(await self._change("korvet_catalog_configure", change.as_json()))

    async def configure_group(self, group_id: str, change: ConfigChange) -> ErrorCode:
        """Change a group's own configs; it need not exist."""
        prefix = f"{_GROUP}{quote(group_id, safe='')}:"
        delete = self.group_configs(group_id).keys() - change.set.keys() if change.replace else change.delete
        own = ConfigChange(
            set={prefix + name: value for name, value in change.set.items()}, delete=[prefix + name for name in delete]
        )
        return _code_of(await self._change("korvet_catalog_configure", own.as_json()))

    async def _change(self, function: str, *args: str | int) -> Sequence[Any]:
        # The read is queued behind the change, so one round trip does both.
        asked = self._version
        changed = self._store.fcall(Purpose.COORDINATE, function, self._keys, *args)
        read = self._read(asked)
        try:
            reply: Sequence[Any] = await changed
        finally:
            # The change counts; a lost read is made up for by `follow`.
            with suppress(StoreUnavailable):
                self._take(asked, await read)
        return reply


def _code_of(reply: Sequence[Any]) -> ErrorCode:
    return ErrorCode(i16(reply[0]))


def _topic_of(name: str, reply: Sequence[Any]) -> tuple[ErrorCode, Topic | None]:
    code = _code_of(reply)
    return code, parse_topic(name.encode(), reply[1]) if code is ErrorCode.none else None


def _sorted_configs(flat: Sequence[bytes]) -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]:
    """The cluster's configs, and the groups' by their ids as they are written."""
    cluster: dict[str, str] = {}
    groups: dict[str, dict[str, str]] = {}
    for field, value in _pairs(flat):
        name = field.decode()
        if name.startswith(_GROUP):
            group_id, _, config = name.removeprefix(_GROUP).partition(":")
            groups.setdefault(group_id, {})[config] = value.decode()
        else:
            cluster[name] = value.decode()
    return cluster, groups


def _entry(name: bytes, text: bytes) -> _Entry:
    topic = parse_topic(name, text)
    seen = f"{topic.name} {topic.id.hex} {topic.partitions}".encode()
    digest = 0 if topic.deleting else int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest())
    return _Entry(text, topic, digest)


def parse_topic(name: bytes, text: bytes) -> Topic:
    """A topic from the catalog's JSON.

    :raises StoreError: when it is not what the contract says.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        return Topic(
            name=name.decode(),
            id=UUID(hex=values["id"]),
            partitions=int(values["partitions"]),
            # Lua writes an empty table as an array or an object.
            configs=MappingProxyType(dict(values.get("configs") or {})),
            deleting=bool(values.get("deleting")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the catalog's entry of topic {name!r} is corrupt: {error!r}") from error


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
