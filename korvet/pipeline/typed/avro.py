"""Avro values in Confluent's frame: a zero byte, the schema's id as four bytes, and Avro's binary form.

The driver gets the schemas (`korvet.pipeline.registry`), and makes a JSON Schema of each: it gives the table its
columns. The executors read each value by the schema that wrote it, as the JSON that it would be. They convert that to
the table's columns like any JSON. So an Avro schema that changes changes the table as a JSON Schema does.
Source: Confluent's wire format, the Avro specification 1.12.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, time
from functools import partial
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import fastavro
import fastavro.read
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.registry import Registered
from korvet.pipeline.typed.columns import DECIMAL_DIGITS, columns
from korvet.pipeline.typed.convert import Convert, row_converter
from korvet.pipeline.typed.judge import ValueJudge
from korvet.pipeline.typed.table import named

MOST_IDS: Final = 1000
"""Schemas of one batch. A producer may write any id into a value, and each is a question to the registry."""
_FRAME: Final = 5
_MOST_LEVELS: Final = 64
_MOST_STEPS: Final = 10_000
_MOST_DECIMAL_BYTES: Final = 64
_STRING: Final = {"type": "string"}
_PRIMITIVES: Final[dict[str, dict[str, Any]]] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "int": {"type": "integer"},
    "long": {"type": "integer"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "bytes": _STRING,
    "string": _STRING,
}
_LOGICAL: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("int", "date"): {"type": "string", "format": "date"},
    ("long", "timestamp-millis"): {"type": "string", "format": "date-time"},
    ("long", "timestamp-micros"): {"type": "string", "format": "date-time"},
    ("int", "time-millis"): _STRING,
    ("long", "time-micros"): _STRING,
    ("long", "local-timestamp-millis"): _STRING,
    ("long", "local-timestamp-micros"): _STRING,
}
# The kinds of errors that fastavro raises for bytes that are not of the schema.
_UNREADABLE: Final = (ArithmeticError, EOFError, LookupError, TypeError, ValueError)


_MARKS: Final = ("__fastavro_parsed", "__named_schemas")
_LEAST_BYTES: Final = {"null": 0, "float": 4, "double": 8}
_PARTS_A_BYTE: Final = 100
"""The most parts of an item for each byte that it takes: a short value could be an array of millions of them."""


def schema_ids(records: DataFrame) -> list[int]:
    """The ids in the frames of the records' values, of `MOST_IDS` at most: the most frequent ones."""
    is_framed = "octet_length(value) > 4 and substring(value, 1, 1) = X'00'"
    ids = records.where(is_framed).select(F.expr("conv(hex(substring(value, 2, 4)), 16, 10)").cast("long").alias("id"))
    found = ids.groupBy("id").count().orderBy(F.desc("count"), "id").limit(MOST_IDS).collect()
    return sorted(int(row["id"]) for row in found)


def json_schemas(found: Mapping[int, Registered]) -> dict[int, str]:
    """A JSON Schema for each Avro schema that gives columns."""
    texts = {}
    for number, registered in sorted(found.items()):
        try:
            text = _json_schema(registered)
            columns(text)
        except (PipelineError, ValueError):
            continue
        texts[number] = text
    return texts


class AvroJudge(ValueJudge):
    """Judges values by the schemas that wrote them, and by the table's columns.

    :param found: the schemas by their ids. Values of other ids, and of schemas without columns, are dead letters.
    """

    def __init__(self, found: Mapping[int, Registered], own: StructType) -> None:
        super().__init__(own)
        self._readers: dict[int, tuple[Any, Convert] | str] = {
            number: _reader(registered, own) for number, registered in found.items()
        }

    def row(self, value: bytes | None) -> tuple[Any, ...] | None:
        if value is None:
            return None
        if len(value) < _FRAME or value[0] != 0:
            raise ValueError("not Avro: it does not begin with a zero byte and a schema's id")
        number = int.from_bytes(value[1:_FRAME], "big")
        reader = self._readers.get(number, f"the schema registry has no schema {number}")
        if isinstance(reader, str):
            raise ValueError(reader)
        schema, convert = reader
        try:
            record = fastavro.schemaless_reader(BytesIO(value[_FRAME:]), schema, None)
        except _UNREADABLE as error:
            raise ValueError(f"not Avro of schema {number}: {error or type(error).__name__}") from None
        row: tuple[Any, ...] = convert(_plain(record))
        return row


def _reader(registered: Registered, own: StructType) -> tuple[Any, Convert] | str:
    """The parsed schema with a converter to the table's columns, or why its values are dead letters."""
    try:
        wanted = named(columns(_json_schema(registered)))
        return _parsed(registered), row_converter(own, wanted)
    except (PipelineError, ValueError) as error:
        return f"schema {registered.id}: {error}"


