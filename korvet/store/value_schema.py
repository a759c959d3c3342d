"""A topic's JSON Schema: whether a text is one, and what is wrong with a record's value.

References are followed inside of the schema only, so that nobody makes a front-end read from elsewhere. A schema's
dialect is what its ``$schema`` says, else draft 2020-12; formats are not judged, as is that dialect's default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

    from korvet.store.configs import Value

MOST_BYTES: Final = 32_767
"""What a text may have in those versions of DescribeConfigs that are not flexible."""
_MOST_SHOWN: Final = 200
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_TOO_DEEP: Final = "it is nested too deeply"


class ValueSchema:
    """A schema that was found to be one. May be used by several threads."""

    def __init__(self, text: str) -> None:
        """:raises ValueError: with the reason, where it is no schema."""
        if len(text.encode()) > MOST_BYTES:
            raise ValueError(f"a schema has at most {MOST_BYTES} bytes")
        self._validator = _validator(_parsed(text))
        self._failures = _failures()
        # Finds references that lead nowhere but to themselves.
        self._judged(None)

    def problem(self, value: bytes | memoryview) -> str | None:
        """Why this is not a record's value, in one short line, or None where it is."""
        try:
            parsed = _parsed(str(value, "utf-8"))
        except UnicodeDecodeError:
            return "not UTF-8"
        except ValueError as error:
            return _short(f"not JSON: {error}")
        try:
            return self._judged(parsed)
        except ValueError as error:
            return _short(str(error))

    def _judged(self, parsed: Any) -> str | None:
        """What breaks the schema.

        :raises ValueError: where that cannot be found out.
        """
        try:
            error = next(self._validator.iter_errors(parsed), None)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except self._failures as error_of_schema:
            raise ValueError(f"it cannot be judged: {error_of_schema}") from None
        return None if error is None else _short(f"{error.json_path}: {error.message}")


def _parsed(text: str) -> Any:
    """JSON as RFC 8259 has it, without Python's NaN and Infinity.

    :raises ValueError:
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _validator(schema: Any) -> Validator:
    """:raises ValueError: where it is no schema, or refers to what is not in it."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema, dict):
        raise ValueError("the schema is not a JSON object")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(_short(f"not a JSON Schema: {error.json_path}: {error.message}")) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    registry: Registry[Any] = Registry()
    resolver = registry.resolver_with_root(Resource.from_contents(schema, default_specification=DRAFT202012))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise ValueError(_short(f"the reference {reference} leads to nothing in the schema")) from None
    validator: Validator = kind(schema, registry=registry)
    return validator


def _failures() -> tuple[type[Exception], ...]:
    """What a validator raises where a schema asks for what cannot be done."""
    from referencing.exceptions import Unresolvable

    return Unresolvable, ArithmeticError, re.error


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, dict):
        for name, item in schema.items():
            if name in _REFERENCES and isinstance(item, str):
                yield item
            else:
                yield from _references(item)


def _short(reason: str) -> str:
    reason = " ".join(reason.split())
    return reason if len(reason) <= _MOST_SHOWN else f"{reason[: _MOST_SHOWN - 1]}…"


@lru_cache(maxsize=256)
def value_schema(text: str) -> ValueSchema | None:
    """The schema of a config's value, made once for each text; None where there is none.

    :raises ValueError: with the reason, where it is no schema.
    """
    return ValueSchema(text) if text else None


def is_value_schema(value: Value) -> str | None:
    """The check of the config."""
    try:
        value_schema(str(value))
    except ValueError as error:
        return str(error)
    return None
