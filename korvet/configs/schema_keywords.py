"""JSON Schema's keywords in bounded time, for every schema and every value.

- Patterns are matched by RE2, in time linear in the text.
- uniqueItems compares items by their JSON texts, not pairwise.
- The two keywords that compare members pairwise accept a bounded number of members.
- anyOf and oneOf keep no reasons why the alternatives fail: each reason would hold the value's text.
- Each keyword that a validator evaluates counts as a step of the thread's `Patience`.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from korvet.patterns import compiled

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MOST_MEMBERS: Final = 4096
"""The most members for unevaluatedProperties and unevaluatedItems, which take quadratic time."""
_BETWEEN_CHECKS: Final = 64
_FEW_KEYWORDS: Final = 10_000
_MOST_AT_A_GLANCE: Final = 1_000_000
_Keyword = Callable[["Validator", Any, Any, Mapping[str, Any]], Iterable[Any] | None]


class OutOfPatience(Exception):
    """A judgement exceeds its bounds."""


class Patience(threading.local):
    """The bounds of each thread's current judgement: its CPU time, and the number of checks."""

    checks = 0
    most_checks: float = float("inf")
    until_s = float("inf")
    given_up: threading.Event | None = None

    def begin(
        self,
        *,
        most_keywords: float = float("inf"),
        cpu_s: float = float("inf"),
        given_up: threading.Event | None = None,
    ) -> None:
        """Begin a judgement that may evaluate about so many keywords and take so much CPU time in this thread."""
        self.given_up = given_up
        self.checks = 0
        self.most_checks = most_keywords / _BETWEEN_CHECKS
        self.until_s = cpu_s if cpu_s == float("inf") else time.thread_time() + cpu_s

    def begin_again(self) -> None:
        """Begin another judgement with the same bound on keywords; the CPU time keeps running."""
        self.checks = 0

    def allow(self, keywords: float) -> None:
        """Let the judgement evaluate about so many more keywords."""
        self.most_checks += keywords / _BETWEEN_CHECKS

    @property
    def most_at_a_glance(self) -> float:
        """The most keywords of a judgement that `allows` calls short."""
        return min(_MOST_AT_A_GLANCE, self.most_checks * _BETWEEN_CHECKS)

    def allows(self, keywords: int) -> bool:
        """True if a judgement of at most so many keywords is certainly within its bounds.

        :raises OutOfPatience: the bounds are exceeded already.
        """
        if keywords > _FEW_KEYWORDS:
            self.check()
        return keywords <= self.most_at_a_glance

    def check(self) -> None:
        """:raises OutOfPatience:"""
        self.checks += 1
        if self.checks > self.most_checks:
            raise OutOfPatience
        self.check_time()

    def check_time(self) -> None:
        """:raises OutOfPatience:"""
        is_given_up = self.given_up is not None and self.given_up.is_set()
        if is_given_up or time.thread_time() > self.until_s:
            raise OutOfPatience


PATIENCE: Final = Patience()
_step: Final = itertools.count(1).__next__
"""A cheap count of all threads' steps; a thread that reaches a round number checks its bounds."""


def spend() -> None:
    """Take a step.

    :raises OutOfPatience:
    """
    if not _step() % _BETWEEN_CHECKS:
        PATIENCE.check()


