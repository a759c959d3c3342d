"""The words of a request: query and form fields, as the pages take them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException

MOST_CHARACTERS: Final = 2_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


def text(fields: Mapping[str, object], name: str, default: str = "") -> str:
    """A field's text; empty ones count as absent.

    :raises HTTPException: 400, if it is longer than any name or filter.
    """
    value = fields.get(name, "")
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise HTTPException(400, f"{name} is too long, or no text")
    return value or default


def number(fields: Mapping[str, object], name: str, default: int) -> int:
    """A field's number.

    :raises HTTPException: 400, if it is none.
    """
    value = text(fields, name)
    if not value:
        return default
    if not _NUMBER.fullmatch(value):
        raise HTTPException(400, f"{name} is no number")
    return int(value)


def choice(fields: Mapping[str, object], name: str, choices: tuple[str, ...]) -> str:
    """A field's word, which is one of these; the first without one.

    :raises HTTPException: 400, if it is another one.
    """
    value = text(fields, name, choices[0])
    if value not in choices:
        raise HTTPException(400, f"{name} is none of {', '.join(choices)}")
    return value
