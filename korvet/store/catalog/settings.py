"""The configs set for the cluster, topics, groups, client metrics and brokers, and the effective values."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

import structlog

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.listeners import broker_config, listener_config
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import Config, Source, normal, parse
from korvet.store.catalog.topic import Topic

log = structlog.get_logger()

T = TypeVar("T")
GroupSetting = Callable[[str], str]
"""A group config's effective value by its name."""
_MOST_GROUPS: Final = 10_000

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
Owned = Mapping[str, Mapping[str, str]]
"""Configs by the name of the resource."""
_NOTHING_SET: Final[Owned] = MappingProxyType({})


class Owner(StrEnum):
    """A resource type, other than topics, with own configs.

    A field of the configs' hash is this value, the resource's percent-encoded name and the config's name, joined by
    colons.
    """

    GROUP = "group"
    CLIENT_METRICS = "client-metrics"
    BROKER = "broker"


_OWNERS: Final = frozenset(map(str, Owner))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Configs to set and to drop; ``replace`` drops everything else."""

    set: Mapping[str, str]
    delete: Collection[str] = ()
    replace: bool = False

    def applied_to(self, configs: Mapping[str, str]) -> dict[str, str]:
        """The configs after the change."""
        kept = {} if self.replace else {name: value for name, value in configs.items() if name not in self.delete}
        return {**kept, **self.set}

    def as_json(self) -> str:
        """The change as the library's functions expect it."""
        return json.dumps({"set": dict(self.set), "delete": list(self.delete), "replace": self.replace})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A config's value under one of its names, and its source."""

    name: str
    value: str
    source: Source


@lru_cache(1024)
def _is_value(config: Config, text: str) -> bool:
    """True if a text is of the config's type. Another one, which no front-end writes, counts as not set.

    Else one text in Redis would end every front-end. Its range is not judged: another version may have another one.
    """
    try:
        parse(config.kind, text)
    except ValueError as error:
        event = "a setting in Redis counts as not set; set it anew, or delete it"
        log.error(event, config=config.name, value=text, reason=str(error))
        return False
    return True


