"""Subscriptions of client metrics, and clients that ask for theirs and push (KIP-714).

Source: ClientMetricsManager, ClientMetricsConfigs.
"""

from typing import Any, Final
from uuid import UUID

from tests.oracle.script import Script, Step

CLIENT_METRICS: Final = 16
SET, DELETE, APPEND = range(3)
ID, OTHER_ID = UUID(int=0x1234_5678_9ABC_DEF0 << 64 | 0xFEDC), UUID(int=0xFFFF_FFFF_0000_0007 << 64 | 1 << 63)
THIRD_ID: Final = UUID(int=3)
RESERVED: Final = UUID(int=1)
EVERYTHING: Final = ("interval.ms", "match", "metrics")


def described(*keys: str, name: str = "$t", errors: tuple[str, ...] | None = (), **more: Any) -> Step:
    """DescribeConfigs of a subscription."""
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configuration_keys": list(keys) or None}
    return Step("describe_configs", {"resources": [resource], **more}, errors=errors)


def reads(key: str, value: str) -> Step:
    """Describe a config, after the broker has seen the change before it."""
    resource = {"resource_type": CLIENT_METRICS, "resource_name": "$t", "configuration_keys": [key]}
    return Step("describe_configs", {"resources": [resource]}, until=("results[0].configs[0].value", value))


def changed(key: str, value: str | None, *errors: str, operation: int = SET, name: str = "$t", **more: Any) -> Step:
    """IncrementalAlterConfigs of a subscription."""
    configs = [{"name": key, "config_operation": operation, "value": value}]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    return Step("incremental_alter_configs", {"resources": [resource], **more}, errors=errors)


def replaced(values: dict[str, str | None], *errors: str, name: str = "$t") -> Step:
    """AlterConfigs of a subscription."""
    configs = [{"name": key, "value": value} for key, value in values.items()]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    return Step("alter_configs", {"resources": [resource]}, errors=errors)


def asked(*errors: str, id: UUID | None = ID, **more: Any) -> Step:
    """GetTelemetrySubscriptions."""
    return Step("get_telemetry_subscriptions", {"client_instance_id": id}, errors=errors, **more)


def pushed(
    subscription: int | str, *errors: str, id: UUID | None = ID, codec: int = 0, data: bytes = b"", last: bool = False
) -> Step:
    """PushTelemetry."""
    body = {"client_instance_id": id, "subscription_id": subscription, "terminating": last, "compression_type": codec,
            "metrics": data}  # fmt: skip
    return Step("push_telemetry", body, errors=errors)


LISTED: Final = Step("list_config_resources", {"resource_types": [CLIENT_METRICS]})
# Other scripts' subscriptions must not match this client, whose id no other script uses.
ONLY_THIS: Final = "client_instance_id=AAAAAAAAAAAAAAAAAAAAFw"
THIS: Final = UUID(int=0x17)

SCRIPTS: Final = (
    Script("client metrics configs", "incremental_alter_configs",
           described(errors=None, include_synonyms=True, include_documentation=True), changed("interval.ms", "7000"),
           reads("interval.ms", "7000"), changed("metrics", "org.apache.kafka.producer., org.apache.kafka.consumer."),
           changed("match", "client_id=no-such-client-.*,client_software_name = none"),
           reads("match", "client_id=no-such-client-.*,client_software_name = none"), described(include_synonyms=True),
           described("metrics"), described("no.such"), LISTED, changed("interval.ms", "200", validate_only=True),
           changed("interval.ms", None, operation=DELETE), reads("interval.ms", "300000"),
           changed("match", None, operation=DELETE), changed("metrics", None, operation=DELETE), reads("metrics", ""),
           LISTED),
    Script("client metrics configs refused", "incremental_alter_configs",
           changed("interval.ms", "99", "INVALID_REQUEST"), changed("interval.ms", "3600001", "INVALID_REQUEST"),
           changed("interval.ms", "long", "INVALID_CONFIG"), changed("interval.ms", None, "INVALID_REQUEST"),
           changed("no.such", "1", "INVALID_REQUEST"), changed("no.such", None, operation=DELETE),
           changed("metrics", "a", "INVALID_CONFIG", operation=APPEND), changed("match", "client_id", "INVALID_CONFIG"),
           changed("match", "client_id=a=b", "INVALID_CONFIG"), changed("match", "client_id=", "INVALID_CONFIG"),
           changed("match", "client_ids=a", "INVALID_CONFIG"), changed("match", "client_id=(", "INVALID_CONFIG"),
           changed("metrics", "a", "INVALID_REQUEST", name=""), described(name="", errors=("INVALID_REQUEST",)),
           LISTED),
    Script("client metrics configs replaced", "alter_configs", changed("match", "client_id=no-such-client"),
           changed("interval.ms", "7000"), reads("interval.ms", "7000"),
           replaced({"match": "client_id=nobody", "metrics": ""}), reads("interval.ms", "300000"),
           reads("match", "client_id=nobody"), replaced({"interval.ms": "1"}, "INVALID_REQUEST"), replaced({}),
           reads("match", "")),
    Script("telemetry without subscriptions", "get_telemetry_subscriptions",
           asked(save={"id": "client_instance_id"}, id=None, ignore=("client_instance_id", "subscription_id")), asked(),
           asked("THROTTLING_QUOTA_EXCEEDED"), asked(id=OTHER_ID)),
    Script("telemetry with a subscription", "get_telemetry_subscriptions", changed("match", ONLY_THIS),
           changed("metrics", "org.apache.kafka.producer."), changed("interval.ms", "3600000"),
           reads("interval.ms", "3600000"), asked(id=THIS), changed("metrics", "*,org.apache.kafka.producer."),
           reads("metrics", "*,org.apache.kafka.producer."), asked(id=THIS), changed("match", None, operation=DELETE),
           changed("metrics", None, operation=DELETE), changed("interval.ms", None, operation=DELETE),
           reads("interval.ms", "300000")),
    Script("pushes of telemetry", "push_telemetry", asked(save={"s": "subscription_id"}), pushed("$s"),
           pushed("$s", "THROTTLING_QUOTA_EXCEEDED"), pushed("$s", last=True),
           pushed("$s", "INVALID_REQUEST", last=True), pushed("$s", "INVALID_REQUEST")),
    Script("pushes of telemetry refused", "push_telemetry", pushed(5, "INVALID_REQUEST", id=None),
           pushed(5, "INVALID_REQUEST", id=RESERVED), asked(save={"s": "subscription_id"}),
           pushed(5, "UNKNOWN_SUBSCRIPTION_ID"), asked(), pushed("$s", "THROTTLING_QUOTA_EXCEEDED"),
           asked("THROTTLING_QUOTA_EXCEEDED"), asked(id=OTHER_ID, save={"s": "subscription_id"}),
           pushed("$s", "UNSUPPORTED_COMPRESSION_TYPE", id=OTHER_ID, codec=5), asked(id=OTHER_ID),
           asked(id=THIRD_ID, save={"s": "subscription_id"}),
           pushed("$s", "TELEMETRY_TOO_LARGE", id=THIRD_ID, data=bytes(1048577)),
           asked("THROTTLING_QUOTA_EXCEEDED", id=THIRD_ID)),
)  # fmt: skip
