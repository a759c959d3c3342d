"""The contract of the Lua library, read from the headers in ``lua/``: each function's keys, arguments, reply and flags.

A header is the comment right above a function that is registered right below it, as in ``lua/3-groups/sync.lua``::

    -- group_sync: store the leader's assignments, or hand a member its own
    -- KEYS[1] group     hash  state, generation, leader, deadlines
    -- ARGV[1] outages   `served_until from-to ...` or ''
    -- ARGV[8..] assignments  member_id, assignment, ... of the leader
    -- Returns {code} when refused, else {0, status, wait_ms, protocol_type, protocol, assignment}
    -- Bound: 20000 assignments; prose may follow
    -- Codes: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION

An argument that says ``(optional)`` may be left out, the one that says ``[n..]`` may be given any number of times, up
to the bound.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError
from korvet.redis.resp import Argument, Named

LIBRARY = "korvet"

_REGISTRATION = re.compile(r"^redis\.register_function\{\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
_HEADER = re.compile(r"((?:^--.*\n)+)^function ([\w.]+)\([^)]*\)\n", re.MULTILINE)
_TITLE = re.compile(r"(\w+): (.*)")
_PARAMETER = re.compile(r"(KEYS|ARGV)\[(\d+)(\.\.)?\] +(\w+)")
_REPLY = re.compile(r"^Returns (.*?)(?=^Bound: |^Codes: |^Source: |\Z)", re.MULTILINE | re.DOTALL)
_BOUND = re.compile(r"^Bound: (\d+) (\w+)", re.MULTILINE)
_FIELD = re.compile(r"^  (\w+) = (.*),$", re.MULTILINE)
_FLAG = re.compile(r"'([\w-]+)'")
_CODES = re.compile(r"^Codes: (.*?)(?=^Bound: |^Source: |\Z)", re.MULTILINE | re.DOTALL)
_NAME_OF_CODE = re.compile(r"\b[A-Z]+(?:_[A-Z]+)*\b")
_CODE = re.compile(r"^  ([A-Z_]+) = (-?\d+),(?: -- (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: ``keys`` and ``args`` by name and in order, ``reply`` as its header's Returns says it.

    A name that ends in ``?`` may be left out, one that ends in ``...`` may be given any number of times. ``flags`` are
    as FUNCTION LIST shows them: no-writes; allow-oom, with which it runs at maxmemory (the reading ones carry it too,
    since Redis ignores maxmemory for no-writes only since 7.0.1); allow-stale. ``bound`` is how many times the repeated
    argument may be given; without one it is how many elements a call touches. ``codes`` are the names that its header's
    Codes says in capitals. ``header`` is the header's text below its first line.
    """

    name: str
    file: str
    description: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    reply: str
    bound: int | None
    codes: frozenset[str]
    flags: frozenset[str]
    header: str

    @property
    def read_only(self) -> bool:
        return "no-writes" in self.flags

    @property
    def fixed(self) -> tuple[str, ...]:
        """The arguments that are not repeated, without their marks."""
        return tuple(arg.removesuffix("?") for arg in self.args if not arg.endswith("..."))

    @property
    def required(self) -> int:
        """How many of the fixed arguments each call has."""
        return sum(arg[-1] not in "?." for arg in self.args)

    @property
    def repeated(self) -> str:
        """The argument that may be given any number of times, or an empty text."""
        return self.args[-1].removesuffix("...") if self.args and self.args[-1].endswith("...") else ""

    @property
    def most_args(self) -> int:
        """How many arguments a call may have in all; without a limit where a repeated argument has no bound."""
        if not self.repeated:
            return len(self.args)
        return sys.maxsize if self.bound is None else len(self.args) - 1 + self.bound


class _Layout(NamedTuple):
    """A function's arguments; ``in_order`` takes values for all of them out of a mapping."""

    fixed: tuple[str, ...]
    required: int
    repeated: str
    names: frozenset[str]
    in_order: Callable[[Mapping[str, Named]], tuple[Any, ...]]


@cache
def _layout(function: str) -> _Layout:
    contract = FUNCTIONS[function]
    names = [*contract.fixed, contract.repeated] if contract.repeated else [*contract.fixed]
    # itemgetter gives no tuple for a single name.
    in_order = itemgetter(*names) if len(names) > 1 else lambda named: tuple(named[name] for name in names)
    return _Layout(contract.fixed, contract.required, contract.repeated, frozenset(names), in_order)


def arguments(function: str, named: Mapping[str, Named]) -> list[Argument]:
    """A call's arguments in the order of the function's header.

    :param named: by the header's names; an optional one may be None, the repeated one is an iterable.
    :raises TypeError: the function has no such argument, or lacks one.
    """
    fixed, required, repeated, names, in_order = _layout(function)
    if repeated and len(named) == len(names) and named.keys() == names:
        given = in_order(named)
        if None not in given and isinstance(given[-1], list | tuple):
            return [*given[:-1], *given[-1]]
    if not named.keys() <= names:
        raise TypeError(f"{function} takes no argument '{min(named.keys() - names)}'")
    values: list[Any] = [named.get(name) for name in fixed]
    further: Any = named.get(repeated, ())
    if isinstance(further, str | bytes):
        raise TypeError(f"{function} takes an iterable as '{repeated}'")
    further = [*further] if further else []
    if None in values:
        # An argument can be left out only with all behind it.
        least = len(fixed) if further else required
        while len(values) > least and values[-1] is None:
            values.pop()
        if None in values:
            raise TypeError(f"{function} lacks its argument '{fixed[values.index(None)]}'")
    return [*values, *further]


