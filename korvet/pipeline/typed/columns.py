"""The columns that a JSON Schema gives a table: a type if the schema allows only one, else the JSON text.

The reader gathers a schema's demands on a value from all parts that hold at once: itself, the target of ``$ref``, and
``allOf``. It looks at each alternative of ``anyOf`` and ``oneOf``, together with all the rest. A column has a type if
all alternatives give the same one. Other keywords only exclude values, and the judge of values checks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from referencing import Registry, Specification
from referencing.jsonschema import DRAFT201909, DRAFT202012, specification_with

from korvet.configs.value_schema import value_schema
from korvet.pipeline.errors import PipelineError

JSON_TEXT: Final = "korvet.json"
"""A mark in the metadata of a string column: it holds JSON's text."""
MOST_LEVELS: Final = 32
MOST_STEPS: Final = 10_000

_KINDS: Final = {
    "null": {"null"},
    "boolean": {"boolean"},
    "object": {"object"},
    "array": {"array"},
    "string": {"string"},
    "integer": {"integer"},
    "number": {"integer", "fraction"},
}
_ALL: Final = frozenset[str]().union(*_KINDS.values())
_FORMATS: Final[dict[str, DataType]] = {"date-time": TimestampType(), "date": DateType()}
_STRINGS: Final[tuple[DataType, ...]] = (StringType(), *_FORMATS.values())
_DECIMAL_FORMATS: Final = ("decimal", "decimal128")
"""From the OpenAPI format registry: numbers without a precision and a scale in the schema."""
DECIMAL_DIGITS: Final = 38
"""The most digits of a decimal column."""
_OBJECT: Final = {"type": "object"}
_ANYTHING: Final[dict[str, Any]] = {}
_NOTHING: Final[dict[str, Any]] = {"enum": []}


def columns(schema_text: str) -> StructType:
    """A table's columns for the properties of a schema, all nullable.

    An integer is a long, a number a double. A number is a decimal if multipleOf gives its scale, and JSON's text if its
    format is one of decimals. A string is a timestamp or date if its format says so. An object with properties is a
    struct, and an array of one type an array. Anything else is a string of JSON, with `JSON_TEXT` in its metadata:
    values of several types, values that refer to themselves, and values deeper than `MOST_LEVELS`.
    If the whole value has alternatives, the columns are the properties that all of them share.

    :raises PipelineError: if the text is no JSON Schema or too large, no object fits it, or names of one object differ
        only by case.
    """
    try:
        if value_schema(schema_text) is None:
            raise ValueError("it is empty")
        return _Reader(json.loads(schema_text)).columns()
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError as error:
        why = str(error)
    raise PipelineError(f"the JSON Schema gives no columns: {why}; give the topic another schema")


