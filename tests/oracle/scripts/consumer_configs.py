"""Configs of groups of the consumer protocol."""

from typing import Any, Final

from tests.oracle.script import Script, Step
from tests.oracle.scripts.consumer_steps import beat, group_config, join, known_topic


def describe_config(*keys: str, group: str = "$g", **more: Any) -> Step:
    """DescribeConfigs of a group."""
    resource = {"resource_type": 32, "resource_name": group, "configuration_keys": list(keys) or None}
    return Step("describe_configs", {"resources": [resource], **more}, errors=None)


CONSUMER_CONFIGS: Final = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")


def config_reads(name: str, value: str) -> Step:
    """Describe a config of a group, after the broker has seen the change before it."""
    resource = {"resource_type": 32, "resource_name": "$g", "configuration_keys": [name]}
    return Step("describe_configs", {"resources": [resource]}, until=("results[0].configs[0].value", value))


def configured(*types: int, errors: tuple[str, ...] = ()) -> Step:
    """ListConfigResources."""
    return Step("list_config_resources", {"resource_types": list(types)}, errors=errors)


SCRIPTS: Final = (
    Script("list config resources", "list_config_resources", *known_topic(1),
           group_config("consumer.session.timeout.ms", "50000"), config_reads("consumer.session.timeout.ms", "50000"),
           join("m", group_id="$h"), configured(), *(configured(kind) for kind in (2, 4, 8, 16, 32)),
           configured(32, 2)),
    Script("list config resources refused", "list_config_resources", configured(32, 5, errors=("UNSUPPORTED_VERSION",)),
           configured(0, errors=("UNSUPPORTED_VERSION",)), versions=(1,)),
    Script("configs of consumer groups", "incremental_alter_configs", *known_topic(1),
           describe_config(include_synonyms=True), group_config("consumer.session.timeout.ms", " +050000"),
           config_reads("consumer.session.timeout.ms", "50000"),
           describe_config(*CONSUMER_CONFIGS, include_synonyms=True),
           group_config("consumer.heartbeat.interval.ms", "7000"),
           config_reads("consumer.heartbeat.interval.ms", "7000"), join("m", until=("heartbeat_interval", 7000)),
           group_config("consumer.heartbeat.interval.ms", None, operation=1),
           config_reads("consumer.heartbeat.interval.ms", "5000"), beat("m", 1, until=("heartbeat_interval", 5000)),
           group_config("consumer.heartbeat.interval.ms", None, operation=1), describe_config(*CONSUMER_CONFIGS)),
    Script(
        "configs of groups of other kinds",
        "incremental_alter_configs",
        *(
            group_config(name, value)
            for name, value in (
                ("share.auto.offset.reset", "by_duration:PT1H30M"),
                ("share.isolation.level", "read_committed"),
                ("streams.num.standby.replicas", "2"),
                ("share.record.lock.duration.ms", "15000"),
            )
        ),
        config_reads("share.record.lock.duration.ms", "15000"),
        describe_config(include_synonyms=True),
    ),
    Script("configs of consumer groups refused", "incremental_alter_configs",
           group_config("consumer.session.timeout.ms", "999", "INVALID_CONFIG"),
           group_config("share.session.timeout.ms", "44999", "INVALID_CONFIG"),
           group_config("share.record.lock.duration.ms", "60001", "INVALID_CONFIG"),
           group_config("share.auto.offset.reset", "by_duration:1", "INVALID_CONFIG"),
           group_config("share.isolation.level", "7", "INVALID_CONFIG"),
           group_config("streams.num.standby.replicas", "3", "INVALID_CONFIG"),
           group_config("streams.heartbeat.interval.ms", "15001", "INVALID_CONFIG"),
           group_config("consumer.session.timeout.ms", "60001", "INVALID_CONFIG"),
           group_config("consumer.session.timeout.ms", "4000", "INVALID_CONFIG"),
           group_config("consumer.session.timeout.ms", "long", "INVALID_CONFIG"),
           group_config("consumer.session.timeout.ms", None, "INVALID_REQUEST"),
           group_config("consumer.session.timeout.ms", "50000", "INVALID_CONFIG", operation=2),
           group_config("consumer.heartbeat.interval.ms", "499", "INVALID_CONFIG"),
           group_config("consumer.heartbeat.interval.ms", "15001", "INVALID_CONFIG"),
           group_config("no.such.config", "1", "INVALID_CONFIG"),
           group_config("consumer.session.timeout.ms", "50000", "INVALID_REQUEST", group=""),
           describe_config(*CONSUMER_CONFIGS), describe_config("no.such.config"),
           describe_config(*CONSUMER_CONFIGS, group="")),
)  # fmt: skip
