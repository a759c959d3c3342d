"""This package's Lua library, and a server's: loading, comparing, and finding a line's file.

Judging has no I/O: send `QUESTION` to a primary, give its answer to `judge`, and where `Found.is_to_load` says so send
`load_command`. `ensure` does that at every primary of a store. The text itself is compared, not only its version, so a
library that was changed without a new version is replaced.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import structlog

from korvet.errors import KorvetError, StoreFull
from korvet.redis import opening
from korvet.redis.address import RedisUrl
from korvet.redis.client import Library
from korvet.redis.error_replies import no_room_for_library
from korvet.redis.opening import CONNECT_S
from korvet.redis.resp import pack_command
from korvet.store.contract import FUNCTIONS, LIBRARY, arguments, library_files

if TYPE_CHECKING:
    from korvet.redis.client import Store
    from korvet.redis.link import Link

log = structlog.get_logger()

QUESTION = ("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
"""The command that gets the reply for `judge`."""

_KEEP_S = 5.0
_VERSION = re.compile(rb"^local korvet = \{ VERSION = '([^']+)' \}$", re.MULTILINE)
_LINE = re.compile(r"(?:.*\buser_function:)?(\d+)\b.*", re.DOTALL)


class State(StrEnum):
    """The comparison of a server's library with this package's."""

    ABSENT = "absent"
    OLDER = "older"
    CHANGED = "changed"
    """The same version with another text."""
    CURRENT = "current"
    NEWER = "newer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A server's library: ``version`` is empty if the library is absent or names none."""

    state: State
    version: str

    @property
    def is_to_load(self) -> bool:
        """True if this package's library is to replace the server's."""
        return self.state in (State.ABSENT, State.OLDER, State.CHANGED)


class SourceLine(NamedTuple):
    """A line of a file of ``lua/``, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"lua/{self.file}:{self.line}"


@cache
def library_source() -> bytes:
    """The library's text, as ``cat lua/*/*.lua`` makes it.

    :raises KorvetError: when the package was installed without its Lua files.
    """
    return b"".join(library_files().values())


def this_library() -> Library:
    """This package's library, as a store calls it."""
    return Library(
        source=library_source,
        is_older=is_older,
        verbs={name: b"FCALL_RO" if function.read_only else b"FCALL" for name, function in FUNCTIONS.items()},
        most_args={name: function.most_args for name, function in FUNCTIONS.items()},
        arguments=arguments,
    )


def open_store(
    url: RedisUrl | str, *, connect_timeout_s: float = CONNECT_S, counts_waits: bool = False
) -> AbstractAsyncContextManager[Store]:
    """`korvet.redis.opening.open_store` with this package's library."""
    return opening.open_store(url, this_library(), connect_timeout_s=connect_timeout_s, counts_waits=counts_waits)


def library_version() -> str:
    """The version in this package's library."""
    return _version_of(library_source())


def _version_of(source: bytes) -> str:
    found = _VERSION.search(source)
    return found[1].decode() if found else ""


def _order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def is_older(version: str) -> bool:
    """True if this package's library is to replace one of this version."""
    return _order(version) < _order(library_version())


def load_command() -> tuple[str, str, str, bytes]:
    """The command that loads this package's library."""
    return ("FUNCTION", "LOAD", "REPLACE", library_source())


def judge(reply: Sequence[Any]) -> Found:
    """Compare a server's library with this package's.

    :param reply: the answer to `QUESTION`, of RESP2 or RESP3, as bytes or text.
    """
    if not reply:
        return Found(state=State.ABSENT, version="")
    source = _field(reply[0], "library_code")
    version = _version_of(source)
    if source == library_source():
        return Found(state=State.CURRENT, version=version)
    mine, theirs = _order(library_version()), _order(version)
    if theirs > mine:
        return Found(state=State.NEWER, version=version)
    return Found(state=State.CHANGED if theirs == mine else State.OLDER, version=version)


