"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs of topics.

Source: ConfigurationControlManager, ConfigHelper.
"""

from typing import Any, Final

from tests.oracle.script import Script, Step
from tests.oracle.scripts.steps import config_body, new_topic

KEYS: Final = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.type",
    "compression.type",
    "min.insync.replicas",
    "delete.retention.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
)
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, GROUP = 2, 4, 32
# DescribeConfigsResponse.ConfigSource: the config is the topic's own.
TOPIC_CONFIG = 1


def _describe(
    *keys: str, name: str = "$t", kind: int = TOPIC, errors: tuple[str, ...] | None = (), **more: Any
) -> Step:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    return Step("describe_configs", {"resources": [resource], **more}, errors=errors)


def _reads(key: str, value: str) -> Step:
    """Describe one config, after the broker has seen the change before it."""
    return _described_until(key, "value", value)


def _described_until(
    key: str, field: str, expected: str | int, name: str = "$t", kind: int = TOPIC, **more: Any
) -> Step:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    body = {"resources": [resource], "include_synonyms": True}
    return Step("describe_configs", body, until=(f"results[0].configs[0].{field}", expected), **more)


DESCRIBE: Final = (
    Script("describe configs by name", "describe_configs", *new_topic(retention_ms="90000"),
           *(_describe(key) for key in KEYS), _describe(*KEYS)),
    Script("describe configs with synonyms and documentation", "describe_configs", *new_topic(retention_ms="90000"),
           _describe(*KEYS, include_synonyms=True, include_documentation=True)),
    Script(
        "describe configs every key",
        "describe_configs",
        *new_topic(),
        _describe(),
        Step("describe_configs",
             {"resources": [{"resource_type": TOPIC, "resource_name": "$t", "configuration_keys": []}]}),
    ),
    Script("describe configs unknown key", "describe_configs", *new_topic(), _describe("no.such"),
           _describe("retention.ms", "no.such", "retention.ms")),
    Script("describe configs refused", "describe_configs",
           _describe(*KEYS, name="$u", errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
           _describe(name="bad name", errors=("INVALID_TOPIC_EXCEPTION",)),
           _describe(name="", errors=("INVALID_TOPIC_EXCEPTION",)),
           _describe("num.partitions", name="4711", kind=BROKER, errors=("INVALID_REQUEST",)),
           _describe("num.partitions", name="x", kind=BROKER, errors=("INVALID_REQUEST",)),
           _describe(name="", kind=GROUP, errors=("INVALID_REQUEST",))),
    Script(
        "describe configs of a broker",
        "describe_configs",
        Step("metadata", {"topics": []}, save={"node": "brokers[0].node_id"}),
        _describe("num.partitions", "auto.create.topics.enable", "message.max.bytes", name="$node:text", kind=BROKER),
    ),
    Script("describe configs of a broker's address", "describe_configs",
           Step("metadata", {"topics": []}, save={"node": "brokers[0].node_id"}),
           _describe("advertised.listeners", name="$node:text", kind=BROKER)),
    Script(
        "describe configs of a resource of no kind",
        "describe_configs",
        _describe(kind=77, errors=None),
        *new_topic(),
        Step("describe_configs",
             {"resources": [{"resource_type": kind, "resource_name": "$t"} for kind in (TOPIC, 77)]},
             errors=("INVALID_REQUEST",)),
    ),
    Script(
        "describe configs of a topic twice",
        "describe_configs",
        *new_topic(),
        Step(
            "describe_configs",
            {
                "resources": [
                    {"resource_type": TOPIC, "resource_name": "$t", "configuration_keys": ["retention.ms"]},
                    {"resource_type": TOPIC, "resource_name": "$t", "configuration_keys": ["retention.bytes"]},
                ]
            },
            errors=None,
        ),
    ),
)  # fmt: skip


def _change(key: str, operation: int, value: str | None) -> dict[str, Any]:
    return {"name": key, "config_operation": operation, "value": value}


def _incremental(*changes: dict[str, Any], errors: tuple[str, ...] | None = (), name: str = "$t", **more: Any) -> Step:
    return Step("incremental_alter_configs", config_body(changes, name, **more), errors=errors)


GOOD: Final = _change("segment.ms", SET, "9")

INCREMENTAL: Final = (
    Script("incremental configs set and delete", "incremental_alter_configs", *new_topic(retention_ms="90000"),
           _incremental(_change("retention.ms", SET, "70000"), _change("max.message.bytes", SET, "2000")),
           _reads("retention.ms", "70000"), _reads("max.message.bytes", "2000"),
           _incremental(_change("retention.ms", DELETE, None)), _reads("retention.ms", "604800000"),
           _reads("max.message.bytes", "2000"),
           _incremental(_change("retention.bytes", DELETE, None), _change("no.such", DELETE, None))),
    Script("incremental configs append and subtract", "incremental_alter_configs", *new_topic(),
           _incremental(_change("cleanup.policy", APPEND, "delete")),
           _described_until("cleanup.policy", "config_source", TOPIC_CONFIG),
           _incremental(_change("follower.replication.throttled.replicas", APPEND, "0:1,1:1")),
           _reads("follower.replication.throttled.replicas", "0:1,1:1"),
           _incremental(_change("follower.replication.throttled.replicas", SUBTRACT, "0:1")),
           _reads("follower.replication.throttled.replicas", "1:1"),
           _incremental(_change("retention.ms", APPEND, "1"), errors=("INVALID_CONFIG",)),
           _incremental(_change("no.such", SUBTRACT, "1"), errors=("INVALID_CONFIG",)),
           _incremental(_change("retention.ms", SET, None), _change("no.such", APPEND, None), errors=None),
           _incremental(_change("cleanup.policy", SUBTRACT, "delete")), _reads("cleanup.policy", ""),
           _incremental(_change("cleanup.policy", APPEND, "delete")), _reads("cleanup.policy", "delete")),
    Script(
        "incremental configs refused",
        "incremental_alter_configs",
        *new_topic(),
        _incremental(GOOD, _change("no.such.config", SET, "1"), errors=("INVALID_CONFIG",)),
        _incremental(GOOD, _change("retention.ms", SET, "soon"), errors=("INVALID_CONFIG",)),
        _incremental(_change("retention.ms", SET, "-2"), errors=("INVALID_CONFIG",)),
        _incremental(GOOD, _change("retention.ms", SET, None), errors=None),
        _incremental(GOOD, _change("retention.ms", SET, "1"), _change("retention.ms", DELETE, None), errors=None),
        _incremental(_change("retention.ms", SET, "1"), name="$u", errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
        _incremental(_change("retention.ms", SET, "1"), name="bad name", errors=None),
        _incremental(_change("retention.ms", SET, "1"), kind=77, errors=None),
        _incremental(_change("retention.ms", SET, "1"), name="", errors=("INVALID_REQUEST",)),
        *(
            _incremental(_change("message.max.bytes", SET, "1"), name=name, kind=BROKER, errors=None)
            for name in ("4711", "x")
        ),
        _describe("retention.ms", "segment.ms", include_synonyms=True),
    ),
    Script("incremental configs by an unknown operation", "incremental_alter_configs", *new_topic(),
           _incremental(_change("retention.ms", 9, "1"), errors=("UNKNOWN_SERVER_ERROR",))),
    Script("incremental configs that compact", "incremental_alter_configs", *new_topic(),
           _incremental(_change("cleanup.policy", APPEND, "compact"))),
    Script("incremental configs validated only", "incremental_alter_configs", *new_topic(),
           _incremental(_change("retention.ms", SET, "5000"), validate_only=True),
           _incremental(_change("retention.ms", SET, "soon"), validate_only=True, errors=("INVALID_CONFIG",)),
           _describe("retention.ms")),
    Script(
        "incremental configs of a topic twice",
        "incremental_alter_configs",
        *new_topic(),
        *new_topic("w"),
        Step(
            "incremental_alter_configs",
            {
                "resources": [
                    {"resource_type": TOPIC, "resource_name": name, "configs": [_change("retention.ms", SET, "1")]}
                    for name in ("$t", "$t", "$u", "$w")
                ]
            },
            errors=("INVALID_REQUEST", "UNKNOWN_TOPIC_OR_PARTITION"),
        ),
        _described_until("retention.ms", "value", "1", "$w"),
        _describe("retention.ms"),
    ),
)  # fmt: skip


def _alter(
    *configs: tuple[str, str | None], errors: tuple[str, ...] | None = (), name: str = "$t", **more: Any
) -> Step:
    rows = [{"name": key, "value": value} for key, value in configs]
    return Step("alter_configs", config_body(rows, name, **more), errors=errors)


ALTER: Final = (
    Script("alter configs replaces what was set", "alter_configs", *new_topic(retention_ms="90000"),
           _alter(("max.message.bytes", "2000")), _reads("max.message.bytes", "2000"),
           _reads("retention.ms", "604800000"), _alter(), _reads("max.message.bytes", "1048588")),
    Script("alter configs refused", "alter_configs", *new_topic(retention_ms="90000"),
           _alter(("no.such.config", "1"), errors=("INVALID_CONFIG",)),
           _alter(("retention.ms", "soon"), errors=("INVALID_CONFIG",)), _alter(("retention.ms", None), errors=None),
           _alter(("retention.ms", "1"), ("retention.ms", "2"), errors=None),
           _alter(("retention.ms", "1"), name="$u", errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
           _alter(("retention.ms", "1"), validate_only=True), _describe("retention.ms")),
)  # fmt: skip

# Each of these is typed as a client may type it; Kafka prints it in one form.
ODD: Final = {
    "retention.ms": " 086400000 ",
    "cleanup.policy": "compact, delete",
    "preallocate": "True",
    "min.cleanable.dirty.ratio": " .50f ",
    "segment.bytes": "+2000000",
    "compression.type": " gzip ",
    "follower.replication.throttled.replicas": " 0:1 , 1:1 ",
    "flush.ms": "12345678",
    "flush.messages": " 5",
    "unclean.leader.election.enable": " TRUE ",
}
POLICY: Final = "cleanup.policy"


def _policy(*change: tuple[int, str], reads: str) -> tuple[Step, ...]:
    return (_incremental(*(_change(POLICY, *one) for one in change)), _reads(POLICY, reads))


def _own(key: str, field: str, expected: str | int) -> Step:
    # Kafka reads a broker's configs one after the other, so only the awaited field is sure.
    ignore = tuple(f"results[].configs[].{name}" for name in ("value", "config_source", "synonyms", "read_only"))
    return _described_until(key, field, expected, "$node:text", BROKER, ignore=ignore)


ODD_SPELLINGS: Final = (
    Script("configs in odd spellings", "incremental_alter_configs",
           *new_topic("t", 1, **{key.replace(".", "_"): value for key, value in ODD.items()}),
           _describe(*ODD, include_synonyms=True), *_policy((SUBTRACT, "delete"), reads="compact,delete"),
           *_policy((SUBTRACT, " delete"), reads="compact"),
           *_policy((APPEND, " delete, compact"), reads="compact,delete,compact"),
           *_policy((SUBTRACT, " compact"), reads="compact,delete"),
           *_policy((SET, "delete,delete"), reads="delete,delete"), *_policy((SUBTRACT, "delete"), reads="delete"),
           _incremental(_change("min.cleanable.dirty.ratio", SET, "1"), _change("retention.ms", SET, "\t5")),
           _reads("retention.ms", "5"), _incremental(_change("min.cleanable.dirty.ratio", SET, "0.00001")),
           _reads("min.cleanable.dirty.ratio", "1.0E-5"), _alter(("preallocate", "FALSE"), ("segment.ms", " +5000")),
           _reads("segment.ms", "5000"), _describe(*ODD, "segment.ms", include_synonyms=True),
           _incremental(_change("remote.storage.enable", SET, " True"), errors=("INVALID_CONFIG",))),
    Script(
"configs of one broker",
"incremental_alter_configs",
Step("metadata", {"topics": []}, save={"node": "brokers[0].node_id"}),
            *(
                _incremental(_change(key, SET, value), name="$node:text", kind=BROKER, errors=errors)
                for key, value, errors in (
                    ("log.retention.hours", "3", ("INVALID_REQUEST",)),
                    ("message.max.bytes", "soon", ("INVALID_REQUEST",)),
                    ("message.max.bytes", None, ("INVALID_REQUEST",)),
                )
            ),
            _incremental(_change("message.max.bytes", SET, "1"), name=" 1", kind=BROKER, errors=("INVALID_REQUEST",)),
            _incremental(
                _change("message.max.bytes", SET, " 02000000"),
                _change("log.cleanup.policy", APPEND, "delete"),
                _change("leader.replication.throttled.rate", SET, "5000000"),
                name="$node:text",
                kind=BROKER,
            ),
            _own("log.cleanup.policy", "config_source", 2),
            _own("message.max.bytes", "value", "2000000"),
            _own("leader.replication.throttled.rate", "value", "5000000"),
            _describe(
                "message.max.bytes", "log.cleanup.policy", "leader.replication.throttled.rate",
                name="$node:text", kind=BROKER, include_synonyms=True,
            ),
            _describe("message.max.bytes", name="", kind=BROKER, include_synonyms=True),
            _alter(("message.max.bytes", "3000000"), name="$node:text", kind=BROKER),
            _own("message.max.bytes", "value", "3000000"),
            _describe("log.cleanup.policy", name="$node:text", kind=BROKER, include_synonyms=True),
            _incremental(_change("message.max.bytes", DELETE, None), name="$node:text", kind=BROKER),
            _own("message.max.bytes", "value", "1048588"),

),
)  # fmt: skip

SCRIPTS: Final = (*DESCRIBE, *INCREMENTAL, *ALTER, *ODD_SPELLINGS)
