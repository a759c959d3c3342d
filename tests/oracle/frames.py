"""Requests of many clients that differ by the clients' names alone.

They are encoded once, for a client that does not exist. Each client's have its own names instead, which are as long.
Answers get that client's names back, so that equal answers are equal bytes. Only answers that differ are decoded, and
each pair of them once.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from tests.oracle.compare import mismatches
from tests.oracle.messages import parse_answer, request_frame
from tests.oracle.requests import REQUESTS, versions_of
from tests.oracle.rights import SECRET, Client
from tests.oracle.script import Connection, Played, Transcript
from tests.oracle.values import resolved
from tests.oracle.versions import edges, needs_newest

_NOBODY: Final = Client(user="u00", title="of no rules")
_VARIABLES: Final[Mapping[str, Any]] = {
    **_NOBODY.names,
    "t_id": UUID(int=0xB0B0 << 100),
    "w_id": UUID(int=0xB1B1 << 100),
    "no_id": UUID(int=7),
    "now": time.time_ns() // 1_000_000,
}
_AT_ONCE: Final = 64
"""How many requests a connection gets before their answers are read: few enough for the sockets' buffers."""
_NUMBER: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Request:
    """A request at a version; `frame` is size first, and has the correlation id 0."""

    api: str
    version: int
    frame: bytes


@functools.cache
def requests(at_edges: bool, of_newest: bool = False) -> Sequence[Request]:
    """All requests in order, each at the versions that each run plays, or at the others.

    :param of_newest: at the versions that only the newest Kafka serves instead.
    """
    return [
        Request(api, version, request_frame(api, version, resolved(body, _VARIABLES), 0))
        for api, body in REQUESTS
        for version in versions_of(api, body)
        if needs_newest(api, version) == of_newest and (of_newest or (version in edges(api)) == at_edges)
    ]


class Pipeline(Connection):
    """A client's connection, on which requests do not wait for the answers to those before.

    :param topic_ids: by the topics' names.
    """

    def __init__(self, address: str, client: Client, topic_ids: Mapping[str, UUID]) -> None:
        super().__init__(address, client.user)
        self._last_answer = self._correlation_id
        ids = {"t_id": topic_ids[client.names["t"]], "w_id": topic_ids[SECRET]}
        self._names = [(_NOBODY.prefix.encode(), client.prefix.encode())]
        self._names += [(_VARIABLES[name].bytes, id.bytes) for name, id in ids.items()]

    def ask(self, asked: Sequence[Request]) -> None:
        """Send requests with the client's names."""
        self._socket.sendall(b"".join(self._own(one.frame) for one in asked))

    def _own(self, frame: bytes) -> bytes:
        self._correlation_id += 1
        frame = frame[:8] + _NUMBER.pack(self._correlation_id) + frame[12:]
        for nobodys, own in self._names:
            frame = frame.replace(nobodys, own)
        return frame

    def answer(self) -> bytes:
        """The frame of the next answer with nobody's names, behind its correlation id.

        :raises ConnectionError: the broker closed the connection.
        """
        frame = self.frame()
        self._last_answer += 1
        assert frame[:4] == _NUMBER.pack(self._last_answer)
        for nobodys, own in self._names:
            frame = frame.replace(own, nobodys)
        return frame[4:]


def differences(kafka: Pipeline, korvet: Pipeline, asked_for: Sequence[Request]) -> list[str]:
    """One line for each field in which an answer of korvet's differs from Kafka's, unless it may."""
    found: list[str] = []
    for first in range(0, len(asked_for), _AT_ONCE):
        asked = asked_for[first : first + _AT_ONCE]
        kafka.ask(asked)
        korvet.ask(asked)
        for one in asked:
            theirs, ours = kafka.answer(), korvet.answer()
            if theirs != ours:
                found += _differences(one.api, one.version, theirs, ours)
    return found


@functools.cache
def _differences(api: str, version: int, theirs: bytes, ours: bytes) -> Sequence[str]:
    kafka, korvet = (
        Transcript(variables=dict(_VARIABLES), played=[_played(api, version, one)]) for one in (theirs, ours)
    )
    return mismatches("rights", kafka, korvet)


def _played(api: str, version: int, frame: bytes) -> Played:
    outcome = parse_answer(api, version, _NUMBER.pack(0) + frame, 0)
    return Played(api=api, label=f"{api} v{version}", outcome=outcome, errors=None, ignore=())
