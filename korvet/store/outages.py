"""When Redis could not be called, so that no group takes that time for its members' silence.

Every second a TIME is sent on each node's coordination link. Two answers that are more than `LIMIT_MS` apart, by the
server's clock, are an outage of that node: it was frozen, away, or its successor was not there yet. Group functions are
told by `Outages.known_at`; what lies between the last answer and the call they work out themselves, so nothing has to
be known in time here.

To claim an outage that was none costs little (a member who died is given up a session later), to miss one ends members
who live. So where it is not certain which node's time counts (slots move, a replica leads), all that is known counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import anyio

from korvet.errors import KorvetError
from korvet.store.client import Store
from korvet.store.link import Link
from korvet.store.resp import pack_command

LIMIT_MS = 2500
"""Answers that are further apart are an outage; the group functions have the same number."""
TAKEN_BACK_MS = 10_000
"""What another server may have lost (by replication, by its append-only file): the deadlines that it knows of are so
much older than those that were there when the former one was last heard of."""
_INTERVAL_S = 1.0
_KEPT = 8
_KEPT_MS = 3_600_000
_TIME = pack_command(("TIME",))


class Outage(NamedTuple):
    """A span of Redis times in ms."""

    start_ms: int
    end_ms: int


class _Node:
    """What is known of one server, or of the place of one behind Sentinel."""

    __slots__ = ("outages", "run_id", "served_until_ms", "text")

    def __init__(self, served_until_ms: int, outages: Iterable[Outage]) -> None:
        self.run_id = ""
        self.served_until_ms = served_until_ms
        self.outages = tuple(outages)
        self.text = self.tell(served_until_ms)

    def tell(self, served_until_ms: int) -> str:
        return " ".join([str(served_until_ms), *(f"{outage.start_ms}-{outage.end_ms}" for outage in self.outages)])

    def add(self, outages: Iterable[Outage]) -> None:
        self.outages = _merged([*self.outages, *outages])
        self.text = self.tell(self.served_until_ms)

    def served(self, now_ms: int, run_id: str) -> None:
        """The server answered, and it was this time there."""
        if self.run_id not in ("", run_id):
            self.add([_outage(self.served_until_ms - TAKEN_BACK_MS, now_ms)])
        elif now_ms - self.served_until_ms > LIMIT_MS:
            self.add([Outage(self.served_until_ms, now_ms)])
        self.run_id = run_id
        self.served_until_ms = now_ms
        self.text = self.tell(now_ms)


class Outages:
    """All outages of a store's nodes that one front-end knows of. One for each `Store`; `watch` is to run with it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes: dict[str, _Node] = {}
        self._asked: dict[str, asyncio.Future[list[bytes]]] = {}
        self._before: tuple[Outage, ...] = ()
        store.on_history_change(self._share)

    def known_at(self, key: str) -> str:
        """The group functions' argument for the node that holds a key: ``served_until from-to from-to …``.

        Redis times in ms, the oldest outage first, `_KEPT` at most; empty before the node's first answer.
        """
        link = self._store.coordination(key)
        node = None if link is None else self._nodes.get(link.name)
        if link is None or node is None:
            return ""
        if node.run_id == link.run_id:
            return node.text
        return node.tell(node.served_until_ms - TAKEN_BACK_MS) if node.run_id else node.text

    def began(self, text: str) -> None:
        """Note when no front-end of a namespace was served before this one began: outages of all nodes.

        :param text: ``from-to from-to …``, Redis times in ms.
        """
        spans = [Outage(*map(int, span.split("-"))) for span in text.split()]
        # A broken one, which somebody wrote there, would be an error of every group function.
        self._before = _merged([*self._before, *(span for span in spans if span.start_ms <= span.end_ms < 1 << 53)])
        for node in self._nodes.values():
            node.add(self._before)

    async def catch_up(self, key: str) -> None:
        """Ask the node of a key for its time, so that `known_at` tells of now.

        :raises KorvetError: when it does not answer.
        """
        link = self._store.coordination(key)
        if link is not None:
            await self._ask(link)

    async def watch(self) -> None:
        """Ask every node for its time each second, until cancelled."""
        while True:
            for link in self._store.primaries:
                asked = self._asked.get(link.name)
                if link.is_up and (asked is None or asked.done()):
                    self._ask(link)
            await anyio.sleep(_INTERVAL_S)

    def _ask(self, link: Link) -> asyncio.Future[list[bytes]]:
        asked: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._asked[link.name] = asked
        asked.add_done_callback(partial(self._answered, link))
        link.send(asked, _TIME)
        return asked

    def _answered(self, link: Link, asked: asyncio.Future[list[bytes]]) -> None:
        if asked.cancelled() or isinstance(asked.exception(), KorvetError):
            return
        seconds, microseconds = asked.result()
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        node = self._nodes.get(link.name)
        if node is None:
            node = self._nodes[link.name] = _Node(now_ms, _merged([*self._before, *self._past(link, now_ms)]))
        node.served(now_ms, link.run_id)

    def _past(self, link: Link, now_ms: int) -> Iterable[Outage]:
        """What is to be taken for an outage of a node before its first answer here, beside what registries tell.

        They lie on one node of a cluster, so they know nothing of another one's restart, nor how long it was away.
        """
        uptime_s = int(link.server.get("uptime_in_seconds", 0))
        if self._store.url.kind == "cluster" and uptime_s * 1000 < _KEPT_MS:
            yield Outage(0, now_ms)

    def _share(self) -> None:
        """Slots have moved, or another server answers: tell every node's outages to all, with those of nodes that left.

        A group may have come from any of them, and a new node's past is that of the node whose place it takes.
        """
        links = {link.name: link for link in self._store.primaries}
        if not self._nodes:
            return
        latest_ms = max(node.served_until_ms for node in self._nodes.values())
        known = [outage for node in self._nodes.values() for outage in node.outages]
        away = [node for name, node in self._nodes.items() if name not in links or not links[name].is_up]
        known += [Outage(n.served_until_ms, latest_ms) for n in away if latest_ms - n.served_until_ms > LIMIT_MS]
        for name in links.keys() - self._nodes.keys():
            self._nodes[name] = _Node(min((node.served_until_ms for node in away), default=latest_ms), ())
        for node in self._nodes.values():
            node.add(known)
        for name in [name for name in self._nodes if name not in links]:
            if latest_ms - self._nodes[name].served_until_ms > _KEPT_MS:
                del self._nodes[name]


def _outage(start_ms: int, end_ms: int) -> Outage:
    """An outage from one server's clock to another's, which may be behind."""
    return Outage(min(start_ms, end_ms), end_ms)


def _merged(outages: list[Outage]) -> tuple[Outage, ...]:
    """Those of the last hour, oldest first, no more than `_KEPT`; those that overlap are one.

    Where they are more, the closest become one, for in between nobody may have been served in time.
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
        at = min(range(1, len(kept)), key=lambda at: kept[at].start_ms - kept[at - 1].end_ms)
        kept[at - 1 : at + 1] = [Outage(kept[at - 1].start_ms, kept[at].end_ms)]
    return tuple(kept)