class ContractError(ValueError):
    """A header in ``lua/`` is not one, or does not stand above its function."""


@cache
def library_files() -> Mapping[str, bytes]:
    """The texts of the library's files by their names, in order.

    They are in the package when it was installed, and beside it in a clone.

    :raises KorvetError: the package was installed without its Lua files.
    """
    package = files("korvet")
    inside = package / "lua"
    directory = inside if inside.is_dir() else package / ".." / "lua"
    subjects = [entry for entry in directory.iterdir() if entry.is_dir()] if directory.is_dir() else []
    found = {f"{subject.name}/{entry.name}": entry for subject in subjects for entry in subject.iterdir()}
    if not found:
        raise KorvetError("this installation of korvet lacks its Lua files: install it again")
    return MappingProxyType({name: found[name].read_bytes() for name in sorted(found)})


def functions_in(file: str, text: str) -> Iterator[Function]:
    """The functions that a file registers, as their headers tell them.

    :param file: its name in ``lua/``.

    :raises ContractError: a registered function has no header, or one of another function.
    """
    headers = {found[2]: found for found in _HEADER.finditer(text)}
    for registration in _REGISTRATION.finditer(text):
        fields = dict(_FIELD.findall(registration[1]))
        name = fields["function_name"].strip("'")
        header = headers.get(fields["callback"])
        # From the header to the registration there is the one function and nothing else.
        if header is None or text.count("\nend\n", header.end(), registration.start()) != 1:
            raise ContractError(f"{name} has no header, or is not registered right below its function")
        yield _function(name, file, header[1], fields)


def _function(name: str, file: str, comment: str, fields: Mapping[str, str]) -> Function:
    lines = [line.removeprefix("--").strip() for line in comment.splitlines()]
    text = "\n".join(lines)
    title, reply, bound = _TITLE.fullmatch(lines[0]), _REPLY.search(text), _BOUND.search(text)
    codes = _CODES.search(text)
    if title is None or f"{LIBRARY}_{title[1]}" != name:
        raise ContractError(f"the header of {name} begins with {lines[0]!r}")
    if fields["description"][1:-1].replace("\\'", "'") != title[2]:
        raise ContractError(f"{name} is registered with another description than its header's")
    if reply is None:
        raise ContractError(f"the header of {name} has no Returns")
    args = tuple(_parameters(name, "ARGV", lines))
    if bound and args and args[-1].endswith("...") and args[-1] != f"{bound[2]}...":
        raise ContractError(f"the bound of {name} is not of its repeated argument")
    return Function(
        name=name,
        file=file,
        description=title[2],
        keys=tuple(_parameters(name, "KEYS", lines)),
        args=args,
        reply=" ".join(reply[1].split()),
        bound=int(bound[1]) if bound else None,
        codes=frozenset(_NAME_OF_CODE.findall(codes[1])) if codes else frozenset(),
        flags=frozenset(_FLAG.findall(fields.get("flags", ""))),
        header="\n".join(lines[1:]),
    )


def _parameters(name: str, kind: str, lines: list[str]) -> Iterator[str]:
    expected = 1
    for line in lines:
        for found in _PARAMETER.finditer(line):
            if found[1] != kind:
                continue
            if int(found[2]) != expected:
                raise ContractError(f"{name}: {kind}[{found[2]}] is not the next one")
            expected += 1
            yield found[4] + ("..." if found[3] else "?" if "(optional)" in line else "")


def _read() -> Mapping[str, Function]:
    functions = (one for file, text in library_files().items() for one in functions_in(file, text.decode()))
    return MappingProxyType({function.name: function for function in functions})


FUNCTIONS: Final = _read()
"""Every function of the library by its name."""

_STATED = _CODE.findall(library_files()["0-core/0-library.lua"].decode())
CODES: Final = MappingProxyType({name: int(number) for name, number, _ in _STATED})
"""The codes that functions reply, as ``lua/0-core/0-library.lua`` gives them: Kafka's, and below zero korvet's own."""
MEANINGS: Final = MappingProxyType({name: meaning for name, number, meaning in _STATED if int(number) < 0})
"""What korvet's own codes mean."""

RESEND: Final = CODES["RESEND"]
GONE: Final = CODES["GONE"]
UNINDEXED: Final = CODES["UNINDEXED"]
LOST: Final = CODES["LOST"]
RETRY: Final = CODES["RETRY"]
LATE: Final = CODES["LATE"]
VERIFY: Final = CODES["VERIFY"]
FRESH_ID: Final = CODES["FRESH_ID"]
CHECK: Final = CODES["CHECK"]
