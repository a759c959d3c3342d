"""Administrative requests in the audit log: the changes, and their outcomes.

A line is written when the outcome is known, even if the client has left meanwhile. If nothing waited for the outcome,
it is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from korvet.api.shared.context import Context
from korvet.wire.requests import Entity
from korvet.wire.writer import Fields

_ADMINISTRATIVE: Final = {
    19: "topics", 21: "topics", 27: "markers", 33: "resources", 37: "topics", 42: "groups_names", 44: "resources",
    47: "", 91: "", 92: "",
}  # fmt: skip
"""The APIs that change topics, groups and settings, each with the field of the items that it changes.

DeleteTopics and the APIs of rules, users and quotas note their changes themselves.
"""
_MOST_LOOKED_AT: Final = 1000
"""The elements of an answer that are searched for errors."""
_NAMES: Final = ("name", "resource_name", "topic_id", "producer_id", "group_id")


class Change:
    """A change in progress."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.outcome = "unknown"
        self.errors: list[str] = []

    def answered(self, answer: Fields) -> None:
        """End the change with the errors in an answer."""
        code = answer.get("error_code", 0)
        self.ended([code] * self._count if code else _error_codes(answer))

    def ended(self, codes: Iterable[int]) -> None:
        """End the change with the error codes of its items, which may leave out zeros."""
        failures = [code for code in codes if code]
        self.outcome = "failed" if len(failures) >= self._count else "partly" if failures else "done"
        self.errors = sorted({ErrorCode(i16(code)).name.upper() for code in failures})


@contextmanager
def noted(ctx: Context, names: Sequence[str], *, is_security: bool = False) -> Generator[Change]:
    """Record the change that the block makes, for the audit log. The block calls ``ended`` on it.

    :param names: the items to change.
    :param is_security: true for rules, users and quotas: no line of a successful change is left out.
    """
    change = Change(max(1, len(names)))
    try:
        yield change
    finally:
        if ctx.rights is not None and names:
            errors: dict[str, Any] = {"errors": change.errors} if change.errors else {}
            is_kept = is_security and change.outcome != "failed"
            ctx.rights.note_change(names, change.outcome, is_kept=is_kept, **errors)


def things_of(api_key: int, request: Entity) -> list[str]:
    """The names of the topics, groups or settings that a request changes; empty if it changes nothing."""
    field = _ADMINISTRATIVE.get(api_key)
    if field is None or getattr(request, "validate_only", False):
        return []
    things = (getattr(request, field, None) if field else None) or (request,)
    return [thing if isinstance(thing, str) else _named(thing) for thing in things]


def _named(thing: Entity) -> str:
    return next((str(found) for name in _NAMES if (found := getattr(thing, name, None)) is not None), "")


def _error_codes(answer: Fields) -> Iterator[int]:
    """The error codes of an answer and of its elements, up to a bound."""
    waiting: list[Fields] = [answer]
    for _ in range(_MOST_LOOKED_AT):
        if not waiting:
            return
        for name, value in waiting.pop().items():
            if name == "error_code":
                if value:
                    yield int(value)
            elif isinstance(value, list | tuple) and len(waiting) < _MOST_LOOKED_AT:
                waiting += [one for one in value[:_MOST_LOOKED_AT] if isinstance(one, Mapping)]
