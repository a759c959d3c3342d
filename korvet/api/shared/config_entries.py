"""Configs as DescribeConfigs and CreateTopics show them.

Source: kafka.server.ConfigHelper.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from korvet.configs.brokers import BROKER_CONFIGS, BROKER_FACTS
from korvet.configs.client_metrics import CLIENT_METRICS_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS, GROUP_FACTS
from korvet.configs.listeners import broker_config
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import Config, Source, split
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.settings import NOTHING, Effective
from korvet.store.catalog.topic import Topic
from korvet.store.groups import why_unstable
from korvet.store.groups.types import GroupDescription

Entry = Mapping[str, object]


def topic_entries(catalog: Catalog, topic: Topic) -> list[Entry]:
    """All configs of a topic, by name."""
    return [_topic_entry(catalog, topic, config) for config in TOPIC_CONFIGS.values()]


def broker_entries(catalog: Catalog, host: str, port: int) -> list[Entry]:
    """All configs of a broker, by name; except for the address every broker has the same."""
    advertised = BROKER_FACTS["advertised.listeners"]
    address = Effective(name=advertised.name, value=f"PLAINTEXT://{host}:{port}", source=Source.STATIC)
    of_listeners = filter(None, map(broker_config, catalog.listener_configs()))
    values = {config: catalog.broker_values(config.name) for config in (*BROKER_CONFIGS.values(), *of_listeners)}
    values[advertised] = [address]
    return [_entry(config, values[config]) for config in sorted(values, key=_name)]


def cluster_entries(catalog: Catalog) -> list[Entry]:
    """The configs that are set for all brokers, by name."""
    return [
        _entry(BROKER_CONFIGS[name], [Effective(name=name, value=value, source=Source.CLUSTER)])
        for name, value in sorted(catalog.cluster_configs().items())
        if name in BROKER_CONFIGS
    ]


def group_entries(catalog: Catalog, group_id: str, group: GroupDescription | None) -> list[Entry]:
    """All configs of a group, which need not exist (ConfigHelper), and the facts of a group that exists."""
    own = catalog.group_configs(group_id)
    entries = []
    for name, config in GROUP_CONFIGS.items():
        source = Source.GROUP if name in own else Source.DEFAULT
        value = own[name] if name in own else catalog.group_setting(group_id, name)
        entries.append(_entry(config, [Effective(name=name, value=value, source=source)]))
    facts = {} if group is None else _facts(catalog, group)
    return entries + [
        _entry(GROUP_FACTS[name], [Effective(name=name, value=value, source=Source.GROUP)])
        for name, value in facts.items()
    ]


def client_metrics_entries(catalog: Catalog, name: str) -> list[Entry]:
    """All configs of a subscription, which need not exist."""
    own = catalog.client_metrics.get(name, NOTHING)
    entries = []
    for config in CLIENT_METRICS_CONFIGS.values():
        # Kafka shows these as it read them, and not as they were set.
        text = ",".join(split(own.get(config.name, "")))
        value = Effective(name=config.name, value=text, source=Source.CLIENT_METRICS)
        entries.append(_entry(config, [value] if config.name in own else []))
    return entries


def _facts(catalog: Catalog, group: GroupDescription) -> Mapping[str, str]:
    said = why_unstable.waits(group, lambda id: _topic_name(catalog, id))
    return {
        "korvet.group.id": group.id,
        "korvet.group.locator": group.locator,
        "korvet.group.waits": "; ".join(said),
    }


def _topic_name(catalog: Catalog, id: UUID) -> str:
    topic = catalog.topic_by_id(id)
    return str(id) if topic is None else topic.name


def _name(config: Config) -> str:
    return config.name


def _topic_entry(catalog: Catalog, topic: Topic, config: Config) -> Entry:
    values = catalog.broker_values(config.synonym)
    if config.name in topic.configs:
        values.insert(0, Effective(name=config.name, value=topic.configs[config.name], source=Source.TOPIC))
    return _entry(config, values)


def _entry(config: Config, values: list[Effective]) -> Entry:
    counts = values[0] if values else Effective(name=config.name, value=config.default or "", source=Source.DEFAULT)
    return {
        "name": config.name,
        # A broker's config without any value is null; a topic's config always has a default of its own.
        "value": counts.value if values or config.default is not None else None,
        "read_only": config.read_only,
        "config_source": counts.source,
        "is_sensitive": False,
        "synonyms": [{"name": value.name, "value": value.value, "source": value.source} for value in values],
        "config_type": config.kind,
        "documentation": config.documentation,
    }
