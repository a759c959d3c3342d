"""The contract of the Lua library: each function's keys, arguments, reply and flags, read from the tables in ``lua/``.

``lua/0-core/3-definitions.lua`` says what the fields of ``korvet.define({...}, function(keys, asked)`` mean.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError
from korvet.redis.resp import Argument, Named

LIBRARY = "korvet"

_DEFINITION = re.compile(r"^korvet\.define\(\{\n(.*?)^\}, function\((.*?)\)\n(.*?)^end\)$", re.MULTILINE | re.DOTALL)
_TEXT = r"""'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)"|\[(=*)\[\n?(.*?)\]\4\]"""
_FIELD = re.compile(rf"\s*(\w+) = (?:{_TEXT}|\{{(.*?)\}}|true),", re.DOTALL)
_KEYSETS = re.compile(rb"^korvet\.KEYSETS = \{\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"(\w+)(?::[\w|]+)?(?:(\??)|[*+]\d*(?:<=(\d+))?)(?: .*)?")
_LISTED = re.compile(r"'([\w.-]+)'")
_NAME_OF_CODE = re.compile(r"\b[A-Z]+(?:_[A-Z]+)*\b")
_CODE = re.compile(r"^  ([A-Z_]+) = (-?\d+),(?: -- (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: ``keys`` and ``args`` by name and in order.

    A name that ends in ``?`` may be left out, one that ends in ``...`` may be given any number of times. ``flags`` are
    as FUNCTION LIST shows them: no-writes; allow-oom, with which it runs at maxmemory (the reading ones carry it too,
    since Redis ignores maxmemory for no-writes only since 7.0.1); allow-stale. ``bound`` is how many times the repeated
    argument may be given. ``codes`` are the names that its codes say in capitals. ``was`` is empty, or the former name
    and the last minor version whose front-ends call it. ``texts`` are all texts of its table, ``parameters`` and
    ``body`` are those of the Lua function after it.
    """

    name: str
    was: tuple[str, ...]
    file: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    by_position: bool
    bound: int | None
    codes: frozenset[str]
    flags: frozenset[str]
    texts: Mapping[str, str]
    parameters: tuple[str, ...]
    body: str

    @property
    def description(self) -> str:
        return self.texts["description"]

    @property
    def read_only(self) -> bool:
        return "no-writes" in self.flags

    @property
    def fixed(self) -> tuple[str, ...]:
        """The arguments that are not repeated, without their marks."""
        return tuple(arg.removesuffix("?") for arg in self.args if not arg.endswith("..."))

    @property
    def required(self) -> int:
        """The number of required fixed arguments."""
        return sum(arg[-1] not in "?." for arg in self.args)

    @property
    def repeated(self) -> str:
        """The repeated argument, or an empty text."""
        return self.args[-1].removesuffix("...") if self.args and self.args[-1].endswith("...") else ""

    @property
    def most_args(self) -> int:
        """The most arguments of a call; unlimited if a repeated argument has no bound."""
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


def arguments(function: str, named: Mapping[str, Named]) -> Sequence[Argument]:
    """A call's arguments in the order of the function's table.

    :param named: by the table's names; an optional one may be None, the repeated one is an iterable.
    :raises TypeError: the function has no such argument, or lacks one.
    """
    fixed, required, repeated, names, in_order = _layout(function)
    try:
        given = in_order(named)
    except KeyError:
        given = ()
    if given and len(named) == len(given) and (required == len(fixed) or None not in given):
        if not repeated:
            return given
        if isinstance(given[-1], list | tuple):
            return [*given[:-1], *given[-1]]
    if not named.keys() <= names:
        raise TypeError(f"{function} takes no argument '{min(named.keys() - names)}'")
    values: list[Any] = [named.get(name) for name in fixed]
    further: Any = named.get(repeated, ())
    if isinstance(further, str | bytes):
        raise TypeError(f"{function} takes an iterable as '{repeated}'")
    further = [*further] if further else []
    if None in values:
        # An argument can be omitted only with all later ones.
        least = len(fixed) if further else required
        while len(values) > least and values[-1] is None:
            values.pop()
        if None in values:
            raise TypeError(f"{function} lacks its argument '{fixed[values.index(None)]}'")
    return [*values, *further]


class ContractError(ValueError):
    """A table in ``lua/`` is no contract."""


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
    """The functions that a file defines.

    :param file: its name in ``lua/``.

    :raises ContractError: a table lacks a field, or a list has a word that is none.
    """
    for definition in _DEFINITION.finditer(text):
        raw = _scan(definition[1])
        fields = {field: " ".join(text.split()) for field, text in raw.items()}
        name = f"{LIBRARY}_{fields.get('name')}"
        lacking = {"name", "description", "returns"} - fields.keys()
        if lacking:
            raise ContractError(f"{file}: {name} has no {min(lacking)}")
        keys, args = ([_word(name, word) for word in words(raw.get(of, ""))] for of in ("keys", "args"))
        yield Function(
            name=name,
            was=tuple(_LISTED.findall(fields.get("was", ""))),
            file=file,
            keys=tuple(key for key, _ in keys),
            args=tuple(arg for arg, _ in args),
            by_position="by_position" in fields,
            bound=args[-1][1] if args else None,
            codes=frozenset(_NAME_OF_CODE.findall(fields.get("codes", ""))),
            flags=frozenset(_LISTED.findall(fields.get("flags", ""))),
            texts={**fields, "keys": raw.get("keys", ""), "args": raw.get("args", "")},
            parameters=tuple(definition[2].split(", ")),
            body=definition[3],
        )


def _scan(table: str) -> dict[str, str]:
    """The fields of a table whose values are texts, lists of texts, or true."""
    fields, at = {}, 0
    while found := _FIELD.match(table, at):
        short, quoted, _, long, flags = found.groups()[1:]
        fields[found[1]], at = short or quoted or long or flags or "", found.end()
    if rest := table[at:].strip():
        raise ContractError(f"{rest.splitlines()[0]!r} is no field of a contract")
    return fields


def words(text: str, *, expands: bool = True) -> list[str]:
    """The words of a contract's keys or arguments, each with its prose, as ``definition.words`` in Lua finds them.

    :param expands: False leaves the names of sets of keys as they are.
    """
    lines = re.sub("   +", "\n", re.sub("\n      +", " ", text)).splitlines()
    found = [line.strip() for line in lines if line.strip()]
    if not expands:
        return found
    return [one for word in found for one in (words(KEYSETS[word[1:]]) if word[0] == "@" else [word])]


def _word(name: str, text: str) -> tuple[str, int | None]:
    """A word as `Function` has it, and a repeated one's bound."""
    found = _WORD.fullmatch(text)
    if found is None:
        raise ContractError(f"{name}: {text!r} is no key or argument")
    return found[1] + ("..." if found[2] is None else found[2]), int(found[3]) if found[3] else None


def _read() -> Mapping[str, Function]:
    functions = (one for file, text in library_files().items() for one in functions_in(file, text.decode()))
    return MappingProxyType({function.name: function for function in functions})


_STATED_SETS = _KEYSETS.search(library_files()["0-core/3-definitions.lua"])
KEYSETS: Final = MappingProxyType(_scan(_STATED_SETS[1].decode()) if _STATED_SETS else {})
"""The keys that several functions take, by the names of the sets."""
FUNCTIONS: Final = _read()
"""Every function of the library by its name."""

_STATED = _CODE.findall(library_files()["0-core/0-library.lua"].decode())
CODES: Final = MappingProxyType({name: int(number) for name, number, _ in _STATED})
"""The codes of functions' replies, from ``lua/0-core/0-library.lua``: Kafka's, and korvet's own below zero."""
MEANINGS: Final = MappingProxyType({name: meaning for name, number, meaning in _STATED if int(number) < 0})
"""The meanings of korvet's own codes."""

RESEND: Final = CODES["RESEND"]
GONE: Final = CODES["GONE"]
UNINDEXED: Final = CODES["UNINDEXED"]
LOST: Final = CODES["LOST"]
RETRY: Final = CODES["RETRY"]
LATE: Final = CODES["LATE"]
VERIFY: Final = CODES["VERIFY"]
FRESH_ID: Final = CODES["FRESH_ID"]
CHECK: Final = CODES["CHECK"]
