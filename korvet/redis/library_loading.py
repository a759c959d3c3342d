"""Loading the library, through a link's own connection or that of a user with the right to load it.

**Function not found**: a fresh replica became primary, or an operator flushed the functions. The link then holds new
commands, loads the library, and resends the refused commands in order, before the held ones. If another front-end has
loaded a library meanwhile, this one replaces it only if it is older.

**An error of a function** may come from an older library with other arguments. Then this library replaces it, and the
link repeats the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from korvet.errors import StoreFull, StoreUnavailable
from korvet.redis.error_replies import as_exception, no_room_for_library, with_key
from korvet.redis.outage_log import ServerLines
from korvet.redis.resp import Connection, Sent, fail

_UNLOADABLE_S = 1.0
_JUDGED_EVERY_S = 0.5


class Loader(Protocol):
    """The link through which the library is loaded."""

    lines: ServerLines

    @property
    def loader(self) -> Connection | None:
        """The connection through which the library is loaded."""

    def hold(self) -> None:
        """Hold new commands until `let_go`."""

    def let_go(self) -> list[Sent]:
        """End the hold. Returns the held commands."""

    def resend(self, sent: Sent) -> None:
        """Queue a command of either kind."""


class LibraryLoading:
    """One link's loading of the library.

    :param source: the library's text.
    :param is_older: true for a version older than the library's.
    """

    def __init__(self, link: Loader, source: Callable[[], bytes], is_older: Callable[[str], bool]) -> None:
        self._link = link
        self._source = source
        self._is_older = is_older
        self._now = asyncio.get_running_loop().time
        self._is_loading = False
        self._refused: list[Sent] = []
        self._unloadable: tuple[float, BaseException | None] = (0.0, None)
        """The loop's time of the next permitted load, and the error of the last one."""
        self._judged_at = -_JUDGED_EVERY_S

    def load_and_resend(self, sent: Sent) -> None:
        """Load the library, and resend a command that a server refused without it."""
        until, error = self._unloadable
        if error is not None and self._now() < until:
            fail(sent[0], error)
            return
        live = self._link.loader
        if live is None and not self._is_loading:
            fail(sent[0], StoreUnavailable("the server lacks korvet's functions, and nobody is connected to load them"))
            return
        self._refused.append(sent)
        if live is not None and not self._is_loading:
            self._is_loading = True
            self._link.hold()
            self._link.lines.library_lost()
            # Not REPLACE: another front-end may have loaded its library meanwhile, mostly the same or a newer one.
            live.command("FUNCTION", "LOAD", self._source()).add_done_callback(self._loaded)

    def _loaded(self, loading: asyncio.Future[Any]) -> None:
        error, live = _failure(loading), self._link.loader
        if "already exists" not in str(error):
            self._send_again(error)
        elif live is not None:
            live.command("FCALL_RO", "korvet_version", "0").add_done_callback(self._compared)
        else:
            self._send_again(None)

    def _compared(self, version: asyncio.Future[Any]) -> None:
        """Replace the library that another front-end loaded, if its version is older."""
        live = self._link.loader
        if live is not None and _failure(version) is None and self._is_older(version.result().decode()):
            replacing = live.command("FUNCTION", "LOAD", "REPLACE", self._source())
            replacing.add_done_callback(lambda replaced: self._send_again(_failure(replaced)))
        else:
            self._send_again(None)

    def _send_again(self, error: BaseException | None) -> None:
        """Send the refused and the held commands; if loading failed, fail the refused ones."""
        refused, self._refused = self._refused, []
        self._is_loading = False
        held = self._link.let_go()
        if error is None:
            self._link.lines.library_loaded()
        else:
            self._unloadable = (self._now() + _UNLOADABLE_S, error)
            self._log_unloadable(error)
            for future, _, _ in refused:
                fail(future, error)
            refused = []
        for sent in (*refused, *held):
            self._link.resend(sent)

    def _log_unloadable(self, error: BaseException) -> None:
        lines, live = self._link.lines, self._link.loader
        if not isinstance(error, StoreFull) or live is None:
            lines.library_refused(str(error))
            return

        def received(info: asyncio.Future[bytes]) -> None:
            if _failure(info) is None:
                lines.library_refused(no_room_for_library(info.result()))

        live.command("INFO", "memory").add_done_callback(received)

    def may_judge(self) -> bool:
        """True if the library's version may be queried now: connected, and half a second after the last query."""
        if self._link.loader is None or self._now() - self._judged_at < _JUDGED_EVERY_S:
            return False
        self._judged_at = self._now()
        return True

    def judge(self, sent: Sent, text: str) -> None:
        """Repeat a call that the library failed, if an older library raised the error: it knows other arguments.

        Call only if `may_judge`.
        """
        future, command, attempts = sent

        def replaced(loading: asyncio.Future[Any]) -> None:
            self._judged_at = -_JUDGED_EVERY_S
            if _failure(loading) is None:
                self._link.resend((future, command, attempts + 1))
            else:
                fail(future, as_exception(with_key(text, command)))

        def judged(version: asyncio.Future[bytes]) -> None:
            live = self._link.loader
            if live is None or _failure(version) is not None or not self._is_older(version.result().decode()):
                fail(future, as_exception(with_key(text, command)))
            else:
                live.command("FUNCTION", "LOAD", "REPLACE", self._source()).add_done_callback(replaced)

        assert self._link.loader is not None
        self._link.loader.command("FCALL_RO", "korvet_version", "0").add_done_callback(judged)


def _failure(done: asyncio.Future[Any]) -> BaseException | None:
    return None if done.cancelled() else done.exception()
