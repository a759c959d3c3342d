"""Facts of kio's schemas for readers and writers."""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Any, Final, get_args, get_origin

from kio.index import UnknownEntity

from korvet.wire import requests
from korvet.wire.newer import request_class, response_class

API_VERSIONS_KEY: Final = 18
PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
SHARE_FETCH_KEY: Final = 78
SHARE_ACKNOWLEDGE_KEY: Final = 79

FORMATS: Final = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "error_code": "h", "int32": "i", "uint32": "I",
    "timedelta_i32": "i", "int64": "q", "float64": "d", "timedelta_i64": "q", "datetime_i64": "q", "uuid": "16s",
}  # fmt: skip
"""The types of fixed size, as `struct` has them."""
FIXED_BYTES: Final = {name: struct.calcsize(f">{form}") for name, form in FORMATS.items()}


def is_nullable(kind: Any) -> bool:
    """True if a field of this type may be null."""
    return isinstance(kind, UnionType)


def is_array(kind: Any) -> bool:
    """True if a field of this type is an array, nullable or not."""
    return get_origin(_without_none(kind)) is tuple


def element_of(kind: Any) -> Any:
    """The entity class of a field, or of its elements; None if it has none."""
    inner = _without_none(kind)
    if get_origin(inner) is tuple:
        inner = _without_none(get_args(inner)[0])
    return inner if is_dataclass(inner) else None


def _without_none(kind: Any) -> Any:
    return next(one for one in get_args(kind) if one is not type(None)) if is_nullable(kind) else kind


@cache
def request_schema(api_key: int, version: int) -> Any:
    """kio's entity class of a request. It has the fields of other versions, with their defaults, as in Kafka."""
    schema = request_class(api_key, version)
    _complete(schema)
    return schema


def _complete(schema: Any) -> None:
    """Give a class the defaults of the fields that its version lacks. They cost a request nothing."""
    whole = getattr(requests, schema.__name__, requests.Entity)
    for name in whole.__annotations__:
        if hasattr(whole, name) and not hasattr(schema, name):
            setattr(schema, name, getattr(whole, name))
    for field in fields(schema):
        if (element := element_of(field.type)) is not None:
            _complete(element)


@cache
def response_schema(api_key: int, version: int) -> Any:
    """kio's entity class of a response."""
    return response_class(api_key, version)


@lru_cache(maxsize=1024)
def is_known(api_key: int, version: int) -> bool:
    """True if kio has a schema for this request, so that korvet can read and answer it."""
    try:
        request_schema(api_key, version)
    except (UnknownEntity, KeyError, RuntimeError):
        return False
    return True


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """True if the version uses compact lengths and tagged fields (KIP-482)."""
    return bool(request_schema(api_key, version).__flexible__)


@cache
def has_tagged_response_header(api_key: int, version: int) -> bool:
    """True if a response's header ends with (empty) tagged fields."""
    return api_key != API_VERSIONS_KEY and is_flexible(api_key, version)


@cache
def has_top_level_error(api_key: int, version: int) -> bool:
    """True if this version's response has an error code for the whole request."""
    return any(field.name == "error_code" for field in fields(response_schema(api_key, version)))
