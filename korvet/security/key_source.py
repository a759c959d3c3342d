"""The source of an issuer's keys: ``sasl.oauthbearer.jwks.endpoint.url``, over https or from a file.

One task reads the keys at the start, every ``refresh_s``, after SIGHUP, and when a token names an unknown key; that
token's login waits for the read. After a failed read the last keys stay valid, and the task retries with a growing
pause. Before the first successful read no token is valid.

Attackers choose tokens, so these cause few reads: one in five seconds, and one a minute for each key name.

Source: RefreshingHttpsJwks, KIP-768
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import url2pathname

import anyio
import anyio.to_thread
import h11
import structlog

from korvet.configs.types import is_key_url
from korvet.errors import ConfigError
from korvet.security.jwks import Key, KeySet, KeysUnreadable, parse_jwks

log = structlog.get_logger()

_MOST_BYTES: Final = 1 << 20
_MOST_HEADER_BYTES: Final = 16_384
_MOST_PIECES: Final = 4096
"""The most pieces of an answer: each costs time, whatever its size."""
_READ_S: Final = 10.0
_WAIT_S: Final = 10.0
_SAME_NAME_S: Final = 60.0
_MOST_NAMES: Final = 16
_HTTPS_PORT: Final = 443
_TOO_LARGE: Final = f"they have more than {_MOST_BYTES} bytes, or come in more than {_MOST_PIECES} pieces"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The keys' URL and the times of reads. ``least_pause_s`` separates two reads that tokens cause."""

    url: str
    refresh_s: float = 3600.0
    backoff_s: float = 0.1
    most_backoff_s: float = 10.0
    least_pause_s: float = 5.0


class KeySource:
    """An issuer's keys as they were last read. `follow` is its task."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._keys: KeySet | None = None
        self._requested = anyio.Event()
        self._read = anyio.Event()
        self._asked_for: dict[str | None, float] = {}
        """The unknown key names that last caused a read, with its time, oldest first."""

    # ------------------------------------------------------------------ reading

    async def follow(self) -> None:
        """Read the keys now and whenever they are due, until cancelled."""
        backoff_s, reported = self._settings.backoff_s, ""
        while True:
            self._requested = anyio.Event()
            pause_s = self._settings.refresh_s
            try:
                self._keys = await read_keys(self._settings.url)
            except KeysUnreadable as error:
                pause_s, backoff_s = backoff_s, min(2 * backoff_s, self._settings.most_backoff_s)
                if str(error) != reported:
                    reported = str(error)
                    self._complain(reported)
            else:
                log.info("keys of tokens read", keys=len(self._keys.keys))
                backoff_s, reported = self._settings.backoff_s, ""
            done, self._read = self._read, anyio.Event()
            done.set()
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        """Wait until the next read is due; a login's request for one waits a least pause after the last read."""
        soonest = anyio.current_time() + self._settings.least_pause_s
        with anyio.move_on_after(pause_s):
            await self._requested.wait()
            await anyio.sleep_until(soonest)

    def _complain(self, reason: str) -> None:
        event = "keys of tokens cannot be read; those before stay"
        if self._keys is None:
            event = "keys of tokens cannot be read; no token is valid yet"
        log.error(event, url=self._settings.url, reason=reason)

    def refresh(self) -> None:
        """Read the keys again soon."""
        self._requested.set()

    # ------------------------------------------------------------------ looking up

    async def find(self, name: str | None, algorithm: str) -> Key | None:
        """The key for a token's ``kid`` and ``alg``; an unknown one waits for another read of the keys."""
        found = self._find(name, algorithm)
        if found is not None:
            return found
        if self._keys is not None and self._may_ask_for(name):
            self.refresh()
        if self._keys is None or self._requested.is_set():
            with anyio.move_on_after(_WAIT_S):
                await self._read.wait()
        return self._find(name, algorithm)

    def _find(self, name: str | None, algorithm: str) -> Key | None:
        return None if self._keys is None else self._keys.find(name, algorithm)

    def _may_ask_for(self, name: str | None) -> bool:
        now = anyio.current_time()
        if now - self._asked_for.get(name, -_SAME_NAME_S) < _SAME_NAME_S:
            return False
        self._asked_for.pop(name, None)
        if len(self._asked_for) >= _MOST_NAMES:
            del self._asked_for[next(iter(self._asked_for))]
        self._asked_for[name] = now
        return True


