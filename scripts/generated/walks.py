"""The walks of docs/request.md, as `scripts.benchmark.walk` plays them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from scripts.benchmark.walk import Walk, walk

ROOT: Final = Path(__file__).resolve().parents[2]
_WALK: Final = re.compile(r"(<!-- walk: (\w+) -->\n```text\n).*?(```\n)", re.DOTALL)


def _commands(one: Walk) -> str:
    """Redis's commands, a function's with its file."""
    return ", ".join(f"{command}{_file(command)}" for command in dict.fromkeys(one.commands))


def _file(command: str) -> str:
    _, _, function = command.partition("FCALL korvet_")
    defined = f"name = '{function}'"
    paths = [path for path in sorted((ROOT / "lua").glob("*/*.lua")) if function and defined in path.read_text()]
    return f" ({paths[0].relative_to(ROOT)})" if paths else ""


def written(page: str) -> str:
    """The page with these walks in the places of its own."""
    names = [name for _, name, _ in _WALK.findall(page)]
    walks = {name: one for name, (one, _) in walk(names).items()} if names else {}

    def block(found: re.Match[str]) -> str:
        one = walks[found[2]]
        size = f"{one.frames} functions in {one.files} files, {one.depth} deep. Redis: {_commands(one)}"
        return found[1] + "\n".join([size, *one.lines()]) + "\n" + found[3]

    return _WALK.sub(block, page)
