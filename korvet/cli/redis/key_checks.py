"""The keys of a namespace in `korvet doctor`: damage that no front-end heals, and its repair.

Each repair is a function call that anyone may repeat. Damage that front-ends heal at the next call is not reported.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from redis.exceptions import RedisError, ResponseError

from korvet.cli.redis.connections import Node, ask, call_at, call_function, keys_of
from korvet.errors import KorvetError, StoreError
from korvet.store.catalog.topic import parse_topic
from korvet.store.contract import LOST
from korvet.store.damaged_keys import type_of
from korvet.store.keys import GROUP_INDEX_SHARDS, TENANTS, Namespace

_UNKNOWN_VERSION: Final = -1
_TOPICS_A_CALL: Final = 500
_PATIENCE_S: Final = 3.0
_SHOWN: Final = 5
_SAFE: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings for a topic that lost its own: nothing removes its records before somebody sets others."""
_LONGEST_EXPIRATION_MS: Final = 2**31 - 1
"""The next sweep knows the settings, and looks at an id at its deadline again."""
_PLACED: Final = re.compile(r".*\}:log:\d+")
_PARTITION: Final = re.compile(r"([^:@]+):(\d+)\}:(log|meta)")
_GROUP: Final = re.compile(r"@group:(.*)\}:group")
_ID: Final = re.compile(r"@txn:\d\d\}:id:(.*)")


RECOVER: Final = "korvet tier recover"


class Damage(NamedTuple):
    """A damage, the effect of its repair, and the repair, which returns what it did. Some have none."""

    text: str
    effect: str = ""
    repair: Callable[[], str] | None = None


@dataclass(slots=True)
class _Keys:
    """The facts in the names of a namespace's keys."""

    foreign: list[tuple[str, str, str]] = field(default_factory=list)
    """Keys of another type, with their types and korvet's."""
    logs: set[tuple[str, int]] = field(default_factory=set)
    metas: dict[tuple[str, int], list[bytes | None]] = field(default_factory=dict)
    """The topic id, start and end of each partition that has them."""
    tiered: set[tuple[str, int]] = field(default_factory=set)
    """Those with segments in a tier."""
    groups: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)


def find_damage(nodes: Sequence[Node], namespace: Namespace) -> Iterator[Damage]:
    """The damage to a namespace's keys and to those of tenants.

    :raises KorvetError: Redis does not answer, refuses to list keys, or serves only some slots of a cluster.
    """
    _refuse_gaps(nodes[0])
    found = _Keys()
    for node in nodes:
        for page in keys_of(node, namespace.name):
            _look(node, namespace, page, found)
    for key in TENANTS:
        _judge(key, call_at(nodes, "TYPE", key), found)
    for key, kind, own in found.foreign:
        effect = "removes it, for what was there is lost"
        yield Damage(f"{key} is a {kind} and no {own}", effect, partial(_clear, nodes, key, own))
    if not any(key in (*namespace.catalog, *map(namespace.group_index, range(16))) for key, _, _ in found.foreign):
        yield from _topics(nodes, namespace, found)
        yield from _groups(nodes, namespace, found)
    yield from _logs(nodes, namespace, found)
    yield from _tiers(nodes, namespace, found)
    yield from _ids(nodes, namespace, found)


def _refuse_gaps(node: Node) -> None:
    """Refuse a cluster with unserved slots: the keys in them are not lost."""
    try:
        lines = ask(node.client, "CLUSTER", "INFO").decode().splitlines()
    except ResponseError:
        return
    except RedisError as error:
        raise KorvetError(f"Redis at {node.address} refused: {error}") from None
    if "cluster_slots_ok:16384" not in lines:
        raise KorvetError("some slots of the cluster have no node that answers")


def _look(node: Node, namespace: Namespace, page: Sequence[bytes], found: _Keys) -> None:
    keys = [key for key in (name.decode(errors="replace") for name in page) if type_of(key) and not _PLACED.match(key)]
    metas = []
    for key, kind in zip(keys, _pipelined(node, [("TYPE", key) for key in keys]), strict=True):
        name = key.removeprefix(namespace.prefix)
        if not _judge(key, kind, found):
            continue
        if match := _PARTITION.fullmatch(name):
            partition = unquote(match[1]), int(match[2])
            if match[3] == "log":
                found.logs.add(partition)
            else:
                metas.append((partition, key))
        elif match := _GROUP.fullmatch(name):
            found.groups.add(unquote(match[1]))
        elif match := _ID.fullmatch(name):
            found.ids.add(unquote(match[1]))
    commands = [("HMGET", key, "topic_id", "start", "end", "tier_end") for _, key in metas]
    for (partition, _), (*fields, tier_end) in zip(metas, _pipelined(node, commands), strict=True):
        if fields[0] is not None:
            found.metas[partition] = fields
            if tier_end is not None:
                found.tiered.add(partition)


