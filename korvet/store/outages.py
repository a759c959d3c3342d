"""Times without writes to Redis, so that no group takes them for its members' silence.

Every second each server's coordination link calls `korvet_probe`. A server refuses it as it refuses a write, and it
notes the time. Two answers to any front-ends that are more than `LIMIT_MS` apart, by the server's clock, are an outage
of that server. It was frozen or away, it refused writes, or its successor was not there yet. If one front-end hangs,
the others' answers go on, so that is no outage. `Outages.known_at` passes outages to group functions, which compute the
time between the last answer and their call themselves. A front-end without a recent answer gets one before it
calls.

A false outage costs little: a dead member expires a session later. A missed outage expires live members. So all known
outages count if the server is uncertain: slots move, or a replica leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import anyio

from korvet.errors import KorvetError, StoreRefusing
from korvet.redis.client import Store
from korvet.redis.link import Link
from korvet.redis.resp import pack_command
from korvet.store.keys import Namespace

LIMIT_MS = 2500
"""Replies further apart, in ms, are an outage; the group functions have the same number."""
TAKEN_BACK_MS = 10_000
"""The time whose writes another server may have lost, by replication or by its append-only file. Its deadlines are so
much older than the deadlines at the former server's last answer."""
_INTERVAL_S = 1.0
_AFTER_OUTAGE_S = 0.1
"""Between probes for the first interval after an outage. So if another one follows, what was served between them counts
as served."""
_KEPT = 8
_TOLD = 4
"""The most outages that `korvet_probe` returns."""
_KEPT_MS = 3_600_000
_PROBE = "korvet_probe"
_MOST_KEYS = 10_000


class Outage(NamedTuple):
    """A span of Redis times in ms."""

    start_ms: int
    end_ms: int


class _Probe:
    """A probe sent at a time of the loop's clock."""

    __slots__ = ("probed_s", "reply")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.probed_s = loop.time()
        self.reply: asyncio.Future[Any] = loop.create_future()

    @property
    def is_done(self) -> bool:
        return self.reply.done()

    def age_s(self) -> float:
        return asyncio.get_running_loop().time() - self.probed_s


class _Server:
    """One server, or the primary that Sentinel names, by its answers; ``probed_s`` is of the last answered probe."""

    __slots__ = ("history", "outages", "probed_s", "served_until_ms", "text")

    def __init__(self, served_until_ms: int, outages: Iterable[Outage]) -> None:
        self.probed_s = asyncio.get_running_loop().time()
        self.history = ""
        self.served_until_ms = served_until_ms
        self.outages = tuple(outages)
        self.text = self.times(served_until_ms)

    def times(self, served_until_ms: int) -> str:
        return " ".join([str(served_until_ms), *(f"{outage.start_ms}-{outage.end_ms}" for outage in self.outages)])

    def times_of(self, history: str) -> str:
        """The outages of the server with a history; for another history, some time is taken back."""
        if self.history in ("", history):
            return self.text
        return self.times(self.served_until_ms - TAKEN_BACK_MS)

    def add(self, outages: Iterable[Outage]) -> None:
        self.outages = _merged([*self.outages, *outages])
        self.text = self.times(self.served_until_ms)

    def served(self, now_ms: int, history: str, others: str) -> int:
        """Note an answer and its time by the server's clock. Returns the milliseconds since the answer before.

        :param others: ``served_until from-to …``: the last time that any front-end was served before, and its outages;
            or empty.
        """
        if self.served_until_ms - now_ms > LIMIT_MS:
            # The clock went back. Outages of its former time would make those to come old.
            self.outages = tuple(outage for outage in self.outages if outage.end_ms <= now_ms)
        last_ms, *spans = others.split() or ["0"]
        served_until_ms = max(self.served_until_ms, int(last_ms) if int(last_ms) <= now_ms else 0)
        if self.history not in ("", history):
            self.add([_outage(self.served_until_ms - TAKEN_BACK_MS, now_ms)])
        elif now_ms - served_until_ms > LIMIT_MS:
            self.add([Outage(served_until_ms, now_ms)])
        if spans:
            self.add(outage for outage in _spans(spans) if outage.end_ms <= now_ms)
        self.history = history
        self.served_until_ms = now_ms
        self.text = self.times(now_ms)
        return now_ms - served_until_ms


