"""Heartbeats and commits a second over many raw connections: encoded once, one request in flight on each.

Every answer must equal the first one of its connection byte for byte, which was decoded and held no error.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, cast

import uvloop

from tests.oracle import messages
from tests.oracle.script import Script, Step, Transcript, error_codes, new_variables, play
from tests.oracle.scripts.membership import joined
from tests.oracle.scripts.steps import new_topic

CONNECTIONS: Final = 50
SESSION_MS: Final = 1_800_000
"""A member that is measured in turn with others is silent for long."""
VERSIONS: Final = {"heartbeat": 4, "offset_commit": 9}


class Asker(asyncio.Protocol):
    """One connection that sends the same request again as soon as it is answered, until the deadline."""

    def __init__(self, api: str, frame: bytes, deadline: float) -> None:
        self._api, self._frame, self._deadline = api, frame, deadline
        self._received = b""
        self._expected = b""
        self.answered = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        answer = self._received + data if self._received else data
        if answer != self._expected and not self._accept(answer):
            return
        self._received = b""
        self.answered += 1
        if time.perf_counter() < self._deadline:
            self._transport.write(self._frame)
        elif not self.done.done():
            self.done.set_result(None)

    def _accept(self, answer: bytes) -> bool:
        """True for the first whole answer. Any later answer with other bytes ends the measurement."""
        if len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4]):
            self._received = answer
            return False
        decoded = messages.parse_answer(self._api, VERSIONS[self._api], answer[4:], 1)
        if self._expected or error_codes(decoded):
            self.connection_lost(RuntimeError(f"{self._api} was answered {decoded}"))
            return False
        self._expected = answer
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the broker closed the connection"))
        self._transport.close()


def frames(api: str, members: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """A request to ``api`` of each member: of the group g, with the id m, to the topic t."""
    made = []
    for names in members:
        body: dict[str, Any] = {"group_id": names["g"], "member_id": names["m"], "generation_id": names["generation"]}
        if api == "offset_commit":
            body["generation_id_or_member_epoch"] = body.pop("generation_id")
            partition = {"partition_index": 0, "committed_offset": 4711, "committed_metadata": ""}
            body["topics"] = [{"name": names["t"], "partitions": [partition]}]
        made.append(messages.request_frame(api, VERSIONS[api], body, 1))
    return made


async def ask(address: str, api: str, sent: Sequence[bytes], seconds: float) -> tuple[int, float]:
    """The answers over a connection for each frame, and the seconds taken."""
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    askers = []
    for frame in sent:
        _, asker = await loop.create_connection(
            lambda frame=frame: Asker(api, frame, started + seconds),  # type: ignore[misc]
            host,
            int(port),
        )
        askers.append(asker)
    await asyncio.wait_for(asyncio.gather(*(asker.done for asker in askers)), seconds + 30)
    elapsed = time.perf_counter() - started
    return sum(asker.answered for asker in askers), elapsed


@contextmanager
def members(address: str, api: str, count: int = CONNECTIONS) -> Iterator[list[bytes]]:
    """Requests to `api` of so many members, each the only one of a group of its own, until the block ends."""
    topic = play(Script("topic", "metadata", *new_topic()), 12, address, new_variables())
    member = Script("member", "join_group", *joined(session_timeout=SESSION_MS))
    shared = {"t": topic.variables["t"]}
    with ThreadPoolExecutor(count) as threads:
        # Each join waits for the first rebalance's delay.
        groups = list(threads.map(lambda _: play(member, 9, address, {**new_variables(), **shared}), range(count)))
    try:
        yield frames(api, [group.variables for group in groups])
    finally:
        _remove(address, topic, groups)


def answers(address: str, api: str, seconds: float) -> tuple[int, float]:
    """The answers to `api` over 50 connections, each with a group of one member of its own, and the seconds taken."""
    with members(address, api) as sent:
        return uvloop.run(ask(address, api, sent, seconds))


def coordinate(address: str, api: str, seconds: float) -> dict[str, float]:
    """Requests a second of a group API over 50 raw connections."""
    answered, elapsed = answers(address, api, seconds)
    return {"count": answered, "requests_per_s": answered / elapsed}


def _remove(address: str, topic: Transcript, groups: list[Transcript]) -> None:
    leave = Step(api="leave_group", body={"group_id": "$g", "members": [{"member_id": "$m"}]}, errors=None)
    delete = Step(api="delete_groups", body={"groups_names": ["$g"]}, errors=None)
    gone = Script("gone", "leave_group", leave, delete)
    for group in groups:
        play(gone, 5, address, group.variables)
    deleted = Step(api="delete_topics", body={"topics": [{"name": "$t"}], "timeout": 10000}, errors=None)
    play(Script("gone", "delete_topics", deleted), 6, address, topic.variables)
