"""Replies in a byte stream with cuts at any byte, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.redis.large_string import LEAST_BYTES
from korvet.redis.reply import Reply
from korvet.redis.resp import Connection, Owner, ReplyError, Sent, Waits, pack_command

GET = pack_command(("GET", "key"))
PING = pack_command(("PING",))


def string(size: int) -> bytes:
    return b"$%d\r\n%b\r\n" % (size, b"x" * size)


REPLIES = st.sampled_from(
    [
        (PING, b"+PONG\r\n", b"PONG"),
        (PING, b"*2\r\n:1\r\n*2\r\n$2\r\nab\r\n$-1\r\n", [1, [b"ab", None]]),
        # No GET asked for this large string, so hiredis reads it.
        (PING, b"*1\r\n" + string(LEAST_BYTES), [b"x" * LEAST_BYTES]),
        (PING, string(LEAST_BYTES), b"x" * LEAST_BYTES),
        (GET, b"$-1\r\n", None),
        (GET, b"$0\r\n\r\n", b""),
        (GET, string(10), b"x" * 10),
        (GET, string(LEAST_BYTES - 1), b"x" * (LEAST_BYTES - 1)),
        (GET, string(LEAST_BYTES), b"x" * LEAST_BYTES),
        (GET, string(200_000), b"x" * 200_000),
        (GET, b"-WRONGTYPE of a list\r\n", "WRONGTYPE of a list"),
    ]
)


class _Refusals(Owner):
    """An owner that resolves futures with error replies, as text."""

    def refused(self, sent: Sent, error: ReplyError) -> None:
        assert sent[0] is not None
        sent[0].set_result(str(error))


def receive(connection: Connection, data: bytes, cuts: Sequence[int]) -> None:
    """Have a connection read bytes, with a new read at each cut and at each full buffer."""
    at = 0
    for end in (*sorted(cuts), len(data)):
        while at < end:
            room = connection.get_buffer(-1)
            size = min(len(room), end - at)
            room[:size] = data[at : at + size]
            connection.buffer_updated(size)
            at += size


async def answers(replies: Sequence[tuple[bytes, bytes, Any]], cuts: Sequence[int]) -> list[Any]:
    loop = asyncio.get_running_loop()
    connection = Connection(_Refusals())
    futures: list[asyncio.Future[Any]] = []
    for command, _, _ in replies:
        futures.append(loop.create_future())
        connection.send(futures[-1], command)
    receive(connection, b"".join(reply for _, reply, _ in replies), cuts)
    assert connection.error is None
    assert all(future.done() for future in futures)
    return [future.result() for future in futures]


@settings(max_examples=60)
@given(replies=st.lists(REPLIES, max_size=12), data=st.data())
def test_replies_are_the_same_at_every_split_of_the_reads(
    replies: list[tuple[bytes, bytes, Any]], data: st.DataObject
) -> None:
    size = sum(len(reply) for _, reply, _ in replies)
    cuts = data.draw(st.lists(st.integers(0, size), max_size=20))
    assert asyncio.run(answers(replies, cuts)) == [expected for _, _, expected in replies]


@pytest.mark.anyio
async def test_large_string_is_received_into_its_own_memory() -> None:
    (found,) = await answers([(GET, string(200_000), None)], [])
    assert isinstance(found, memoryview) and found.readonly


@pytest.mark.anyio
async def test_cancelled_get_does_not_shift_the_replies() -> None:
    loop = asyncio.get_running_loop()
    connection = Connection(_Refusals())
    gone, kept = loop.create_future(), loop.create_future()
    connection.send(gone, GET)
    connection.send(kept, GET)
    gone.cancel()
    receive(connection, string(50_000) + string(60_000), [30_000])
    assert len(await kept) == 60_000


@pytest.mark.anyio
async def test_words_of_a_server_that_turns_the_client_away_at_once_are_the_reason() -> None:
    connection = Connection(_Refusals())
    receive(connection, b"-DENIED by protected mode\r\n", [])
    assert str(connection.error) == "DENIED by protected mode"


@pytest.mark.anyio
async def test_string_with_a_wrong_end_is_an_error() -> None:
    class Losses(Owner):
        def lost(self, connection: Connection, unanswered: Sequence[Sent]) -> None:
            for future, _, _ in unanswered:
                assert future is not None
                future.cancel()

    connection = Connection(Losses())
    asked = asyncio.get_running_loop().create_future()
    connection.send(asked, GET)
    receive(connection, string(50_000)[:-2] + b"zz", [])
    assert isinstance(connection.error, ValueError)
    connection.connection_lost(None)
    assert asked.cancelled()


class _Written(asyncio.Transport):
    """A transport that takes everything."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        del list_of_data


@pytest.mark.anyio
async def test_waits_are_counted_from_the_write_of_their_command_if_somebody_asks_for_them() -> None:
    owner, loop = _Refusals(Waits()), asyncio.get_running_loop()
    connection = Connection(owner)
    connection.connection_made(_Written())
    for _ in range(2):
        connection.send(loop.create_future(), GET)
    await asyncio.sleep(0)
    connection.send(loop.create_future(), GET)
    await asyncio.sleep(0)
    receive(connection, string(5), [])
    assert owner.waits is not None and sum(owner.waits.buckets) == 1
    receive(connection, string(5) + string(5), [])
    assert sum(owner.waits.buckets) == 3 and owner.waits.seconds > 0
    connection.send(loop.create_future(), GET)
    await asyncio.sleep(0)
    receive(connection, string(50_000), [7])
    assert sum(owner.waits.buckets) == 4
    assert _Refusals().waits is None


@pytest.mark.anyio
async def test_call_that_a_reply_brings_about_is_no_reply_less() -> None:
    owner, loop = _Refusals(Waits()), asyncio.get_running_loop()
    connection = Connection(owner)
    connection.connection_made(_Written())
    first, second = Reply(loop=loop), Reply(loop=loop)
    first.then = lambda: connection.send(second, GET)
    connection.send(first, GET)
    await asyncio.sleep(0)
    receive(connection, string(5), [])
    await asyncio.sleep(0)
    receive(connection, string(5), [])
    assert second.done()
    assert owner.waits is not None and sum(owner.waits.buckets) == 2