class Outages:
    """One front-end's knowledge of the outages of a store's servers. Each `Store` has one, and runs its `watch`.

    :param namespace: a namespace whose keys the Redis user may name.
    """

    def __init__(self, store: Store, namespace: Namespace | None = None) -> None:
        self._store = store
        self._now = asyncio.get_running_loop().time
        self._namespace = namespace or Namespace()
        self._probe_keys: dict[str, str] = {}
        """By link: the key that its probes name."""
        self._servers: dict[str, _Server] = {}
        self._probes: dict[str, _Probe] = {}
        self._before: tuple[Outage, ...] = ()
        self._resumed_s = -_INTERVAL_S
        self._resumes = anyio.Event()
        self.count = self.lasted_ms = 0
        """The number of outages that this front-end saw, and their length."""
        store.on_history_change(self._share)

    def known_at(self, key: str) -> str:
        """The group functions' argument for the server that holds a key: ``served_until from-to from-to …``.

        Redis times in ms, the oldest outage first, `_KEPT` at most; empty before the server's first answer.
        """
        link = self._store.coordination(key)
        server = None if link is None else self._servers.get(link.name)
        return "" if link is None or server is None else server.times_of(link.history)

    def known_recently(self, key: str) -> str | None:
        """As `known_at`; None if that is outdated, because this front-end hung or could not reach Redis.

        A function would take that for an outage, although others may have been served. So callers `catch_up` first.
        """
        link = self._store.coordination(key)
        server = None if link is None else self._servers.get(link.name)
        if link is None or server is None:
            return ""
        return None if self._now() - server.probed_s > LIMIT_MS / 1000 else server.times_of(link.history)

    def began(self, text: str) -> None:
        """Note the times without a front-end before this one's start, as outages of all servers.

        :param text: ``from-to from-to …``, Redis times in ms.
        """
        self._before = _merged([*self._before, *_spans(text.split())])
        for server in self._servers.values():
            server.add(self._before)

    async def catch_up(self, key: str) -> None:
        """Probe the server of a key, so that `known_at` is up to date.

        :raises KorvetError: the server does not answer.
        """
        link = self._store.coordination(key)
        if link is not None:
            probe = self._probes.get(link.name)
            recent = probe is not None and not probe.is_done and probe.age_s() < _INTERVAL_S
            await asyncio.shield(probe.reply if probe is not None and recent else self._send_probe(link).reply)

    async def watch(self) -> None:
        """Probe every server each second, and more often after an outage, until cancelled."""
        while True:
            for link in self._store.primaries:
                probe = self._probes.get(link.name)
                if link.is_up and (probe is None or probe.is_done):
                    self._send_probe(link)
            self._resumes = anyio.Event()
            is_resuming = self._now() - self._resumed_s < _INTERVAL_S
            with anyio.move_on_after(_AFTER_OUTAGE_S if is_resuming else _INTERVAL_S):
                await self._resumes.wait()

    def probe_keys(self) -> list[str]:
        """A key on each server, for `korvet_probe`; a server with hardly any slots may be left out."""
        return [key for link in self._store.primaries for key in self._keys_of(link)]

    def _send_probe(self, link: Link) -> _Probe:
        probe = self._probes[link.name] = _Probe()
        probe.reply.add_done_callback(partial(self._answered, link, probe))
        keys = self._keys_of(link)
        link.send(probe.reply, pack_command(("FCALL", _PROBE, len(keys), *keys)))
        return probe

    def _keys_of(self, link: Link) -> Sequence[str]:
        """A key on the server of a link, because a cluster refuses writes by slots; none if it has hardly any slots."""
        known = self._probe_keys.get(link.name)
        if known is None or (known and self._store.coordination(known) is not link):
            keys = map(self._namespace.probe, range(_MOST_KEYS))
            known = next((key for key in keys if self._store.coordination(key) is link), "")
            self._probe_keys[link.name] = known
        return (known,) if known else ()

    def _answered(self, link: Link, probe: _Probe, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            return
        if isinstance(error := reply.exception(), KorvetError):
            if isinstance(error, StoreRefusing):
                link.lines.refuses_writes(str(error))
            return
        link.lines.takes_writes()
        now_ms, replid, others = reply.result()
        self._store.note_replid(link, replid.decode())
        server = self._servers.get(link.name)
        if server is None:
            server = self._servers[link.name] = _Server(now_ms, _merged([*self._before, *self._past(link, now_ms)]))
        silent_ms = server.served(now_ms, link.history, others.decode())
        if silent_ms > LIMIT_MS:
            self._resumed_s = self._now()
            self._resumes.set()
            self.count += 1
            self.lasted_ms += silent_ms
        server.probed_s = max(server.probed_s, probe.probed_s)

    def _past(self, link: Link, now_ms: int) -> Iterable[Outage]:
        """The outages assumed of a server before its first reply here, in addition to those in the registries.

        Registries lie on one server of a cluster. So they do not know of another server's restart, nor how long it was
        away.
        """
        uptime_s = int(link.server.get("uptime_in_seconds", 0))
        if self._store.url.kind == "cluster" and uptime_s * 1000 < _KEPT_MS:
            yield Outage(0, now_ms)

    def _share(self) -> None:
        """Count each server's outages, and those of servers that left, for all: slots moved, or a server changed.

        A group may have come from any server. A new server's past is that of the server that it replaces.
        """
        self._probe_keys.clear()
        links = {link.name: link for link in self._store.primaries}
        if not self._servers:
            return
        latest_ms = max(server.served_until_ms for server in self._servers.values())
        known = [outage for server in self._servers.values() for outage in server.outages]
        away = [server for name, server in self._servers.items() if name not in links or not links[name].is_up]
        known += [Outage(n.served_until_ms, latest_ms) for n in away if latest_ms - n.served_until_ms > LIMIT_MS]
        for name in links.keys() - self._servers.keys():
            self._servers[name] = _Server(min((server.served_until_ms for server in away), default=latest_ms), ())
        for server in self._servers.values():
            server.add(known)
        for name in [name for name in self._servers if name not in links]:
            if latest_ms - self._servers[name].served_until_ms > _KEPT_MS:
                del self._servers[name]


def _spans(texts: Iterable[str]) -> list[Outage]:
    """Outages from ``from-to``. A broken one, which somebody else wrote, is left out: it would fail group functions."""
    spans = [Outage(*map(int, text.split("-"))) for text in texts]
    return [span for span in spans if span.start_ms <= span.end_ms < 1 << 53]


def _outage(start_ms: int, end_ms: int) -> Outage:
    """An outage from one server's clock to another server's clock, which may be behind."""
    return Outage(min(start_ms, end_ms), end_ms)


def _merged(outages: list[Outage]) -> tuple[Outage, ...]:
    """The outages of the last hour, the oldest first, at most `_KEPT`; outages that overlap become one.

    If there are more, the closest two become one that is as long as both, so the time between them counts as served.
    The newest, which Redis also reports, stay as they are.
    """
    merged: list[Outage] = []
    for outage in sorted(outages):
        if merged and outage.start_ms <= merged[-1].end_ms:
            merged[-1] = Outage(merged[-1].start_ms, max(merged[-1].end_ms, outage.end_ms))
        else:
            merged.append(outage)
    newest_ms = max(outage.end_ms for outage in merged) if merged else 0
    kept = [outage for outage in merged if newest_ms - outage.end_ms <= _KEPT_MS]
    while len(kept) > _KEPT:
        at = min(range(1, len(kept) - _TOLD), key=lambda at: kept[at].start_ms - kept[at - 1].end_ms)
        former, latter = kept[at - 1 : at + 1]
        kept[at - 1 : at + 1] = [Outage(former.start_ms, latter.end_ms - (latter.start_ms - former.end_ms))]
    return tuple(kept)