def _judge(key: str, kind: Any, found: _Keys) -> bool:
    """True if a key has its type; notes a key with another one."""
    kind, own = kind.decode(), type_of(key) or ""
    if kind not in (own, "none"):
        found.foreign.append((key, kind, own))
    return bool(kind == own)


def _pipelined(node: Node, commands: Sequence[tuple[str, ...]]) -> list[Any]:
    with node.client.pipeline(transaction=False) as pipeline:
        for command in commands:
            ask(pipeline, *command)
        try:
            return list(pipeline.execute())
        except RedisError as error:
            raise KorvetError(f"Redis at {node.address} refused: {error}") from None


def _clear(nodes: Sequence[Node], key: str, own: str) -> str:
    call_function(nodes, "korvet_key_clear", key, type=own)
    return f"{key} is removed"


# ---------------------------------------------------------------------- topics


def _topics(nodes: Sequence[Node], namespace: Namespace, found: _Keys) -> Iterator[Damage]:
    keys = namespace.catalog
    has_version = call_at(nodes, "HEXISTS", keys.meta, "version")
    entries: dict[bytes, bytes] = call_at(nodes, "HGETALL", keys.topics)
    settings: dict[bytes, bytes] = call_at(nodes, "HGETALL", keys.configs)
    partitions: dict[str, dict[int, bytes]] = defaultdict(dict)
    for (name, index), (topic_id, _, _) in found.metas.items():
        partitions[name][index] = topic_id or b""
    whole = {name for name, text in entries.items() if name and _is_readable(name, text)}
    # A topic that was deleted meanwhile has lost its partitions before its entry.
    missing = {
        name: ids
        for name, ids in sorted(partitions.items())
        if name.encode() not in whole and _are_there(nodes, namespace, name, ids)
    }
    for name, ids in list(missing.items()):
        if len(set(ids.values())) > 1:
            yield Damage(f"topic {name} is in no catalog, and its partitions are of several topics: it stays away")
            del missing[name]
    is_lost = b"" not in entries or b"" not in settings
    if is_lost and (missing or has_version):
        lost = " and ".join(key for key, of in ((keys.topics, entries), (keys.configs, settings)) if b"" not in of)
        effect = "lets front-ends write them back that know them; without any, it enters again "
        effect += _shown([_topic_text(*one) for one in missing.items()]) or "no topic"
        yield Damage(f"{lost}: deleted by hand", effect, partial(_restore, nodes, namespace, missing))
        return
    for name, ids in missing.items():
        text = "an entry that cannot be read" if name.encode() in entries else "no entry"
        effect = f"enters it again: {_topic_text(name, ids)}"
        yield Damage(f"topic {name} has {text} in the catalog", effect, partial(_enter, nodes, namespace, {name: ids}))
    for entry in entries.keys() - whole - {b""} - {name.encode() for name in partitions}:
        shown = entry.decode(errors="replace")
        yield Damage(
            f"topic {shown}'s entry cannot be read, and it has no keys: redis-cli HDEL '{keys.topics}' '{shown}'"
        )


def _are_there(nodes: Sequence[Node], namespace: Namespace, name: str, ids: dict[int, bytes]) -> bool:
    """True if a topic's first partition still has its keys."""
    first = min(ids)
    return bool(call_at(nodes, "HGET", namespace.partition(name, first).meta, "topic_id") == ids[first])


def _is_readable(name: bytes, text: bytes) -> bool:
    try:
        parse_topic(name, text)
    except StoreError:
        return False
    return True


def _topic_text(name: str, ids: dict[int, bytes]) -> str:
    """A topic by its partitions' keys."""
    gaps = [str(index) for index in range(max(ids)) if index not in ids]
    settings = "settings are lost: it keeps all records until you set others"
    begins = f"; partition {', '.join(gaps)} has no keys and begins at offset 0" if gaps else ""
    return f"{name} of {max(ids) + 1} partitions, whose {settings}{begins}"


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f", and {more} more" if more > 0 else "")


def _restore(nodes: Sequence[Node], namespace: Namespace, missing: dict[str, dict[int, bytes]]) -> str:
    keys = namespace.catalog
    # Front-ends read the catalog when its channel says anything.
    call_at(nodes, "SPUBLISH", keys.meta, "0")
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        if all(call_at(nodes, "HEXISTS", key, "") for key in (keys.topics, keys.configs)):
            return f"{keys.topics} and {keys.configs} are there again: a front-end knew them"
        time.sleep(0.1)
    entered = _enter(nodes, namespace, missing)
    for hash_ in ("topics", "configs"):
        _call(nodes, namespace, hash_, [], is_last=True)
    return f"no front-end knew what was deleted; {entered}"


