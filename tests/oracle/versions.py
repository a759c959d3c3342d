"""The APIs that korvet implements, each with the versions that Kafka serves: these the oracle compares."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final

from kio.schema.index import api_key_map

from tests.support.broker import ROOT

# Produce and SaslHandshake are advertised from 0, because librdkafka looks for that. As in Kafka, 0 to 2 of Produce
# have no schema any more. SaslHandshake 0 is refused.
ADVERTISED: Final = {
    "produce": (0, 13), "fetch": (4, 18), "list_offsets": (1, 11), "metadata": (0, 13), "offset_commit": (2, 10),
    "offset_fetch": (1, 10), "find_coordinator": (0, 6), "join_group": (0, 9), "heartbeat": (0, 4),
    "leave_group": (0, 5), "sync_group": (0, 5), "describe_groups": (0, 6), "list_groups": (0, 5),
    "api_versions": (0, 5), "create_topics": (2, 7), "delete_topics": (1, 6), "delete_records": (0, 2),
    "init_producer_id": (0, 5), "offset_for_leader_epoch": (2, 4), "describe_configs": (1, 4),
    "alter_configs": (0, 2), "describe_log_dirs": (1, 5), "create_partitions": (0, 3), "delete_groups": (0, 3),
    "incremental_alter_configs": (0, 1), "offset_delete": (0, 0), "describe_cluster": (0, 2),
    "describe_topic_partitions": (0, 0), "add_partitions_to_txn": (0, 5), "add_offsets_to_txn": (0, 4),
    "end_txn": (0, 5), "txn_offset_commit": (0, 6), "describe_producers": (0, 0), "describe_transactions": (0, 0),
    "list_transactions": (0, 2), "write_txn_markers": (1, 2),
    "consumer_group_heartbeat": (0, 1), "consumer_group_describe": (0, 1),
    "list_config_resources": (0, 1), "alter_replica_log_dirs": (1, 2), "elect_leaders": (0, 2),
    "alter_partition_reassignments": (0, 1), "list_partition_reassignments": (0, 0),
    "describe_client_quotas": (0, 1), "alter_client_quotas": (0, 1),
    "describe_user_scram_credentials": (0, 0), "describe_quorum": (0, 2),
    "describe_acls": (1, 3), "create_acls": (1, 3), "delete_acls": (1, 3),
    "alter_user_scram_credentials": (0, 0), "sasl_handshake": (0, 1), "sasl_authenticate": (0, 2),
    "get_telemetry_subscriptions": (0, 0), "push_telemetry": (0, 0),
    "share_group_heartbeat": (1, 1), "share_group_describe": (1, 1), "share_fetch": (1, 2), "share_acknowledge": (1, 2),
    "describe_share_group_offsets": (0, 1), "alter_share_group_offsets": (0, 0), "delete_share_group_offsets": (0, 0),
}  # fmt: skip

API_KEYS: Final = {name: key for key, name in api_key_map.items() if name in ADVERTISED}

OF_NEWEST: Final = {
    "list_offsets": 11, "offset_commit": 10, "offset_fetch": 10, "api_versions": 5, "write_txn_markers": 2,
    "txn_offset_commit": 6, "describe_log_dirs": 5, "delete_groups": 3,
    # In 4.1.2 share groups are a preview.
    **{api: lowest for api, (lowest, _) in ADVERTISED.items() if "share" in api},
}  # fmt: skip
"""The first versions that only the newest Kafka serves, and not the one that all others are compared with."""

TOLD_TO_A_RECEIVER: Final = ("get_telemetry_subscriptions", "push_telemetry")
"""Both brokers serve these always, and advertise them only if metrics that clients push go somewhere."""

_SERVED_SINCE: Final = {"produce": 3, "sasl_handshake": 1}


def supported(api: str) -> range:
    """The versions of an API that work, lowest first."""
    low, high = ADVERTISED[api]
    return range(_SERVED_SINCE.get(api, low), high + 1)


def needs_newest(api: str, version: int) -> bool:
    """True if only the newest Kafka serves this version."""
    return version >= OF_NEWEST.get(api, version + 1)


def usual(api: str) -> int:
    """The highest version that every Kafka with this API serves."""
    return next((one for one in reversed(supported(api)) if not needs_newest(api, one)), supported(api)[-1])


@cache
def changes(api: str) -> frozenset[int]:
    """The versions from which on the API does something else.

    They are the constants ``…SINCE`` in the code of its handler, and in what that imports of `korvet.api.shared` and
    `korvet.wire.batch`. If the handler gives a group's function the version, they are also the numbers that functions
    of groups compare it with. The tests of `korvet.wire` hold what else depends on a version, the form of bytes.
    """
    handler = import_module(f"korvet.api.{api}")
    found: set[int] = set()
    for module in {handler, *_judging(handler)}:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Name) and node.id.endswith("SINCE"):
                value = getattr(module, node.id)
                found |= set(value.values()) if isinstance(value, Mapping) else {value}
            elif isinstance(node, ast.keyword) and ast.unparse(node) == "version=ctx.version":
                found |= _of_functions()
    return frozenset(found)


@cache
def _of_functions() -> frozenset[int]:
    files = [path for folder in ("3-groups", "4-consumer") for path in (ROOT / "lua" / folder).glob("*.lua")]
    return frozenset(
        int(number) for path in files for number in re.findall(r"\bversion [<>]=? (\d+)", path.read_text())
    )


def _judging(module: ModuleType) -> Iterator[ModuleType]:
    for value in vars(module).values():
        name = getattr(value, "__module__", "") or ""
        if name != module.__name__ and name.startswith(("korvet.api.shared.", "korvet.wire.batch")):
            yield (found := sys.modules[name])
            yield from _judging(found)


def edges(api: str) -> frozenset[int]:
    """The lowest and the highest version of an API that work, the `usual` one, and both sides of each of its
    `changes`."""
    versions = supported(api)
    return frozenset(
        {versions[0], versions[-1], usual(api), *changes(api), *(since - 1 for since in changes(api))} & {*versions}
    )
