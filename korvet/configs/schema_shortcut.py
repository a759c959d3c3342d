"""A shortcut past the JSON Schema validator: it recognizes most values that fit a schema of common keywords.

The validator looks up each keyword anew for each value. A shortcut is a function compiled from the schema once, and
takes a tenth of the time. It never accepts a value that does not fit; if it is unsure, the validator decides. A schema
with other keywords, or with a recursive reference, has no shortcut.

Source: `jsonschema._keywords`, for values as Python's json makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import NoneType
from typing import Any, Final

from jsonschema import Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator
from referencing.jsonschema import DRAFT6, DRAFT7, specification_with

from korvet.configs.schema_keywords import pattern

Check = Callable[[Any], bool]
Fits = Mapping[type, Check]
"""The values that surely fit, as checks by type; a type without a check never surely fits."""

_MOST_KEYWORDS: Final = 1000
_DIALECTS: Final = (Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator)
_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "null": frozenset({NoneType}),
    "boolean": frozenset({bool}),
    "object": frozenset({dict}),
    "array": frozenset({list}),
    "string": frozenset({str}),
    # The validator decides which floats are integers.
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
}
_ALL: Final = frozenset[type]().union(*_TYPES.values())
_BOUNDS: Final[Mapping[str, tuple[str, Callable[[Any], Check]]]] = {
    "minLength": ("string", lambda least: lambda value: len(value) >= least),
    "maxLength": ("string", lambda most: lambda value: len(value) <= most),
    "minItems": ("array", lambda least: lambda value: len(value) >= least),
    "maxItems": ("array", lambda most: lambda value: len(value) <= most),
    "minProperties": ("object", lambda least: lambda value: len(value) >= least),
    "maxProperties": ("object", lambda most: lambda value: len(value) <= most),
    "minimum": ("number", lambda least: lambda value: value >= least),
    "maximum": ("number", lambda most: lambda value: value <= most),
    "exclusiveMinimum": ("number", lambda bound: lambda value: value > bound),
    "exclusiveMaximum": ("number", lambda bound: lambda value: value < bound),
    "pattern": ("string", lambda text: _matches(pattern(text).search)),
    "required": ("object", lambda names: frozenset(names).issubset),
}
_OTHERS: Final = ("$ref", "type", "enum", "const", "allOf", "anyOf", "items", "properties", "additionalProperties")
_OF_MEMBERS: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_WITHOUT_EFFECT: Final = ("format",)
_KNOWN: Final = frozenset((*_BOUNDS, *_OTHERS, *_WITHOUT_EFFECT))


class Shortcut:
    """A quick check that a value fits.

    :param keywords: the most keywords that it or the validator evaluates for each part of a value.
    """

    def __init__(self, fits: Fits, keywords: int) -> None:
        self._fits, self.keywords = fits, keywords

    def fits(self, value: Any) -> bool:
        """True if a value surely fits.

        :raises RecursionError, UnicodeEncodeError:
        """
        return _does_fit(self._fits, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberShortcut:
    """A shortcut for many objects of one shape, with the same names and types in the same order.

    :param keywords: as in `Shortcut`.
    """

    required: frozenset[str]
    members: Mapping[str, Fits]
    other: Fits
    keywords: int

    def checks(self, names: Sequence[str], kinds: Sequence[type]) -> list[tuple[int, Check]] | None:
        """The checks of the members by index; None if no object of this shape surely fits."""
        if not self.required.issubset(names):
            return None
        found = []
        for at, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            check = self.members.get(name, self.other).get(kind)
            if check is None:
                return None
            if check is not _anything:
                found.append((at, check))
        return found


class _None(Exception):
    """The schema has no shortcut."""


def shortcut(kind: Any, schema: dict[str, Any], registry: Any) -> Shortcut | None:
    """The shortcut of a checked schema; None if it has none.

    :param kind: the dialect's validator class.
    """
    if kind not in _DIALECTS:
        return None
    dialect = specification_with(kind.ID_OF(kind.META_SCHEMA))
    reader = _Reader(kind, dialect)
    try:
        fits = reader.fits(schema, registry.resolver_with_root(dialect.create_resource(schema)), frozenset())
    except _None:
        return None
    return Shortcut(fits, reader.keywords)


def member_shortcut(kind: Any, schema: dict[str, Any], registry: Any) -> MemberShortcut | None:
    """The shortcut for many objects, if a checked schema constrains only their names and members; else None."""
    said = schema.get("type", "object")
    others = frozenset(kind.VALIDATORS).intersection(schema) - _OF_MEMBERS
    if kind not in _DIALECTS or others or "object" not in ([said] if isinstance(said, str) else said):
        return None
    dialect = specification_with(kind.ID_OF(kind.META_SCHEMA))
    reader = _Reader(kind, dialect)
    root = registry.resolver_with_root(dialect.create_resource(schema))
    reader.keywords += len(schema)
    try:
        return MemberShortcut(
            required=frozenset(schema.get("required", ())),
            members={name: reader.fits(part, root, frozenset()) for name, part in schema.get("properties", {}).items()},
            other=reader.fits(schema.get("additionalProperties", True), root, frozenset()),
            keywords=reader.keywords,
        )
    except _None:
        return None


class _Reader:
    """Walks one schema and counts its keywords, because references multiply them."""

    def __init__(self, kind: Any, dialect: Any) -> None:
        self._judged = frozenset(kind.VALIDATORS)
        self._dialect = dialect
        self.keywords = 1

    def fits(self, schema: Any, resolver: Any, around: frozenset[int]) -> Fits:
        """:raises _None:"""
        if isinstance(schema, bool):
            return _ANYTHING if schema else {}
        self._count(schema, around)
        around |= {id(schema)}
        resolver = resolver.in_subresource(self._dialect.create_resource(schema))
        found = []
        if "$ref" in schema:
            target = resolver.lookup(schema["$ref"])
            found.append(self.fits(target.contents, target.resolver, around))
            if self._dialect in (DRAFT6, DRAFT7):
                # In older dialects a reference stands alone.
                return found[0]
        return _all_of((*found, *_own(schema), *_inner(schema, lambda part: self.fits(part, resolver, around))))

    def _count(self, schema: Mapping[str, Any], around: frozenset[int]) -> None:
        self.keywords += len(schema)
        has_others = bool(self._judged & schema.keys() - _KNOWN)
        if has_others or id(schema) in around or self.keywords > _MOST_KEYWORDS:
            raise _None


def _own(schema: Mapping[str, Any]) -> Iterator[Fits]:
    """The checks of keywords without subschemas."""
    if "type" in schema:
        said = schema["type"]
        kinds = frozenset[type]().union(*(_TYPES[name] for name in ([said] if isinstance(said, str) else said)))
        yield dict.fromkeys(kinds, _anything)
    if "enum" in schema:
        yield _one_of(schema["enum"])
    if "const" in schema:
        yield _one_of([schema["const"]])
    for name, (kind, check) in _BOUNDS.items():
        if name in schema:
            yield _only(kind, check(schema[name]))


def _inner(schema: Mapping[str, Any], fits: Callable[[Any], Fits]) -> Iterator[Fits]:
    """The checks of keywords with subschemas.

    :raises _None:
    """
    yield from (fits(part) for part in schema.get("allOf", ()))
    if "anyOf" in schema:
        yield _any_of([fits(part) for part in schema["anyOf"]])
    if "items" in schema:
        if isinstance(schema["items"], list):
            raise _None
        yield _only("array", _items(fits(schema["items"])))
    if "properties" in schema or "additionalProperties" in schema:
        members = {name: fits(part) for name, part in schema.get("properties", {}).items()}
        yield _only("object", _members(members, fits(schema.get("additionalProperties", True))))


def _anything(_: Any) -> bool:
    return True


_ANYTHING: Final[Fits] = dict.fromkeys(_ALL, _anything)


def _does_fit(fits: Fits, value: Any) -> bool:
    check = fits.get(type(value))
    return check is not None and check(value)


def _only(kind: str, check: Check) -> Fits:
    """Accept all values, with a check for those of one type."""
    return {**_ANYTHING, **dict.fromkeys(_TYPES[kind], check)}


def _one_of(allowed: Sequence[Any]) -> Fits:
    """Accept these texts, integers, booleans and null; the validator compares others."""
    kinds = {str, int, bool, NoneType} & {type(each) for each in allowed}
    return {kind: frozenset(each for each in allowed if type(each) is kind).__contains__ for kind in kinds}


def _all_of(parts: Sequence[Fits]) -> Fits:
    kinds = _ALL.intersection(*parts)
    return {kind: _every([part[kind] for part in parts]) for kind in kinds}


def _every(checks: Iterable[Check]) -> Check:
    left = [check for check in checks if check is not _anything]
    return reduce(_both, left) if left else _anything


def _both(one: Check, other: Check) -> Check:
    return lambda value: one(value) and other(value)


def _any_of(parts: Sequence[Fits]) -> Fits:
    kinds = frozenset[type]().union(*parts)
    return {kind: _some([part[kind] for part in parts if kind in part]) for kind in kinds}


def _some(checks: Sequence[Check]) -> Check:
    return _anything if _anything in checks else reduce(_either, checks)


def _either(one: Check, other: Check) -> Check:
    return lambda value: one(value) or other(value)


def _matches(search: Callable[[bytes], Any]) -> Check:
    # On a str RE2 would also compute character positions, and take three times as long.
    return lambda value: search(value.encode()) is not None


def _items(item: Fits) -> Check:
    return lambda value: all(_does_fit(item, each) for each in value)


def _members(members: Mapping[str, Fits], other: Fits) -> Check:
    """A check of each member of an object: by its name, or as one of the others."""

    def check_all(value: dict[str, Any]) -> bool:
        for name, member in value.items():
            check = members.get(name, other).get(type(member))
            # Most members need only their type; a call for each would cost more than all the rest.
            if check is None or not (check is _anything or check(member)):
                return False
        return True

    return check_all