def _enter(nodes: Sequence[Node], namespace: Namespace, missing: dict[str, dict[int, bytes]]) -> str:
    flat: list[str] = []
    for name, ids in missing.items():
        entry = {
            "id": next(iter(ids.values())).decode(), "partitions": max(ids) + 1, "configs": _SAFE,
            "created_ms": round(time.time() * 1000), "deleting": False,
        }  # fmt: skip
        flat += [name, json.dumps(entry, separators=(",", ":"))]
    for at in range(0, len(flat), 2 * _TOPICS_A_CALL):
        _call(nodes, namespace, "topics", flat[at : at + 2 * _TOPICS_A_CALL], is_last=False)
    return f"entered again: {_shown([_topic_text(*one) for one in missing.items()]) or 'no topic'}"


def _call(nodes: Sequence[Node], namespace: Namespace, hash_: str, fields: Sequence[str], *, is_last: bool) -> None:
    call_function(
        nodes, "korvet_catalog_restore", namespace.catalog,
        version=_UNKNOWN_VERSION, hash=hash_, is_last="true" if is_last else "false", fields=fields,
    )  # fmt: skip


def _logs(nodes: Sequence[Node], namespace: Namespace, found: _Keys) -> Iterator[Damage]:
    for (name, index), (topic_id, start, end) in sorted(found.metas.items()):
        if (name, index) in found.logs or start == end:
            continue
        # A scan misses a log that was made meanwhile; a topic that was deleted meanwhile has lost both.
        is_there = call_at(nodes, "EXISTS", namespace.partition(name, index).log)
        if not is_there and _are_there(nodes, namespace, name, {index: topic_id or b""}):
            at = f"--partition {index} --before {(end or b'').decode()}"
            if (name, index) in found.tiered:
                meta = namespace.partition(name, index).meta
                text = f"the log of partition {index} of topic {name} is gone, and the tier has its sealed records"
                yield Damage(f"{text}: redis-cli DEL '{meta}', then {RECOVER}")
                continue
            text = f"the log of partition {index} of topic {name} is gone, with all records"
            yield Damage(f"{text}: korvet topics trim '{name}' {at} --execute")


def _tiers(nodes: Sequence[Node], namespace: Namespace, found: _Keys) -> Iterator[Damage]:
    for name, index in sorted(found.tiered):
        topic_id = (found.metas[name, index][0] or b"").decode()
        keys = namespace.tier(name, index)
        code, *_ = call_function(nodes, "korvet_tier_list", (keys.meta, keys.tier), topic_id=topic_id, offset=0, most=1)
        if code == LOST:
            yield Damage(f"the list of segments of partition {index} of topic {name} is not whole: {RECOVER}")


# ---------------------------------------------------------------------- groups and transactional ids


def _groups(nodes: Sequence[Node], namespace: Namespace, found: _Keys) -> Iterator[Damage]:
    listed = {
        name.decode()
        for shard in range(GROUP_INDEX_SHARDS)
        for name in call_at(nodes, "SMEMBERS", namespace.group_index(shard))
    }
    unlisted = sorted(found.groups - listed)
    if missing := [name for name in unlisted if call_at(nodes, "EXISTS", namespace.group(name).group)]:

        def enter() -> str:
            for name in missing:
                call_function(nodes, "korvet_group_index", namespace.group_index_of(name), group_id=name)
            return f"in the index again: {_shown(missing)}"

        yield Damage(f"groups are in no list: {_shown(missing)}", "puts them into the index", enter)


def _ids(nodes: Sequence[Node], namespace: Namespace, found: _Keys) -> Iterator[Damage]:
    foreign = {key for key, _, _ in found.foreign}
    keys = {name: namespace.transaction(name) for name in sorted(found.ids)}
    due = {
        key: {name.decode() for name in call_at(nodes, "ZRANGE", key, "0", "-1")}
        for key in {of.deadlines for of in keys.values()} - foreign
    }
    without = [name for name, of in keys.items() if name not in due.get(of.deadlines, {name})]
    if missing := [name for name in without if call_at(nodes, "EXISTS", keys[name].id)]:

        def tend() -> str:
            for name in missing:
                call_function(
                    nodes, "korvet_txn_expire", keys[name], transactional_id=name, expiration=_LONGEST_EXPIRATION_MS
                )
            return f"have deadlines again: {_shown(missing)}"

        text = f"transactional ids without a deadline, whose transactions nobody ends: {_shown(missing)}"
        yield Damage(text, "gives them their deadlines again", tend)
