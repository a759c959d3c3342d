"""Configs as DescribeConfigs and CreateTopics show them.

A value has Kafka's normal form, however it was typed: ` 086400000 ` is 86400000. Redis keeps it as it was typed.
Answers show that form where Kafka does: in the cluster's own list, a broker's synonyms, and the answer of CreateTopics.

Source: kafka.server.ConfigHelper.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from korvet.api.shared.nodes import Node
from korvet.configs.brokers import BROKER_CONFIGS, BROKER_FACTS, THROTTLES
from korvet.configs.client_metrics import CLIENT_METRICS_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS, GROUP_FACTS
from korvet.configs.listeners import broker_config
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import Config, Source, normal
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.settings import Effective, Owner
from korvet.store.catalog.topic import Topic
from korvet.store.groups import why_unstable
from korvet.store.groups.types import GroupDescription

Entry = Mapping[str, object]


def topic_entries(catalog: Catalog, topic: Topic) -> list[Entry]:
    """All configs of a topic, by name."""
    return [_topic_entry(catalog, topic, config) for config in TOPIC_CONFIGS.values()]


def created_entries(catalog: Catalog, topic: Topic) -> list[Entry]:
    """As `topic_entries`, with the topic's own values as typed (KafkaConfigSchema.resolveEffectiveTopicConfigs)."""
    own = topic.configs
    return [{**entry, "value": own.get(str(entry["name"]), entry["value"])} for entry in topic_entries(catalog, topic)]


def broker_entries(catalog: Catalog, broker: Node) -> list[Entry]:
    """All configs of a broker, by name. The broker's own values are shown, but the cluster's are in force."""
    advertised = BROKER_FACTS["advertised.listeners"]
    address = Effective(name=advertised.name, value=f"PLAINTEXT://{broker.host}:{broker.port}", source=Source.STATIC)
    of_listeners = filter(None, map(broker_config, catalog.listener_configs()))
    own = catalog.own(Owner.BROKER, str(broker.id))
    values = {config: catalog.broker_values(config.name, own) for config in (*BROKER_CONFIGS.values(), *of_listeners)}
    values[advertised] = [address]
    return [_entry(one, values[one]) for one in sorted(values, key=_name) if values[one] or one.name not in THROTTLES]


def cluster_entries(catalog: Catalog) -> list[Entry]:
    """The configs set for all brokers, by name and as they were typed."""
    return [
        {
            **_entry(BROKER_CONFIGS[name], [Effective(name=name, value=value, source=Source.CLUSTER)]),
            "value": value,
        }
        for name, value in sorted(catalog.cluster_configs().items())
        if name in BROKER_CONFIGS
    ]


def group_entries(catalog: Catalog, group_id: str, group: GroupDescription | None) -> list[Entry]:
    """All configs of a group, which need not exist (ConfigHelper), and the facts of a group that exists."""
    own = catalog.own(Owner.GROUP, group_id)
    entries = [
        _entry(config, _own(config, own, Source.GROUP) + _defaults(catalog, config))
        for config in GROUP_CONFIGS.values()
    ]
    facts = {} if group is None else _facts(catalog, group)
    return entries + [
        _entry(GROUP_FACTS[name], [Effective(name=name, value=value, source=Source.GROUP)])
        for name, value in facts.items()
    ]


def _defaults(catalog: Catalog, config: Config) -> list[Effective]:
    """The values of a group without its own: the broker's, as Kafka 4.4 shows them."""
    own = Effective(name=config.name, value=config.default or "", source=Source.DEFAULT)
    return catalog.broker_values(config.synonym) or [own]


def client_metrics_entries(catalog: Catalog, name: str) -> list[Entry]:
    """All configs of a subscription, which need not exist."""
    own = catalog.own(Owner.CLIENT_METRICS, name)
    return [_entry(config, _own(config, own, Source.CLIENT_METRICS)) for config in CLIENT_METRICS_CONFIGS.values()]


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
    return _entry(config, _own(config, topic.configs, Source.TOPIC) + catalog.broker_values(config.synonym))


def _own(config: Config, own: Mapping[str, str], source: Source) -> list[Effective]:
    """A resource's own value; unlike a broker's, the synonyms show it in the normal form, too."""
    text = own.get(config.name)
    return [] if text is None else [Effective(name=config.name, value=normal(config.kind, text), source=source)]


def _entry(config: Config, values: list[Effective]) -> Entry:
    counts = values[0] if values else Effective(name=config.name, value=config.default or "", source=Source.DEFAULT)
    return {
        "name": config.name,
        # A broker's config without any value is null; a topic's config always has a default of its own.
        "value": normal(config.kind, counts.value) if values or config.default is not None else None,
        # Kafka accepts throttles, but knows them only by name.
        "read_only": config.read_only or config.name in THROTTLES,
        "config_source": counts.source,
        "is_sensitive": False,
        "synonyms": [{"name": value.name, "value": value.value, "source": value.source} for value in values],
        "config_type": config.kind,
        "documentation": config.documentation,
    }
