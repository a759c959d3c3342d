"""`korvet/store/contract/`, the headers in ``lua/`` and FUNCTION LIST say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import redis

import korvet
from korvet.store.contract import FUNCTIONS, LIBRARY
from korvet.store.functions import library_version

LUA = Path(__file__).resolve().parents[2] / "lua"

_REGISTRATION = re.compile(r"^redis\.register_function\{\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"(KEYS|ARGV)\[(\d+)(\.\.)?\] +(\w+)")
_FIELD = re.compile(r"^  (\w+) = (.*),$", re.MULTILINE)


class Header(NamedTuple):
    """What a function's comment says; names as in the contract (``?`` may be left out, ``...`` any number)."""

    name: str
    description: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    reply: str


def _parsed(comment: str) -> Header:
    lines = [line.removeprefix("--").strip() for line in comment.splitlines()]
    title = re.fullmatch(r"(\w+): (.*)", lines[0])
    assert title, lines[0]
    keys: list[str] = []
    args: list[str] = []
    for line in lines:
        for found in _PARAMETER.finditer(line):
            kind, number, is_many, name = found.groups()
            names = keys if kind == "KEYS" else args
            is_optional = "(optional)" in line
            names.append(name + ("..." if is_many else "?" if is_optional else ""))
            assert int(number) == len(names), f"{title[1]}: {kind}[{number}] is not the next one"
    reply = re.search(r"^Returns (.*?)(?=^Codes: |^Source: |\Z)", "\n".join(lines), re.MULTILINE | re.DOTALL)
    assert reply, f"{title[1]} says nothing of what it returns"
    return Header("korvet_" + title[1], title[2], tuple(keys), tuple(args), " ".join(reply[1].split()))


def _headers() -> dict[str, Header]:
    """The header of every registered function, found above the function that is registered right below it."""
    headers = {}
    for path in sorted(LUA.glob("*.lua")):
        text = path.read_text()
        for registration in _REGISTRATION.finditer(text):
            fields = dict(_FIELD.findall(registration[1]))
            name, callback = fields["function_name"].strip("'"), re.escape(fields["callback"])
            above = re.search(
                rf"^((?:--.*\n)+)function {callback}\([^)]*\)\n(?:(?!^end$).*\n)*?^end\n\Z",
                text[: registration.start()],
                re.MULTILINE,
            )
            assert above, f"{path.name}: {name} has no header, or is not registered right below its function"
            header = _parsed(above[1])
            assert header.name == name, f"{path.name}: the header of {name} is that of {header.name}"
            headers[name] = header
    return headers


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _listed(server: redis.Redis) -> dict[str, tuple[str, frozenset[str]]]:
    """Description and flags of every function of the library on the server."""
    library: Any = server.function_list(library=LIBRARY)[0]
    fields = dict(zip(map(_plain, library[::2]), library[1::2], strict=True))
    listed = {}
    for function in fields["functions"]:
        of = dict(zip(map(_plain, function[::2]), function[1::2], strict=True))
        listed[_plain(of["name"])] = (_plain(of["description"]), frozenset(map(_plain, of["flags"])))
    return listed


def test_every_registered_function_has_a_header_that_the_contract_repeats() -> None:
    headers = _headers()
    assert headers.keys() == FUNCTIONS.keys()
    for name, function in FUNCTIONS.items():
        assert headers[name] == Header(name, function.description, function.keys, function.args, function.reply)


def test_server_lists_the_functions_of_the_contract(server: redis.Redis) -> None:
    assert _listed(server) == {name: (function.description, function.flags) for name, function in FUNCTIONS.items()}


def test_function_that_reads_is_allowed_at_maxmemory() -> None:
    assert [name for name, function in FUNCTIONS.items() if function.read_only and not function.allow_oom] == []


def test_version_is_the_packages(server: redis.Redis) -> None:
    assert library_version() == korvet.__version__
    assert server.fcall_ro("korvet_version", 0) == korvet.__version__.encode()


def test_every_file_ends_in_a_newline_and_only_the_first_has_a_shebang() -> None:
    texts = [path.read_text() for path in sorted(LUA.glob("*.lua"))]
    assert all(text.endswith("\n") for text in texts)
    assert [text.startswith("#!") for text in texts] == [True] + [False] * (len(texts) - 1)
