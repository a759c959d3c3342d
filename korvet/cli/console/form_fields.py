"""Query and form fields of a request, as the pages take them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException

from korvet.cli.kafka.errors import BrokerError
from korvet.errors import KorvetError

MOST_CHARACTERS: Final = 2_000
MOST_OF_EDGES: Final = 4_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_EDGES: Final = re.compile(r"(older|newer)((?:,[0-9]{1,9}:[0-9]{1,18})*)")


def wrong_field(error: HTTPException | KorvetError) -> str:
    """The error about a field, for the form that sent it.

    An error that no field caused is raised again.
    """
    if isinstance(error, HTTPException) and error.status_code == 400:
        return error.detail
    if isinstance(error, KorvetError) and not isinstance(error, BrokerError):
        return str(error)
    raise error


def text(fields: Mapping[str, object], name: str, default: str = "", most: int = MOST_CHARACTERS) -> str:
    """A field's text; empty ones count as absent.

    :raises HTTPException: 400, if it is longer than any name or filter.
    """
    value = fields.get(name, "")
    if not isinstance(value, str) or len(value) > most:
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
    """A field's word, one of ``choices``; the first without one.

    :raises HTTPException: 400, if it is another word.
    """
    value = text(fields, name, choices[0])
    if value not in choices:
        raise HTTPException(400, f"{name} is none of {', '.join(choices)}")
    return value


def edges(fields: Mapping[str, object], name: str, most: int) -> tuple[str, dict[int, int]]:
    """A field's direction, ``older`` or ``newer``, and an offset for each of at most ``most`` partitions.

    Both are empty without the field.

    :raises HTTPException: 400, if it has another form.
    """
    value = text(fields, name, most=MOST_OF_EDGES)
    if not value:
        return "", {}
    found = _EDGES.fullmatch(value)
    pairs = found[2].split(",")[1:] if found else []
    if found is None or len(pairs) > most:
        raise HTTPException(400, f"{name} is no edge of a page")
    numbers = [pair.split(":") for pair in pairs]
    return found[1], {int(partition): int(offset) for partition, offset in numbers}
