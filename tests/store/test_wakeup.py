"""Wake-ups over sharded pub/sub, against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.errors import StoreRefusing
from korvet.redis import connecting, wakeup
from korvet.redis.client import Purpose, Store
from korvet.redis.resp import pack_command
from korvet.redis.wakeup import Wakeups
from korvet.store.library import open_store
from tests.store.logs import until
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

A, B = "korvet:{a}:log", "korvet:{b}:log"
WITHIN_S = 60.0


@pytest.fixture
async def store(redis_server: Server) -> AsyncIterator[Store]:
    async with open_store(redis_server.url) as opened:
        yield opened


@pytest.fixture
async def wakeups(store: Store) -> Wakeups:
    return Wakeups(store)


async def test_wait_returns_only_the_channels_that_moved(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A, B]) as listening:
        await listening.ready()
        assert wakeups.latest(A) is None
        await store.call(Purpose.APPEND, A, "SPUBLISH", A, "5 17")
        assert await listening.wait(WITHIN_S) == {A}
        assert wakeups.latest(A) == b"5 17"
        assert wakeups.latest(B) is None
        assert await listening.wait(0) == set()


async def test_message_between_ready_and_wait_is_not_missed(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await store.call(Purpose.APPEND, A, "SPUBLISH", A, "x")
        await until(lambda: wakeups.latest(A) == b"x")
        assert await listening.wait(WITHIN_S) == {A}


async def test_expected_message_wakes_at_once_and_not_again_when_it_comes(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await _told(store, wakeups, "0 1")
        assert await listening.wait(WITHIN_S) == {A}
        wakeups.expect(A, b"0 1", b"0 2")
        wakeups.expect(A, b"0 2", b"0 3")
        assert (await listening.wait(WITHIN_S), wakeups.latest(A)) == ({A}, b"0 3")
        for message in ("0 2", "0 3"):
            await store.call(Purpose.APPEND, A, "SPUBLISH", A, message)
        await _told(store, wakeups, "0 4")
        assert await listening.wait(WITHIN_S) == {A}
        assert await listening.wait(0) == set()


async def test_nothing_is_expected_after_another_message_than_the_last(store: Store, wakeups: Wakeups) -> None:
    wakeups.expect(A, b"0 1", b"0 2")
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await _told(store, wakeups, "0 1")
        assert await listening.wait(WITHIN_S) == {A}
        wakeups.expect(A, b"0 0", b"0 2")
        assert (await listening.wait(0), wakeups.latest(A)) == (set(), b"0 1")


async def test_no_more_than_some_messages_are_expected(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await _told(store, wakeups, "0 0")
        for end in range(1000):
            wakeups.expect(A, b"0 %d" % end, b"0 %d" % (end + 1))
        assert wakeups.latest(A) == b"0 %d" % wakeup._MOST_EXPECTED
        await _told(store, wakeups, "0 2000")
        wakeups.expect(A, b"0 2000", b"0 2001")
        assert wakeups.latest(A) == b"0 2001"


@pytest.mark.parametrize("other", ["-1 -1", "0 3", "1 2"])
async def test_other_message_than_the_expected_one_counts(store: Store, wakeups: Wakeups, other: str) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await _told(store, wakeups, "0 1")
        wakeups.expect(A, b"0 1", b"0 2")
        assert await listening.wait(WITHIN_S) == {A}
        since = wakeups.since(A)
        await _told(store, wakeups, other)
        assert await listening.wait(WITHIN_S) == {A}
        assert (wakeups.since(A) != since) == (other == "-1 -1")
        await _told(store, wakeups, "0 2")
        assert await listening.wait(WITHIN_S) == {A}


async def test_channel_that_its_server_stops_serving_is_subscribed_again(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        # The reply is what a server sends if a slot moves away, and the slot may be back at once.
        link = store.subscriber(A)
        assert link is not None
        link.send_unanswered(pack_command(("SUNSUBSCRIBE", A)))
        assert await listening.wait(WITHIN_S) == {A}
        await listening.ready()
        assert await store.call(Purpose.APPEND, A, "SPUBLISH", A, "0 1") == 1


async def test_lost_subscription_ends_what_is_expected(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await _told(store, wakeups, "0 1")
        wakeups.expect(A, b"0 1", b"0 2")
        link = store.subscriber(A)
        assert link is not None
        link.break_off()
        await until(lambda: wakeups.latest(A) is None)
        await until(lambda: wakeups.keep(A))
        await listening.wait(0)
        await _told(store, wakeups, "0 2")
        assert await listening.wait(WITHIN_S) == {A}


async def _told(store: Store, wakeups: Wakeups, message: str) -> None:
    await store.call(Purpose.APPEND, A, "SPUBLISH", A, message)
    await until(lambda: wakeups.latest(A) == message.encode())


async def test_server_that_cannot_write_to_its_disk_accepts_subscriptions(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "SILENCE_LIMIT_S", 1.0)
    with own_server.client() as client:
        (own_server.directory / "dump.rdb").mkdir()
        client.bgsave()
        await until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"])
    async with open_store(own_server.url) as store:
        wakeups = Wakeups(store)
        with capture_logs() as lines, wakeups.listen([A]) as listening:
            await listening.ready()
            await store.call(Purpose.READ, A, "CONFIG", "SET", "save", "3600 1")
            with pytest.raises(StoreRefusing):
                await store.call(Purpose.APPEND, A, "PING")
            await anyio.sleep(1.7)
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == []


async def test_wait_returns_an_empty_set_at_the_timeout(wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        assert await listening.wait(0.02) == set()


async def test_message_wakes_all_listeners(store: Store, wakeups: Wakeups) -> None:
    woken = []

    async def sleeper(number: int, ready: anyio.Event) -> None:
        with wakeups.listen([A]) as listening:
            await listening.ready()
            ready.set()
            await listening.wait(WITHIN_S)
            woken.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            ready = anyio.Event()
            tasks.start_soon(sleeper, number, ready)
            await ready.wait()
        await store.call(Purpose.APPEND, A, "SPUBLISH", A, "x")
    assert sorted(woken) == list(range(5))


async def test_second_listener_of_a_channel_gets_its_latest_message_at_once(store: Store, wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await store.call(Purpose.APPEND, A, "SPUBLISH", A, "1 2")
        await listening.wait(WITHIN_S)
    with wakeups.listen([A]) as listening:
        await listening.ready()
        assert wakeups.latest(A) == b"1 2"


async def test_lost_connection_wakes_all_listeners_and_subscribes_anew(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        wakeups = Wakeups(store)
        with wakeups.listen([A, B]) as listening:
            await listening.ready()
            await store.call(Purpose.APPEND, A, "SPUBLISH", A, "x")
            await until(lambda: wakeups.latest(A) == b"x")
            await listening.wait(0)
            own_server.restart(crash=True)
            assert await listening.wait(WITHIN_S) == {A, B}
            assert wakeups.latest(A) is None
            await until(store.is_connected)
            await listening.ready()
            await store.call(Purpose.APPEND, B, "SPUBLISH", B, "y")
            assert await listening.wait(WITHIN_S) == {B}


async def test_late_confirmation_wakes_a_listener_that_already_waits(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        wakeups = Wakeups(store)
        own_server.kill()
        await until(lambda: not store.is_connected())
        with wakeups.listen([A]) as listening:
            await listening.ready()
            waiting = asyncio.ensure_future(listening.wait(20))
            own_server.start()
            assert await waiting == {A}


async def test_wakeups_unsubscribe_from_a_channel_without_listeners_after_a_while(
    store: Store, wakeups: Wakeups, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
    with wakeups.listen([B]) as listening:
        await listening.ready()
        assert await store.call(Purpose.READ, A, "PUBSUB", "SHARDNUMSUB", A) == [A.encode(), 1]
    monkeypatch.setattr(wakeup, "_LINGER_S", 0.0)
    with wakeups.listen([B]) as listening:
        await listening.ready()
    with redis_server.client() as client:
        while client.execute_command("PUBSUB", "SHARDNUMSUB", A)[1]:
            await anyio.sleep(0.005)
    with wakeups.listen([A]) as listening:
        await listening.ready()
        await store.call(Purpose.APPEND, A, "SPUBLISH", A, "x")
        assert await listening.wait(WITHIN_S) == {A}


async def test_listener_that_comes_late_finds_the_subscription_kept(
    wakeups: Wakeups, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
    since = wakeups.since(A)
    monkeypatch.setattr(wakeup, "_LINGER_S", 0.0)
    assert wakeups.keep(A)
    with wakeups.listen([A]):
        assert wakeups.since(A) == since


async def test_wake_all_wakes_without_a_message(wakeups: Wakeups) -> None:
    with wakeups.listen([A]) as listening:
        await listening.ready()
        wakeups.wake_all()
        assert await listening.wait(WITHIN_S) == {A}