def _field(library: Any, name: str) -> bytes:
    pairs = library if isinstance(library, Mapping) else dict(zip(library[::2], library[1::2], strict=True))
    value = pairs.get(name, pairs.get(name.encode(), b""))
    return value if isinstance(value, bytes) else str(value).encode()


def refuse_newer(found: Found, node: str) -> None:
    """Raise KorvetError, with the remedy, if a server has a newer library.

    :param node: the server's name in the text.
    """
    if found.state is State.NEWER:
        raise KorvetError(
            f"{node} holds version {found.version} of korvet's library, and this is korvet {library_version()}. "
            f"An older korvet cannot work with it: install korvet {found.version} or newer here"
        )


def where(reported: str) -> SourceLine:
    """The file and line of a line of the whole library.

    :param reported: a line number, ``user_function:NNN``, or a whole error text with that in it.
    :raises KorvetError: when there is no such line.
    """
    found = _LINE.fullmatch(reported.strip())
    if found is None:
        raise KorvetError(f"'{reported}' names no line: give a number, user_function:NUMBER or the error's text")
    line = number = int(found[1])
    for name, text in library_files().items():
        lines = text.count(b"\n")
        if 1 <= line <= lines:
            return SourceLine(name, line)
        line -= lines
    raise KorvetError(f"the library has {number - line} lines, and none is {number}")


def _send(link: Link, *command: str | bytes) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link.send(future, pack_command(command))
    return future


async def check(store: Store) -> list[Found]:
    """The library of each primary of the store, in the order of ``store.primaries``.

    :raises StoreError, StoreUnavailable: one fails.
    """
    return [judge(await _send(link, *QUESTION)) for link in store.primaries]


async def ensure(store: Store) -> None:
    """Load the library at every primary of the store that lacks it, or has an older or changed one.

    :raises KorvetError: one has a newer library; nothing is loaded then.
    :raises StoreError, StoreFull, StoreUnavailable: one fails, or refuses the library.
    """
    primaries = store.primaries
    found = [judge(await _send(link, *QUESTION)) for link in primaries]
    for link, at_node in zip(primaries, found, strict=True):
        refuse_newer(at_node, f"Redis ({link.name})")
    for link, at_node in zip(primaries, found, strict=True):
        if at_node.is_to_load:
            await _load(link)


async def is_current(store: Store) -> bool:
    """True if every primary of the store has this package's library, or a newer one; false if one fails."""
    try:
        return not any([judge(await _send(link, *QUESTION)).is_to_load for link in store.primaries])
    except KorvetError:
        return False


async def _load(link: Link) -> None:
    """Load this package's library on a server.

    :raises StoreFull: the server is at maxmemory; the text has the remedy.
    :raises StoreError, StoreUnavailable:
    """
    try:
        await _send(link, *load_command())
    except StoreFull:
        raise StoreFull(no_room_for_library(await _send(link, "INFO", "memory"))) from None


async def keep(store: Store) -> None:
    """Replace an older library with this package's, wherever one appears. Runs until cancelled.

    While front-ends of two versions run, either may first load its library after a loss of the functions. A newer
    library is logged once, because this front-end then needs the upgrade.
    """
    reported = ""
    while True:
        await anyio.sleep(_KEEP_S)
        for link in store.primaries:
            # A server that fails, or is full, is tried again next time.
            with suppress(KorvetError):
                reported = await _keep_at(link, reported)


async def _keep_at(link: Link, reported: str) -> str:
    version: str = (await _send(link, "FCALL_RO", "korvet_version", "0")).decode()
    mine = library_version()
    if is_older(version):
        try:
            await _load(link)
        except StoreFull as error:
            link.lines.library_refused(str(error))
            return reported
    # Another process may have loaded it where the server refused this one.
    link.lines.library_loaded()
    if is_older(version):
        log.warning("korvet's library replaced an older one", server=link.name, version=mine, older=version)
    elif _order(version) > _order(mine) and version != reported:
        log.warning("Redis holds a newer library; upgrade this korvet soon", version=mine, newer=version)
        return version
    return reported
