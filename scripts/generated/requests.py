"""The types of requests, korvet/wire/requests.py, from kio's schemas of the versions that korvet serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from typing import Any, Final

from korvet.api import registry
from korvet.wire.schema import element_of, is_array, is_nullable, request_schema

Version = tuple[int, int]
"""An API's key and version."""

_HEAD: Final = '''\
"""Requests as handlers read them: one class for all versions of an API. `scripts/pages` writes this file.

Source: Kafka's schemas, by kio. A comment names the versions of a field that some served version lacks. There it has
its default, as in Kafka (`korvet.wire.schema.request_schema`). If two APIs have an entity of one name, its class has
the fields of both.

These are types alone. A request is kio's entity of its version, or `korvet.wire.produce_request.ProduceRequest`.
"""

from __future__ import annotations

from dataclasses import Field
from datetime import timedelta
from typing import Any, ClassVar, dataclass_transform
from uuid import UUID


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Entity:
    """A request, or a part of one."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
'''
_INT: Final = "int", "0"
_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "bool": ("bool", "False"), "int8": _INT, "int16": _INT, "int32": _INT, "int64": _INT, "float64": ("float", "0.0"),
    "string": ("str", '""'), "bytes": ("bytes", 'b""'), "records": ("bytes | memoryview", "None"),
    "uuid": ("UUID", "None"), "timedelta_i32": ("timedelta", "timedelta()"),
    "timedelta_i64": ("timedelta", "timedelta()"),
}  # fmt: skip
"""Kafka's types in Python, each with the default of a field whose schema names none."""


def written(_: str = "") -> str:
    """The whole file."""
    entities: dict[str, dict[Version, Any]] = {}
    for key, api in sorted(registry().items()):
        for version in range(api.highest, api.lowest - 1, -1):
            _collect(request_schema(key, version), (key, version), entities)
    return "\n\n".join((_HEAD, *(_class(name, schemas) for name, schemas in entities.items())))


def _collect(schema: Any, version: Version, entities: dict[str, dict[Version, Any]]) -> None:
    """Add an entity, after the entities in it."""
    for field in fields(schema):
        if (element := element_of(field.type)) is not None:
            _collect(element, version, entities)
    entities.setdefault(schema.__name__, {})[version] = schema


def _class(name: str, schemas: Mapping[Version, Any]) -> str:
    """The source of a class: the newest version's fields, then those of older versions alone."""
    found: dict[str, dict[Version, Field[Any]]] = {}
    for version, schema in schemas.items():
        for field in fields(schema):
            found.setdefault(field.name, {})[version] = field
    return f"class {name}(Entity):\n" + "".join(_line(field, found[field], schemas) for field in found)


def _line(name: str, having: Mapping[Version, Field[Any]], schemas: Mapping[Version, Any]) -> str:
    newest = next(iter(having.values()))
    kind, default = _type_of(newest)
    if newest.default is not MISSING:
        default = _source_of(newest.default)
    if any(is_nullable(field.type) for field in having.values()):
        kind += " | None"
    some = "" if len(having) == len(schemas) else f"  # {_span(having, schemas)}"
    return f"    {name}: {kind}{f' = {default}' if some or newest.default is not MISSING else ''}{some}\n"


def _type_of(field: Field[Any]) -> tuple[str, str]:
    """A field's type without null, and its default if its schema names none."""
    element = element_of(field.type)
    kind, default = (element.__name__, "") if element else _TYPES[field.metadata["kafka_type"]]
    return (f"tuple[{kind}, ...]", "()") if is_array(field.type) else (kind, default)


def _source_of(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"timedelta(milliseconds={value // timedelta(milliseconds=1)})"
    if is_dataclass(value):
        return f"{type(value).__name__}()"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _span(having: Mapping[Version, Any], schemas: Mapping[Version, Any]) -> str:
    """A field's versions as Kafka's schemas write them, such as 4+ and 0-3; with the APIs' keys if there are two."""
    if len({key for key, _ in schemas}) > 1:
        return "API " + ", ".join(map(str, sorted({key for key, _ in having})))
    (_, first), (_, last) = min(having), max(having)
    return f"{first}+" if max(having) == max(schemas) else f"{first}-{last}"