def fold(name: str) -> str:
    """The name folded: names that Spark takes for one column are equal."""
    return name.upper().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A schema that holds for a value, the resolver of its references, and the schemas around it."""

    schema: dict[str, Any]
    resolver: Any
    around: frozenset[int]


class _Reader:
    """Goes through one schema; counts its steps, since alternatives and references multiply."""

    def __init__(self, schema: dict[str, Any]) -> None:
        kind: Any = validator_for(schema, default=Draft202012Validator)
        self._dialect: Specification[Any] = specification_with(kind.ID_OF(kind.META_SCHEMA))
        registry: Registry[Any] = Registry()
        resolver = registry.resolver_with_root(self._dialect.create_resource(schema))
        self._root = _Part(schema=schema, resolver=resolver, around=frozenset())
        self._steps = 0

    def columns(self) -> StructType:
        """:raises ValueError:"""
        is_object = _Part(schema=_OBJECT, resolver=self._root.resolver, around=frozenset())
        found = self._type([self._root, is_object], is_top=True)
        if not isinstance(found, StructType):
            raise ValueError("no JSON object fits it")
        return found

    def _type(self, all_of: Iterable[_Part], *, is_top: bool = False) -> DataType | None:
        """The type of the values that fit all parts: NullType if only null fits, None if there are several types.

        :raises ValueError:
        """
        parts: dict[int, _Part] = {}
        choices: list[list[_Part]] = []
        for part in all_of:
            self._gather(part, parts, choices)
        return self._choose(parts, choices, is_top)

    def _gather(self, part: _Part, parts: dict[int, _Part], choices: list[list[_Part]]) -> None:
        """Add a part, the parts that hold together with it, and the alternatives of each."""
        schema = part.schema
        if id(schema) in parts:
            return
        self._step()
        parts[id(schema)] = part
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = part.resolver.lookup(reference)
            self._gather(self._part(found.contents, found.resolver, part.around), parts, choices)
            if self._dialect not in (DRAFT201909, DRAFT202012):
                # In older dialects a reference stands alone.
                parts[id(schema)] = _Part(schema=_ANYTHING, resolver=part.resolver, around=part.around)
                return
        for inner in schema.get("allOf", ()):
            self._gather(self._part(inner, part.resolver, part.around), parts, choices)
        alternatives = [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
        choices.extend([self._part(inner, part.resolver, part.around) for inner in each] for each in alternatives)

    def _choose(self, parts: dict[int, _Part], choices: list[list[_Part]], is_top: bool) -> DataType | None:
        if not choices:
            return self._type_of_one(parts, is_top)
        first, *others = choices
        found = []
        for alternative in first:
            more, further = dict(parts), list(others)
            self._gather(alternative, more, further)
            found.append(self._choose(more, further, is_top))
        return _common(found, is_top)

    def _type_of_one(self, gathered: dict[int, _Part], is_top: bool) -> DataType | None:
        self._step()
        parts = list(gathered.values())
        if any(key in part.around for key, part in gathered.items()) or len(parts[0].around) > MOST_LEVELS:
            return None
        kinds = _ALL.intersection(*(_kinds(part.schema) for part in parts)) - {"null"}
        match sorted(kinds):
            case []:
                return NullType()
            case ["boolean"]:
                return BooleanType()
            case ["integer"]:
                return LongType()
            case ["fraction"] | ["fraction", "integer"]:
                return _number(parts)
            case ["string"]:
                return _string(parts)
            case ["array"]:
                return self._array(parts)
            case ["object"]:
                found = self._struct(parts)
                return found if found.fields or is_top else None
        return None

    def _struct(self, parts: Sequence[_Part]) -> StructType:
        members: dict[str, list[_Part]] = {}
        for part in parts:
            for name, schema in part.schema.get("properties", {}).items():
                members.setdefault(name, []).append(self._inner(schema, part))
        _check_names(members)
        return StructType([_field(name, self._type(all_of)) for name, all_of in members.items()])

    def _array(self, parts: Sequence[_Part]) -> DataType | None:
        if any("prefixItems" in part.schema or isinstance(part.schema.get("items"), list) for part in parts):
            return None
        items = [self._inner(part.schema["items"], part) for part in parts if "items" in part.schema]
        element = self._type(items) if items else None
        return None if element is None or isinstance(element, NullType) else ArrayType(element)

    def _inner(self, schema: Any, part: _Part) -> _Part:
        return self._part(schema, part.resolver, part.around | {id(part.schema)})

    def _part(self, schema: Any, resolver: Any, around: frozenset[int]) -> _Part:
        if isinstance(schema, bool):
            return _Part(schema=_ANYTHING if schema else _NOTHING, resolver=resolver, around=around)
        inside = resolver.in_subresource(self._dialect.create_resource(schema))
        return _Part(schema=schema, resolver=inside, around=around)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ValueError(f"it has too many properties or alternatives: more than {MOST_STEPS} parts to look at")


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    """The kinds of values that a part allows by itself. Its type overrides its enum, as enums change more often."""
    if "type" in schema:
        said = schema["type"]
        names = [said] if isinstance(said, str) else said
        return frozenset[str]().union(*(_KINDS.get(name, _ALL) for name in names))
    if "const" in schema:
        return frozenset({_kind(schema["const"])})
    return frozenset(map(_kind, schema["enum"])) if "enum" in schema else _ALL


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _number(parts: Iterable[_Part]) -> DataType | None:
    """A double; a decimal if there is a unit with few digits, and None, for the text, if the format wants decimals."""
    units = [Decimal(str(unit)) for part in parts if (unit := part.schema.get("multipleOf"))]
    scales = [max(0, -int(unit.normalize().as_tuple().exponent)) for unit in units]
    if scales and max(scales) <= DECIMAL_DIGITS:
        return DecimalType(DECIMAL_DIGITS, max(scales))
    return None if any(part.schema.get("format") in _DECIMAL_FORMATS for part in parts) else DoubleType()


def _string(parts: Iterable[_Part]) -> DataType:
    formats = [_FORMATS[said] for part in parts if (said := part.schema.get("format")) in _FORMATS]
    return formats[0] if formats and all(each == formats[0] for each in formats) else StringType()


def _common(alternatives: Sequence[DataType | None], is_top: bool) -> DataType | None:
    found = [each for each in alternatives if not isinstance(each, NullType)]
    if not found:
        return NullType()
    first = found[0]
    if all(each == first for each in found):
        return first
    if all(isinstance(each, LongType | DoubleType) for each in found):
        return DoubleType()
    if all(isinstance(each, LongType | DecimalType) for each in found):
        return DecimalType(DECIMAL_DIGITS, max(each.scale for each in found if isinstance(each, DecimalType)))
    if all(each in _STRINGS for each in found):
        return StringType()
    if is_top and isinstance(first, StructType):
        others = [each.fields for each in found if isinstance(each, StructType)]
        return StructType([field for field in first.fields if all(field in fields for fields in others)])
    return None


def _field(name: str, found: DataType | None) -> StructField:
    if found is None or isinstance(found, NullType):
        return StructField(name, StringType(), metadata={JSON_TEXT: True})
    return StructField(name, found)


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the property {name!a} holds half of a surrogate pair") from None
        other = seen.setdefault(fold(name), name)
        if other != name:
            raise ValueError(f"the properties {other!r} and {name!r} differ by case only, and columns may not")