def check_source(settings: SourceSettings) -> None:
    """Check the URL's scheme, and that a file holds keys.

    :raises ConfigError: the check fails.
    """
    why = is_key_url(settings.url)
    if why is None and urlsplit(settings.url).scheme == "file":
        try:
            parse_jwks(_read_file(urlsplit(settings.url)))
        except KeysUnreadable as error:
            why = str(error)
    if why is not None:
        raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url {settings.url!r}: {why}")


async def read_keys(url: str) -> KeySet:
    """The keys at a URL, within ten seconds.

    :raises KeysUnreadable: the keys cannot be read or parsed.
    """
    parts = urlsplit(url)
    fetch: Callable[[SplitResult], Awaitable[bytes]] = _fetch if parts.scheme == "https" else _read_in_thread
    try:
        with anyio.fail_after(_READ_S):
            return await anyio.to_thread.run_sync(parse_jwks, await fetch(parts))
    except TimeoutError:
        raise KeysUnreadable(f"they did not come within {_READ_S:.0f} s") from None


async def _read_in_thread(parts: SplitResult) -> bytes:
    return await anyio.to_thread.run_sync(_read_file, parts)


def _read_file(parts: SplitResult) -> bytes:
    try:
        path = Path(url2pathname(parts.path))
        if not path.is_file():
            raise KeysUnreadable("there is no such file")
        with path.open("rb") as file:
            body = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KeysUnreadable((error.strerror or str(error)).lower()) from None
    if len(body) > _MOST_BYTES:
        raise KeysUnreadable(_TOO_LARGE)
    return body


async def _fetch(parts: SplitResult) -> bytes:
    """The body of an answer 200, without redirects, cookies, proxies or compression."""
    assert parts.hostname is not None
    context = await anyio.to_thread.run_sync(ssl.create_default_context)
    try:
        async with await anyio.connect_tcp(
            parts.hostname, parts.port or _HTTPS_PORT, ssl_context=context, tls_standard_compatible=False
        ) as stream:
            return await _exchange(stream, parts)
    except ssl.SSLError as error:
        raise KeysUnreadable(str(getattr(error, "verify_message", "") or error.reason or error).lower()) from None
    except h11.ProtocolError as error:
        raise KeysUnreadable(f"the answer is not HTTP: {error}") from None
    except (OSError, ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        # A ValueError means an invalid host name.
        reason = getattr(error, "strerror", "") or str(error) or "the connection was lost"
        raise KeysUnreadable(reason.lower()) from None


async def _exchange(stream: anyio.abc.ByteStream, parts: SplitResult) -> bytes:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEADER_BYTES)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [
        ("Host", parts.netloc),
        ("Accept", "application/json"),
        ("User-Agent", "korvet"),
        ("Connection", "close"),
    ]
    for event in (h11.Request(method="GET", target=target, headers=headers), h11.EndOfMessage()):
        await stream.send(connection.send(event) or b"")
    pieces: list[bytes] = []
    size = 0
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                try:
                    connection.receive_data(await stream.receive())
                except anyio.EndOfStream:
                    connection.receive_data(b"")
            case h11.Response(status_code=status) if status != 200:
                raise KeysUnreadable(f"the answer has the status {status}")
            case h11.Data(data=data):
                pieces.append(bytes(data))
                size += len(data)
                if size > _MOST_BYTES or len(pieces) > _MOST_PIECES:
                    raise KeysUnreadable(_TOO_LARGE)
            case h11.EndOfMessage():
                return b"".join(pieces)
            case h11.ConnectionClosed() | h11.PAUSED:
                raise KeysUnreadable("the connection was lost")
