"""Requests whose names, ids and numbers come from a pool, made from kio's schemas: of any API at any version."""

from __future__ import annotations

import dataclasses
import datetime
import random
import uuid
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.static.primitive import Records

from korvet.wire.newer import request_class
from tests.oracle.versions import API_KEYS

_SHORT_MS = 20
_FIXED: Mapping[str, Any] = {
    "session_timeout": 60_000, "rebalance_timeout": 100, "acks": 1, "timeout": 1000, "validate_only": False,
    "min_bytes": 0, "partition_max_bytes": 1 << 20, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1,
    "replica_id": -1, "resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3,
    "resource_type_filter": 1, "pattern_type_filter": 1,
}  # fmt: skip
"""Fields that would make a broker wait, or refuse most requests before it looks at names."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What a request may hold: names of all kinds, topic ids, numbers, and batches of records."""

    names: Sequence[str]
    ids: Sequence[uuid.UUID]
    numbers: Sequence[int]
    batches: Sequence[bytes]


def random_values(api: str, version: int, pool: Pool, rng: random.Random) -> dict[str, Any]:
    """The fields of a request, for `tests.oracle.messages.request_frame`."""
    return _fields(request_class(API_KEYS[api], version), pool, rng)


def _fields(schema: Any, pool: Pool, rng: random.Random) -> dict[str, Any]:
    return {
        field.name: _FIXED[field.name] if field.name in _FIXED else _value(field.type, pool, rng)
        for field in dataclasses.fields(schema)
    }


def _value(kind: Any, pool: Pool, rng: random.Random) -> Any:
    if get_origin(kind) is UnionType:
        if rng.random() < 0.2:
            return None
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is tuple:
        return [_value(get_args(kind)[0], pool, rng) for _ in range(rng.choice((1, 1, 2)))]
    if dataclasses.is_dataclass(kind):
        return _fields(kind, pool, rng)
    choices: Mapping[Any, Sequence[Any]] = {Records: pool.batches, uuid.UUID: pool.ids, ErrorCode: (0,)}
    return rng.choice(choices[kind]) if kind in choices else _plain(kind, pool, rng)


def _plain(kind: Any, pool: Pool, rng: random.Random) -> Any:
    choices: Sequence[tuple[type, Sequence[Any]]] = (
        (datetime.timedelta, (0, _SHORT_MS)),
        (bool, (False, True)),
        (bytes, (b"", b"x")),
        (str, pool.names),
        (float, (0.0, 1.0)),
    )
    for base, values in choices:
        if issubclass(kind, base):
            return rng.choice(values)
    return _number(kind, pool, rng)


def _number(kind: Any, pool: Pool, rng: random.Random) -> int:
    number = rng.choice(pool.numbers)
    bits = next((bits for bits in (8, 16, 32, 64) if kind.__name__ in (f"i{bits}", f"u{bits}")), 32)
    is_signed = kind.__name__[0] == "i"
    return number if is_signed and -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else abs(number) % 100