def _parsed(registered: Registered) -> Any:
    """:raises ValueError: if the registered text is no Avro schema, or refers to others."""
    if registered.kind != "AVRO":
        raise ValueError(f"it is of the type {registered.kind}, and only AVRO gives columns")
    if registered.has_references:
        raise ValueError("it refers to other schemas of the registry")
    try:
        return fastavro.parse_schema(_unmarked(json.loads(registered.text)))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, *_UNREADABLE) as error:
        raise ValueError(f"it is no Avro schema: {error!r}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unmarked(schema: Any) -> Any:
    """A schema without fastavro's marks of what it has checked: anybody may write them."""
    if isinstance(schema, list):
        return [_unmarked(each) for each in schema]
    if isinstance(schema, dict):
        return {name: value for name, value in schema.items() if name not in _MARKS}
    return schema


def _json_schema(registered: Registered) -> str:
    """:raises ValueError: if the schema can give no columns."""
    parsed = _parsed(registered)
    try:
        return json.dumps(_Translation().of(parsed))
    except ValueError:
        raise
    except (*_UNREADABLE, RecursionError) as error:
        raise ValueError(f"it is no schema for columns: {error!r}") from None


class _Translation:
    """A JSON Schema for the JSON that `_plain` makes of a parsed schema's values."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._around: list[str] = []
        self._steps = 0

    def of(self, schema: Any, level: int = 0) -> dict[str, Any]:
        """:raises ValueError: if it is too deep or large, refers to itself, or has arrays of items without bytes."""
        self._steps += 1
        if level > _MOST_LEVELS or self._steps > _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_LEVELS} levels or {_MOST_STEPS} parts")
        if isinstance(schema, list):
            return {"anyOf": [self.of(each, level + 1) for each in schema]}
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._of_name(schema, level)
        if "name" in schema:
            self._named[schema["name"]] = schema
        return self._of_type(schema, level)

    def _of_type(self, schema: Any, level: int) -> dict[str, Any]:
        kind, logical = schema["type"], schema.get("logicalType", "")
        match kind:
            case "record" | "error":
                return self._record(schema, level)
            case "array":
                return {"type": "array", "items": self._repeated(schema["items"], level)}
            case "map":
                self._repeated(schema["values"], level)
                return {"type": "object"}
            case "fixed" if logical == "decimal":
                return _of_decimal(schema)
            case "enum" | "fixed":
                return _STRING
        if (kind, logical) == ("bytes", "decimal"):
            return _of_decimal(schema)
        if (kind, logical) == ("string", "uuid"):
            return _STRING
        return _LOGICAL.get((kind, logical)) or self.of(kind, level + 1)

    def _repeated(self, schema: Any, level: int) -> dict[str, Any]:
        """Convert a schema of items: a few bytes may hold very many of them."""
        before = self._steps
        found = self.of(schema, level + 1)
        if self._steps - before > _PARTS_A_BYTE * _least_bytes(schema, self._named):
            raise ValueError("it has an array or a map whose items take too few bytes for their parts")
        return found

    def _record(self, schema: Any, level: int) -> dict[str, Any]:
        name = schema["name"]
        if name in self._around:
            raise ValueError(f"its record {name} is within itself")
        self._around.append(name)
        members = {each["name"]: self.of(each["type"], level + 1) for each in schema["fields"]}
        self._around.pop()
        return {"type": "object", "properties": members}

    def _of_name(self, name: str, level: int) -> dict[str, Any]:
        if name not in self._named:
            raise ValueError(f"it does not define {name}")
        return self.of(self._named[name], level + 1)


def _least_bytes(schema: Any, known: Mapping[str, Any]) -> int:
    """The bytes that each value has at least."""
    if isinstance(schema, list):
        return 1
    if isinstance(schema, str):
        return _least_bytes(known[schema], known) if schema in known else _LEAST_BYTES.get(schema, 1)
    match schema["type"]:
        case "record" | "error":
            return sum(_least_bytes(each["type"], known) for each in schema["fields"])
        case "fixed":
            return int(schema["size"])
        case "array" | "map" | "enum":
            return 1
    return _least_bytes(schema["type"], known)


def _decimal(read: Any, data: bytes, *schemas: Any) -> Any:
    if len(data) > _MOST_DECIMAL_BYTES:
        raise ValueError(f"a decimal has more than {_MOST_DECIMAL_BYTES} bytes")
    return read(data, *schemas)


# These replace fastavro's own, which take as long as a producer likes.
for _name in ("bytes-decimal", "fixed-decimal"):
    fastavro.read.LOGICAL_READERS[_name] = partial(_decimal, fastavro.read.LOGICAL_READERS[_name])


def _of_decimal(schema: Any) -> dict[str, Any]:
    """A number with the decimal's unit; a text if it has more digits than a column."""
    if schema.get("precision", DECIMAL_DIGITS + 1) > DECIMAL_DIGITS:
        return _STRING
    return {"type": "number", "multipleOf": float(f"1e-{schema.get('scale', 0)}")}


def _plain(value: Any) -> Any:
    """A value of Avro as one of JSON: bytes in base 64, times as texts. Decimals stay."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
    return value
