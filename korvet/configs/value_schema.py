"""A topic's JSON Schema: the check of the schema, and the validation of record values.

References must stay inside the schema, so that no schema makes a front-end read from elsewhere. ``$schema`` names the
dialect; the default is draft 2020-12. As by default in that draft, formats are not validated.

Values come from untrusted clients. `schema_keywords` bounds the time to judge one, and its length bounds the memory.
A repeated name in an object is refused, because readers may take either member (RFC 7493).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from korvet.configs.json_values import parsed, parsed_text
from korvet.configs.schema_keywords import PATIENCE, OutOfPatience, bounded, pattern

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

    from korvet.configs.schema_shortcut import MemberShortcut, Shortcut
    from korvet.configs.types import Value

MOST_BYTES: Final = 32_767
"""The most bytes of a string in DescribeConfigs's inflexible versions."""
MOST_VALUE_BYTES: Final = 8 << 20
"""The most bytes of a validated value: parsed, it takes about twenty times as much memory."""
_MOST_SHOWN: Final = 200
_LONG_VALUE_BYTES: Final = 4096
_MOST_KEYWORDS: Final = 10_000
"""The most keywords that a schema may evaluate for ``null``: each level of references may double them."""
MOST_KEYWORDS_AT_ONCE: Final = 50_000
"""The most keywords that a schema may evaluate for one part of a value, through all its subschemas."""
_MOST_KEYWORDS_OF_CHECK: Final = 100_000
"""The most keywords to check a schema against its dialect's: half a second of a thread."""
MOST_PATTERNS: Final = 100
"""The most patterns: RE2 holds the GIL for up to 10 ms to compile one, and caches few for all schemas together."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_THE_SAME: Final = ("not", "if", "then", "else")
_ALL_OF_THE_SAME: Final = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
"""Keywords whose subschemas apply to the same part of a value."""
_TOO_DEEP: Final = "it is nested too deeply"
_MOST_MADE: Final = 1024
_made: Final[dict[str, ValueSchema | str]] = {}
"""Schemas by their texts, or the reason why a text is none; shared by the process's threads."""


class ValueSchema:
    """A checked schema, thread-safe.

    :ivar most_at_once: the most keywords for one part of a value.
    """

    def __init__(self, text: str) -> None:
        """:raises ValueError: with the reason, if the text is no schema."""
        if len(text.encode()) > MOST_BYTES:
            raise ValueError(f"a schema has at most {MOST_BYTES} bytes")
        try:
            self._validator, self._shortcut, self.member_shortcut, self.most_at_once = _judges(parsed_text(text))
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        self._failures = _failures()
        # A trial finds references that lead only to themselves, or to too many others.
        PATIENCE.begin(most_keywords=_MOST_KEYWORDS)
        try:
            self._judged(None)
        except OutOfPatience:
            raise ValueError(f"it takes more than {_MOST_KEYWORDS} keywords to judge null") from None

    def problem(self, value: bytes | memoryview) -> str | None:
        """The reason why a record's value is invalid, in one short line, or None.

        :raises OutOfPatience: the judgement exceeds the bounds in `PATIENCE`.
        """
        try:
            self.parsed(value)
        except ValueError as error:
            return str(error)
        return None

    def parsed(self, value: bytes | memoryview) -> Any:
        """A valid record's value, parsed as by Python's json.

        :raises ValueError: the value is invalid; the message is the reason, in one short line.
        :raises OutOfPatience: the judgement exceeds the bounds in `PATIENCE`.
        """
        if len(value) > _LONG_VALUE_BYTES:
            PATIENCE.check()
            if len(value) > MOST_VALUE_BYTES:
                raise ValueError(f"longer than {MOST_VALUE_BYTES} bytes")
        try:
            found = parsed(value)
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None
        except ValueError as error:
            raise ValueError(_short(f"not JSON: {error}")) from None
        if self._surely_fits(found, len(value)):
            return found
        try:
            problem = self._judged(found)
        except ValueError as error:
            raise ValueError(_short(str(error))) from None
        if problem is not None:
            raise ValueError(problem)
        return found

    def _surely_fits(self, found: Any, size_bytes: int) -> bool:
        """True if the shortcut accepts a value of this length, and the validator would within its bounds."""
        if self._shortcut is None or not PATIENCE.allows(size_bytes * self._shortcut.keywords):
            return False
        try:
            return self._shortcut.fits(found)
        except (RecursionError, UnicodeEncodeError):
            return False

    def _judged(self, found: Any) -> str | None:
        """The reason why a value violates the schema, or None.

        :raises ValueError: the validator cannot decide.
        """
        try:
            error = next(self._validator.iter_errors(found), None)
            return None if error is None else _short(f"{error.json_path}: {_in_json(error)}")
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair") from None
        except self._failures as error_of_schema:
            raise ValueError(f"it cannot be judged: {error_of_schema}") from None


