"""What is set for the cluster, for topics, groups and client metrics, and the value that counts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote
from uuid import UUID

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.listeners import broker_config, listener_config
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import Config, Source
from korvet.store.catalog.topic import Topic

_GROUP: Final = "group:"
"""Fields of the configs' hash that are a group's: this, its id percent-encoded, a colon and the config's name."""
_CLIENT_METRICS: Final = "client-metrics:"
"""As `_GROUP`, for the subscriptions of client metrics."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NOTHING_SET: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({})


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
        """The change as the library's functions take it."""
        return json.dumps({"set": dict(self.set), "delete": list(self.delete), "replace": self.replace})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A config's value under one of its names, and where it was set."""

    name: str
    value: str
    source: Source


class Settings:
    """The settings of a namespace as last read; no I/O. ``static`` are broker configs of a front-end's config file."""

    def __init__(self, static: Mapping[str, str]) -> None:
        self._static = static
        self._cluster_configs: Mapping[str, str] = NOTHING
        self._group_configs: Mapping[str, Mapping[str, str]] = _NOTHING_SET
        self.client_metrics: Mapping[str, Mapping[str, str]] = _NOTHING_SET
        """The configs of all subscriptions, by name; the same object while they are the same."""
        self._effective: dict[tuple[UUID | None, str], str] = {}
        self.limits: Mapping[str, int] = {}
        """The operator's limits of a tenant (`korvet.store.tenants.Limit`)."""

    def at_most(self, name: str, limit: str) -> int:
        """A bound's setting, or a tenant's limit if that is lower."""
        bound = int(self.setting(None, name))
        return min(bound, self.limits.get(limit, bound))

    def _take_static(self, static: Mapping[str, str]) -> None:
        self._static = static
        self._effective.clear()

    def _take_configs(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        cluster: dict[str, str] = {}
        groups: dict[str, dict[str, str]] = {}
        subscriptions: dict[str, dict[str, str]] = {}
        for field, value in fields:
            name = field.decode()
            if name.startswith(_GROUP):
                group_id, _, config = name.removeprefix(_GROUP).partition(":")
                groups.setdefault(group_id, {})[config] = value.decode()
            elif name.startswith(_CLIENT_METRICS):
                subscription, _, config = name.removeprefix(_CLIENT_METRICS).partition(":")
                subscriptions.setdefault(unquote(subscription), {})[config] = value.decode()
            else:
                cluster[name] = value.decode()
        self._cluster_configs, self._group_configs = cluster, groups
        if subscriptions != self.client_metrics:
            self.client_metrics = subscriptions
        self._effective.clear()

    def setting(self, topic: Topic | None, name: str) -> str:
        """A config's effective value: the topic's own, else the cluster's, else the config file's, else the default.

        :raises KeyError: if korvet knows no config of that name.
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
            config = broker_config(name)
            if config is None:
                raise KeyError(name)
            chain.append(config)
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

    def listener_configs(self) -> Sequence[str]:
        """The names of the configs that the config file sets for single listeners."""
        return [name for name in self._static if listener_config(name) is not None]

    def cluster_configs(self) -> Mapping[str, str]:
        """What is set for all brokers."""
        return self._cluster_configs

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """What is set for a group, whether or not it exists."""
        return self._group_configs.get(quote(group_id, safe=""), NOTHING)

    def configured_groups(self) -> list[str]:
        """The groups for which something is set."""
        return [unquote(group_id) for group_id in self._group_configs]

    def group_setting(self, group_id: str, name: str) -> str:
        """A group config's effective value: the group's own, else the broker's.

        :raises KeyError: if korvet knows no config of that name.
        """
        own = self._group_configs and self.group_configs(group_id).get(name)
        return own.strip() if own else self.setting(None, GROUP_CONFIGS[name].synonym or name)

    def group_change(self, group_id: str, change: ConfigChange) -> ConfigChange:
        """A change of a group's configs as one of the fields in which the catalog keeps them."""
        return _change_of(f"{_GROUP}{quote(group_id, safe='')}:", self.group_configs(group_id), change)

    def client_metrics_change(self, name: str, change: ConfigChange) -> ConfigChange:
        """As `group_change`, for a subscription."""
        own = self.client_metrics.get(name, NOTHING)
        return _change_of(f"{_CLIENT_METRICS}{quote(name, safe='')}:", own, change)


def _change_of(prefix: str, configs: Mapping[str, str], change: ConfigChange) -> ConfigChange:
    delete = configs.keys() - change.set.keys() if change.replace else change.delete
    return ConfigChange(
        set={prefix + name: value for name, value in change.set.items()}, delete=[prefix + name for name in delete]
    )