class Settings:
    """The settings of a namespace as last read; no I/O. ``static`` are broker configs of a front-end's config file."""

    def __init__(self, static: Mapping[str, str]) -> None:
        self._static = static
        self._cluster_configs: Mapping[str, str] = NOTHING
        self._own: dict[Owner, Owned] = dict.fromkeys(Owner, _NOTHING_SET)
        self._effective: dict[tuple[UUID | None, str], str] = {}
        self._integers: dict[tuple[UUID | None, str], int] = {}
        self._of_groups: dict[tuple[str, Callable[[GroupSetting], Any]], Any] = {}
        self.limits: Mapping[str, int] = {}
        """The operator's limits of a tenant (`korvet.store.tenants.TenantLimit`)."""

    def at_most(self, name: str, limit: str) -> int:
        """A bound's setting, or the tenant's limit if lower."""
        bound = self.integer(None, name)
        return min(bound, self.limits.get(limit, bound))

    def _take_static(self, static: Mapping[str, str]) -> None:
        self._static = static
        self._effective.clear()
        self._integers.clear()
        self._of_groups.clear()

    def _take_configs(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        cluster: dict[str, str] = {}
        own: dict[Owner, dict[str, dict[str, str]]] = {owner: {} for owner in Owner}
        for field, value in ((name.decode(errors="replace"), text.decode(errors="replace")) for name, text in fields):
            first, *others = field.split(":", 2)
            if len(others) == 2 and first in _OWNERS:
                own[Owner(first)].setdefault(unquote(others[0]), {})[others[1]] = value
            else:
                cluster[field] = value
        self._cluster_configs = cluster
        self._own.update((owner, found) for owner, found in own.items() if found != self._own[owner])
        self._effective.clear()
        self._integers.clear()
        self._of_groups.clear()

    def setting(self, topic: Topic | None, name: str) -> str:
        """A config's effective value: the topic's own, else the cluster's, else the config file's, else the default.

        :returns: the value as Kafka prints it, however it was typed.
        :raises KeyError: if korvet knows no config of that name.
        """
        key = (None if topic is None else topic.id, name)
        value = self._effective.get(key)
        if value is None:
            value = self._effective[key] = self._setting(topic, name)
        return value

    def integer(self, topic: Topic | None, name: str) -> int:
        """`setting` of a config that is a whole number."""
        key = (None if topic is None else topic.id, name)
        value = self._integers.get(key)
        if value is None:
            value = self._integers[key] = int(self.setting(topic, name))
        return value

    def boolean(self, topic: Topic | None, name: str) -> bool:
        """`setting` of a config that is true or false."""
        return self.setting(topic, name) == "true"

    def _setting(self, topic: Topic | None, name: str) -> str:
        config = TOPIC_CONFIGS[name] if topic is not None else BROKER_CONFIGS.get(name) or TOPIC_CONFIGS[name]
        own = [] if topic is None or name not in topic.configs else [topic.configs[name]]
        chain = self.broker_values(config.synonym if config.name in TOPIC_CONFIGS else name)
        texts = [*own, *(effective.value for effective in chain if effective.source is not Source.DEFAULT)]
        return normal(config.kind, next((text for text in texts if _is_value(config, text)), config.default or ""))

    def broker_values(self, name: str | None, own: Mapping[str, str] = NOTHING) -> list[Effective]:
        """Every value of a broker config, the effective one first (kafka.server.ConfigHelper.configSynonyms).

        :param own: the configs set for one broker. They are shown as the broker's, but have no effect.
        """
        chain: list[Config] = []
        while name is not None:
            config = broker_config(name)
            if config is None:
                raise KeyError(name)
            chain.append(config)
            name = chain[-1].synonym
        values = [
            Effective(name=config.name, value=layer[config.name], source=source)
            for source, layer in (
                (Source.BROKER, own),
                (Source.CLUSTER, self._cluster_configs),
                (Source.STATIC, self._static),
            )
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

    def listener_configs(self) -> Sequence[str]:
        """The names of listener configs in the config file."""
        return [name for name in self._static if listener_config(name) is not None]

    def cluster_configs(self) -> Mapping[str, str]:
        """The configs set for all brokers."""
        return self._cluster_configs

    def owned(self, owner: Owner) -> Owned:
        """The own configs of all resources of a type that have some; the same object while unchanged.

        A group need not exist.
        """
        return self._own[owner]

    def own(self, owner: Owner, name: str) -> Mapping[str, str]:
        """A resource's own configs."""
        return self._own[owner].get(name, NOTHING)

    def group_setting(self, group_id: str, name: str) -> str:
        """A group config's effective value: the group's own, else the broker's.

        :raises KeyError: if korvet knows no config of that name.
        """
        config, own = GROUP_CONFIGS[name], self.own(Owner.GROUP, group_id).get(name)
        if own and _is_value(config, own):
            return normal(config.kind, own)
        return self.setting(None, config.synonym) if config.synonym else config.default or ""

    def of_group(self, group_id: str, make: Callable[[GroupSetting], T]) -> T:
        """What a function makes of a group's configs, kept until some config changes.

        :param make: gets `group_setting` of the group.
        """
        key = group_id, make
        if key not in self._of_groups:
            if len(self._of_groups) >= _MOST_GROUPS:
                self._of_groups.clear()
            self._of_groups[key] = make(partial(self.group_setting, group_id))
        made: T = self._of_groups[key]
        return made

    def own_change(self, owner: Owner, name: str, change: ConfigChange) -> ConfigChange:
        """A change of a resource's own configs, in terms of the catalog's fields."""
        prefix, own = f"{owner}:{quote(name, safe='')}:", self.own(owner, name)
        delete = own.keys() - change.set.keys() if change.replace else change.delete
        return ConfigChange(
            set={prefix + name: value for name, value in change.set.items()}, delete=[prefix + name for name in delete]
        )