def pattern(text: str) -> Any:
    """A regular expression, compiled by RE2.

    :raises ValueError: with the reason, if RE2 cannot compile it.
    """
    try:
        return compiled(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a pattern of RE2: {error}") from None


def _search(text: str) -> Any:
    """The search function of a pattern. If RE2 must compile it again, that costs as much as thousands of keywords.

    :raises OutOfPatience:
    """
    PATIENCE.check_time()
    return pattern(text).search


@lru_cache(maxsize=16)
def bounded(kind: Any) -> Any:
    """A dialect's validator class, with keywords in bounded time."""
    from jsonschema.validators import extend

    own: dict[str, _Keyword] = {
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
        "anyOf": _any_of,
        "oneOf": _one_of,
    }
    keywords: dict[str, _Keyword] = {name: own.get(name, keyword) for name, keyword in kind.VALIDATORS.items()}
    if "additionalProperties" in keywords:
        keywords["additionalProperties"] = _additional_properties(keywords["additionalProperties"])
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if name in keywords:
            keywords[name] = _of_few(name, keywords[name])
    extended: Any = extend
    return extended(kind, {name: _counted(keyword) for name, keyword in keywords.items()})


def _multiple_of(validator: Validator, unit: Any, instance: Any, _: Mapping[str, Any]) -> Iterator[Any]:
    """By the decimals of both texts: 0.07 is a multiple of 0.01, though the quotient of their doubles is no integer."""
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(instance, "number"):
        return
    whole = isinstance(instance, int) and isinstance(unit, int)
    try:
        failed = instance % unit if whole else Fraction(str(instance)) % Fraction(str(unit))
    except ValueError:  # It is infinite.
        failed = True
    if failed:
        yield ValidationError(f"{instance!r} is not a multiple of {unit!r}")


def _counted(keyword: _Keyword) -> _Keyword:
    def counted(validator: Validator, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterable[Any] | None:
        if not _step() % _BETWEEN_CHECKS:
            PATIENCE.check()
        return keyword(validator, value, instance, schema)

    return counted


def _pattern(validator: Validator, value: str, instance: Any, _: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if validator.is_type(instance, "string") and not _search(value)(instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _pattern_properties(validator: Any, value: Mapping[str, Any], instance: Any, _: Mapping[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for text, subschema in value.items():
        search = _search(text)
        for name, member in instance.items():
            spend()
            if search(name):
                yield from validator.descend(member, subschema, path=name, schema_path=text)


def _additional_properties(usual: _Keyword) -> _Keyword:
    """Wrap the usual keyword: it gets only members whose names match no pattern of the schema."""

    def additional(validator: Validator, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterable[Any] | None:
        patterns = schema.get("patternProperties")
        if not patterns or not validator.is_type(instance, "object"):
            return usual(validator, value, instance, schema)
        searches = [_search(text) for text in patterns]
        left = {name: member for name, member in instance.items() if not any(search(name) for search in searches)}
        return usual(validator, value, left, {"properties": schema.get("properties", {})})

    return additional


def _unique_items(validator: Validator, value: Any, instance: Any, _: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if value and validator.is_type(instance, "array"):
        # A set of texts, because an author may choose numbers with equal hashes.
        different = {json.dumps(_with_whole_numbers(item), sort_keys=True) for item in instance}
        if len(different) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _any_of(validator: Any, value: Any, instance: Any, _: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not any(_fits(validator, instance, at, one) for at, one in enumerate(value)):
        yield ValidationError(f"{instance!r} is not valid under any of the given schemas")


def _one_of(validator: Any, value: Any, instance: Any, _: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    fitting = [one for at, one in enumerate(value) if _fits(validator, instance, at, one)]
    if not fitting:
        yield ValidationError(f"{instance!r} is not valid under any of the given schemas")
    elif len(fitting) > 1:
        yield ValidationError(f"{instance!r} is valid under each of {', '.join(map(repr, fitting))}")


def _fits(validator: Any, instance: Any, at: int, schema: Any) -> bool:
    return next(validator.descend(instance, schema, schema_path=at), None) is None


def _with_whole_numbers(item: Any) -> Any:
    """An item that is equal in JSON Schema, with each number in one spelling."""
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, list):
        return [_with_whole_numbers(one) for one in item]
    if isinstance(item, dict):
        return {name: _with_whole_numbers(one) for name, one in item.items()}
    return item


def _of_few(name: str, keyword: _Keyword) -> _Keyword:
    def of_few(validator: Validator, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterable[Any] | None:
        if isinstance(instance, list | dict) and len(instance) > MOST_MEMBERS:
            raise ValueError(f"{name} can judge at most {MOST_MEMBERS} members, and the value has {len(instance)}")
        return keyword(validator, value, instance, schema)

    return of_few