class _Costs:
    """The most keywords that a schema evaluates for one part of a value."""

    def __init__(self, lookup: Callable[[str], Any]) -> None:
        self._lookup = lru_cache(maxsize=None)(lookup)
        self._known: dict[int, int] = {}

    def most(self, schema: Any) -> int:
        """The largest number among the schema's parts.

        :raises RecursionError:
        """
        if isinstance(schema, list):
            return max(map(self.most, schema), default=0)
        if not isinstance(schema, dict):
            return 0
        return max(self._of(schema), max(map(self.most, schema.values()), default=0))

    def _of(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        known = self._known.get(id(schema))
        if known is None:
            # A recursive schema is evaluated until the value nests too deeply.
            self._known[id(schema)] = 1
            known = self._known[id(schema)] = len(schema) + sum(map(self._of, self._parts(schema)))
        return known

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        """The subschemas that apply to the same part of a value."""
        for name in _REFERENCES:
            if isinstance(reference := schema.get(name), str):
                yield self._lookup(reference).contents
        yield from (schema[name] for name in _OF_THE_SAME if name in schema)
        for name in _ALL_OF_THE_SAME:
            among = schema.get(name)
            yield from among if isinstance(among, list) else among.values() if isinstance(among, dict) else ()


def _judges(schema: Any) -> tuple[Validator, Shortcut | None, MemberShortcut | None, int]:
    """:raises ValueError, RecursionError: the schema is invalid, or a reference leads out of it."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    from korvet.configs.schema_shortcut import member_shortcut, shortcut

    if not isinstance(schema, dict) or not isinstance(schema.get("$schema", ""), str):
        raise ValueError("the schema is not a JSON object whose $schema is a text")
    kind: Any = validator_for(schema, default=Draft202012Validator)
    _check(kind, schema)
    # Without this, the dialect's own validator would replace this one at every reference to the root.
    schema = _without_dialect(schema)
    _check_keywords(schema)
    registry: Registry[Any] = Registry()
    resolver = registry.resolver_with_root(specification_with(kind.ID_OF(kind.META_SCHEMA)).create_resource(schema))
    for reference in _texts(schema, _REFERENCES):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise ValueError(_short(f"the reference {reference} leads to nothing in the schema")) from None
    judge = bounded(kind)(schema, registry=registry)
    most_at_once = _Costs(resolver.lookup).most(schema)
    return judge, shortcut(kind, schema, registry), member_shortcut(kind, schema, registry), most_at_once


def _check(kind: Any, schema: Any) -> None:
    """Check a schema as ``kind.check_schema`` does, but not in quadratic time; patterns are compiled later.

    :raises ValueError, RecursionError: the schema is invalid.
    """
    PATIENCE.begin(most_keywords=_MOST_KEYWORDS_OF_CHECK)
    try:
        error = next(_judge_of_schemas(kind).iter_errors(schema), None)
    except OutOfPatience:
        raise ValueError(f"it takes more than {_MOST_KEYWORDS_OF_CHECK} keywords to check the schema") from None
    if error is not None:
        raise ValueError(_short(f"not a JSON Schema: {error.json_path}: {error.message}"))


@lru_cache(maxsize=16)
def _judge_of_schemas(kind: Any) -> Validator:
    """A bounded validator of a dialect's schemas. Its subschemas lose ``$schema``, which would lift the bounds."""
    from jsonschema_specifications import REGISTRY
    from referencing import Registry
    from referencing.jsonschema import specification_with

    known = {uri: REGISTRY.contents(uri) for uri in REGISTRY}
    registry: Registry[Any] = Registry()
    registry = registry.with_resources(
        (uri, specification_with(schema["$schema"]).create_resource(_without_dialect(schema)))
        for uri, schema in known.items()
    )
    validator: Validator = bounded(kind)(_without_dialect(kind.META_SCHEMA), registry=registry.crawl())
    return validator


def _without_dialect(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in schema.items() if name != "$schema"}


def _check_keywords(schema: Any) -> None:
    """:raises ValueError: the schema has a keyword that escapes the bounds of `schema_keywords`."""
    if next(_texts(schema, ("$schema",)), None) is not None:
        raise ValueError("a part of the schema has a $schema of its own")
    if any(isinstance(item, dict) for kinds in _members(schema, "type") if isinstance(kinds, list) for item in kinds):
        raise ValueError("a type that is a schema, as in draft 3, cannot be used; anyOf of draft 4 can")
    for text in _patterns(schema):
        try:
            pattern(text)
        except ValueError as error:
            raise ValueError(_short(str(error))) from None
    by_pattern = any(isinstance(names, dict) for names in _members(schema, "patternProperties"))
    if by_pattern and next(_members(schema, "unevaluatedProperties"), None) is not None:
        raise ValueError("patternProperties and unevaluatedProperties cannot be used in one schema")


def _failures() -> tuple[type[Exception], ...]:
    """The exceptions of a validator whose schema demands something impossible."""
    from referencing.exceptions import Unresolvable

    return Unresolvable, ArithmeticError


def _patterns(schema: Any) -> Iterator[str]:
    yield from _texts(schema, ("pattern",))
    for names in _members(schema, "patternProperties"):
        yield from names if isinstance(names, dict) else ()


def _texts(schema: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield from (item for item in _members(schema, name) if isinstance(item, str))


def _members(schema: Any, wanted: str) -> Iterator[Any]:
    """Every member of the schema with this name, at any depth."""
    if isinstance(schema, list):
        for item in schema:
            yield from _members(item, wanted)
    elif isinstance(schema, dict):
        if wanted in schema:
            yield schema[wanted]
        for item in schema.values():
            yield from _members(item, wanted)


def _in_json(error: Any) -> str:
    """A validator's message, with values in JSON instead of Python: null and not None."""
    message: str = error.message
    for value in (error.instance, error.validator_value):
        if not isinstance(value, str) and len(shown := repr(value)) <= len(message):
            message = message.replace(shown, json.dumps(value, ensure_ascii=False), 1)
    return message


def _short(reason: str) -> str:
    reason = " ".join(reason.split())
    return reason if len(reason) <= _MOST_SHOWN else f"{reason[: _MOST_SHOWN - 1]}…"


def value_schema(text: str) -> ValueSchema | None:
    """The compiled schema of a config's text, cached; None if the text is empty.

    Compiling takes up to half a second, so call this in a thread unless `is_made`.

    :raises ValueError: with the reason, if it is no schema.
    """
    made = _schema_or_why(text) if text else None
    if isinstance(made, str):
        raise ValueError(made)
    return made


def is_made(text: str) -> bool:
    """True if `value_schema` has the result for this text in its cache."""
    return not text or text in _made


def _schema_or_why(text: str) -> ValueSchema | str:
    made = _made.get(text)
    if made is None:
        try:
            made = ValueSchema(text)
        except ValueError as error:
            made = str(error)
        if len(_made) >= _MOST_MADE:
            _made.clear()
        _made[text] = made
    return made


def is_value_schema(value: Value) -> str | None:
    """The problem with the config's value, or None."""
    if _has_too_many_patterns(str(value)):
        return f"a schema has at most {MOST_PATTERNS} patterns"
    try:
        schema = value_schema(str(value))
    except ValueError as error:
        return str(error)
    # Only here: a schema that was set before these bounds stays.
    if schema is not None and schema.most_at_once > MOST_KEYWORDS_AT_ONCE:
        return f"a part of a value may take more than {MOST_KEYWORDS_AT_ONCE} keywords: references multiply"
    return None


def _has_too_many_patterns(text: str) -> bool:
    try:
        return len(text) <= MOST_BYTES and len(set(_patterns(parsed_text(text)))) > MOST_PATTERNS
    except (ValueError, RecursionError):
        # Compiling the schema gives the reason.
        return False
