"""The reference of the Lua library's functions, as ``docs/functions.md`` and ``korvet functions reference`` show it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby

from korvet.store.contract import CODES, FUNCTIONS, KEYSETS, MEANINGS, Function, words

_INTRODUCTION = """\
# Functions

The tables of `korvet.define` in `lua/` state each function. `./scripts/pages` writes this page from them.

Most replies begin with a code: 0 for none, Kafka's error code, or one of korvet's own, which are below zero. An error
reply means a broken contract or a corrupt state. `[name]` may be left out, and `name ...` may be given any number of
times up to the bound. Below a call stand the keys and arguments of which there is more to say: `name:int` is an
integer, `name:one|other` one of these words, and `names*2<=9` come two at a time, at most 9 in all. A function that
only reads is called by `FCALL_RO`, also at a replica. One that *runs at maxmemory* is not refused while Redis has no
memory left.

Outages are a text of Redis times in ms: `served_until from-to from-to ...`, the oldest outage first, or `''`. An
outage also lasts from `served_until` until now when that was more than 2.5 s ago.
"""

_WIDTH = 118


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([_INTRODUCTION, *_codes(), *_key_sets(), *_functions()])


def _codes() -> Iterator[str]:
    yield "| code | | meaning |\n|---|---|---|"
    for name, meaning in MEANINGS.items():
        yield f"| {CODES[name]} | {name} | {meaning} |"


def _key_sets() -> Iterator[str]:
    yield "\nKeys that several functions take:\n\n| of | key | | content |\n|---|---|---|---|"
    for name, text in KEYSETS.items():
        for word in words(text):
            yield f"| {name} | " + " | ".join(word.split(" ", 2)) + " |"


def _functions() -> Iterator[str]:
    for subject, functions in groupby(FUNCTIONS.values(), key=lambda function: function.file.partition("/")[0]):
        yield f"\n## {subject.partition('-')[2].capitalize()}"
        yield from map(_described, functions)


def _described(function: Function) -> str:
    verb = "FCALL_RO" if function.read_only else "FCALL"
    keys, args = (" ".join(_shown(name) for name in names) for names in (function.keys, function.args))
    call = f"{verb} {function.name} {'number-of-keys' if '[' in keys else len(function.keys)} {keys} {args}"
    runs = " Runs at maxmemory." if "allow-oom" in function.flags and not function.read_only else ""
    title = function.description[0].upper() + function.description[1:]
    was = " Front-ends until {1} call it `korvet_{0}`.".format(*function.was) if function.was else ""
    return (
        f"\n### {function.name}\n{_wrapped(f'{title} (`lua/{function.file}`).{runs}{was}')}\n\n"
        f"```text\n{_wrapped(call, indent='  ')}\n\n{_explained(function)}\n```"
    )


def _explained(function: Function) -> str:
    stated = [*words(function.texts["keys"], expands=False), *words(function.texts["args"])]
    lines = [f"  {word}" for word in stated if not word.rstrip("?").isidentifier() and not word.startswith("@")]
    prose = {field: function.texts.get(field) for field in ("returns", "bound", "codes", "source", "notes")}
    lines += [f"{field.capitalize()}: {text}" for field, text in prose.items() if text]
    return "\n".join(_wrapped(line, indent="    ") for line in lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text.rstrip(), _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _shown(name: str) -> str:
    if name.endswith("?"):
        return f"[{name[:-1]}]"
    return f"[{name[:-3]} ...]" if name.endswith("...") else name
