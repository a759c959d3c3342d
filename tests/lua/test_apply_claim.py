"""``korvet.apply.Claim``: a consumer that is killed anywhere, comes late or reads again leaves the sum of the topic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
import redis

import korvet.apply
from korvet.apply import NOTHING, Claim, ClaimLost, CommandFailed, OtherCommands, Place
from tests.support.redis import running_server

KEYS = ["{a}:applied", "{b}:applied"]
WHOSE = "billing", "topic-id", 0
Topic = Sequence[tuple[Place, str, int]]
"""Place, tag and amount of each record."""
TOPIC: Topic = [(Place(1, 2 * offset), "ab"[offset % 2], offset + 1) for offset in range(6)]


def new_claim(server: redis.Redis, keys: Sequence[str] = KEYS) -> Claim:
    return Claim(server, *WHOSE, keys)


def commands(tag: str, amount: int) -> dict[str, list[tuple[str | int, ...]]]:
    """A record adds to a sum and is listed."""
    return {f"{{{tag}}}:applied": [("INCRBY", f"{{{tag}}}:sum", amount), ("RPUSH", f"{{{tag}}}:list", amount)]}


def read(claim: Claim, topic: Topic, settles: bool = True) -> int | None:
    """Apply a topic from the place at which the claim begins, two records a flush."""
    begin = claim.place
    for at, (place, tag, amount) in enumerate(topic):
        if place.is_after(begin):
            claim.add(place, commands(tag, amount))
            if at % 2:
                claim.flush()
    return claim.settle() if settles else None


def applied(server: redis.Redis) -> list[int]:
    """The amounts in the lists, which are the sums, too."""
    found = []
    for tag in "ab":
        amounts = [int(one) for one in server.lrange(f"{{{tag}}}:list", 0, -1)]
        assert sum(amounts) == int(server.get(f"{{{tag}}}:sum") or 0)
        found += amounts
    return sorted(found)


def test_records_are_applied_once_however_often_they_are_read(server: redis.Redis) -> None:
    claim = new_claim(server)
    assert claim.place == NOTHING
    assert read(claim, TOPIC) == 11
    again = new_claim(server)
    assert again.place == TOPIC[-1][0]
    for place, tag, amount in TOPIC:
        again.add(place, commands(tag, amount))
    assert again.settle() == 11
    assert applied(server) == [1, 2, 3, 4, 5, 6]


class Killed(BaseException):
    """The process ends here."""


def _killed_after(lines: int, work: Callable[[], object]) -> bool:
    """Run some work that is killed before it executes so many lines of the module; false if it ended before."""
    left = lines

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != korvet.apply.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Killed
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Killed:
        return True
    finally:
        sys.settrace(former)
    return False


def test_consumer_that_is_killed_at_any_line_has_applied_no_record_twice(server: redis.Redis) -> None:
    lines = 0
    while _killed_after(lines, lambda: read(new_claim(server), TOPIC)):
        # The next one is killed as well, somewhere else.
        _killed_after(3 * lines % 101, lambda: read(new_claim(server), TOPIC))
        assert read(new_claim(server), TOPIC) == 11
        assert applied(server) == [1, 2, 3, 4, 5, 6]
        server.flushall()
        lines += 3
    assert lines > 200


class Cut(redis.Redis):
    """A client whose connection ends before or after the call of a number from now, counted from 0."""

    at = -1
    is_after = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.at -= 1
        if self.at == -1 and not self.is_after:
            raise redis.ConnectionError("cut")
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if self.at == -1:
            raise redis.ConnectionError("cut")
        return reply


@pytest.mark.parametrize("is_after", [False, True], ids=["the call was lost", "the reply was lost"])
def test_what_is_sent_again_after_a_lost_connection_is_applied_once(server: redis.Redis, is_after: bool) -> None:
    client = Cut(connection_pool=server.connection_pool)
    for at in range(3):
        server.flushall()
        claim = new_claim(client)
        client.at, client.is_after = at, is_after
        for place, tag, amount in TOPIC[:4]:
            claim.add(place, commands(tag, amount))
        with pytest.raises(redis.ConnectionError):
            claim.settle()
        assert claim.settle() == 7
        assert applied(server) == [1, 2, 3, 4]


def test_call_that_grew_after_a_lost_reply_ends_the_claim(server: redis.Redis) -> None:
    client = Cut(connection_pool=server.connection_pool)
    claim = new_claim(client)
    claim.add(Place(1, 0), commands("a", 1))
    client.at, client.is_after = 0, True
    with pytest.raises(redis.ConnectionError):
        claim.flush()
    claim.add(Place(1, 1), commands("a", 2))
    with pytest.raises(ClaimLost, match="MOVED 1 0"):
        claim.flush()
    read(new_claim(server), [(Place(1, 0), "a", 1), (Place(1, 1), "a", 2)])
    assert applied(server) == [1, 2]


def test_stale_owner_is_fenced_and_its_records_are_applied_by_the_next(server: redis.Redis) -> None:
    stale = new_claim(server)
    stale.add(TOPIC[0][0], commands("a", 1))
    assert read(new_claim(server), TOPIC) == 11
    with pytest.raises(ClaimLost, match="FENCED"):
        stale.flush()
    assert applied(server) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("does", [Claim.flush, Claim.settle])
def test_claim_ends_when_redis_has_lost_what_it_answered(server: redis.Redis, does: Callable[[Claim], object]) -> None:
    claim = new_claim(server)
    read(claim, TOPIC[:2])
    kept: dict[bytes, Any] = {key: server.dump(key) for key in server.scan_iter()}
    read(claim, TOPIC[2:4])
    for key, dumped in kept.items():
        server.restore(key, 0, dumped, replace=True)
    if does is Claim.flush:
        claim.add(TOPIC[4][0], commands("a", 5))
    with pytest.raises(ClaimLost, match=r"MOVED|is now"):
        does(claim)
    assert read(new_claim(server), TOPIC) == 11
    assert applied(server) == [1, 2, 3, 4, 5, 6]


def test_consumer_that_goes_back_loses_its_claim(server: redis.Redis) -> None:
    """It reads a topic that was made again, or whose end was lost: the claim's topic id may be another one's."""
    claim = new_claim(server)
    read(claim, TOPIC)
    with pytest.raises(ClaimLost, match="the consumer read"):
        claim.add(Place(0, 0), {})
    made_again = Claim(server, "billing", "other-id", 0, KEYS)
    assert made_again.place == NOTHING
    read(made_again, TOPIC[:1])
    assert applied(server) == [1, 1, 2, 3, 4, 5, 6]


def test_records_after_a_lost_end_of_the_topic_are_applied(server: redis.Redis) -> None:
    read(new_claim(server), TOPIC)
    claim = new_claim(server)
    again = [*TOPIC[:3], (Place(2, 6), "a", 40), (Place(2, 8), "b", 50)]
    for place, tag, amount in again:
        claim.add(place, commands(tag, amount))
    assert claim.settle() == 9
    assert applied(server) == [1, 2, 3, 4, 5, 6, 40, 50]


def test_tag_without_commands_does_not_hold_the_others_back(server: redis.Redis) -> None:
    claim = new_claim(server)
    for offset in range(5):
        claim.add(Place(0, offset), commands("a", 1) if offset < 4 else {})
    claim.flush()
    assert new_claim(server).place == NOTHING
    claim = new_claim(server)
    for offset in range(5):
        claim.add(Place(0, offset), commands("a", 1) if offset < 4 else {})
    assert claim.settle() == 5
    assert new_claim(server).place == Place(0, 4)
    assert applied(server) == [1, 1, 1, 1]


def test_claim_with_nothing_read_settles_nothing(server: redis.Redis) -> None:
    assert new_claim(server).settle() is None


def test_failed_command_stops_its_tag_until_it_is_mended(server: redis.Redis) -> None:
    server.set("{a}:list", "no list")
    claim = new_claim(server)
    for place, tag, amount in TOPIC:
        claim.add(place, commands(tag, amount))
    for _ in range(2):
        with pytest.raises(CommandFailed, match=r"RPUSH \{a\}:list 1' failed: WRONGTYPE"):
            claim.flush()
    assert server.get("{a}:sum") == b"1"
    server.delete("{a}:list")
    assert claim.settle() == 11
    assert applied(server) == [1, 2, 3, 4, 5, 6]


def test_next_owner_waits_for_as_many_commands_as_are_done(server: redis.Redis) -> None:
    claim = new_claim(server, KEYS[:1])
    server.set("{a}:list", "no list")
    record = {KEYS[0]: [("INCRBY", "{a}:sum", 1)]}
    claim.add(Place(0, 0), record)
    claim.add(Place(0, 1), record)
    claim.add(Place(0, 2), commands("a", 2))
    with pytest.raises(CommandFailed):
        claim.flush()
    claim = new_claim(server, KEYS[:1])
    for offset in range(2):
        claim.add(Place(0, offset), record)
        assert claim.settle() is None
    server.delete("{a}:list")
    claim.add(Place(0, 2), commands("a", 2))
    assert claim.settle() == 3
    claim.add(Place(0, 3), {})
    assert claim.settle() == 4
    assert (server.get("{a}:sum"), server.lrange("{a}:list", 0, -1)) == (b"4", [b"2"])


def test_program_that_changes_what_is_done_is_stopped(server: redis.Redis) -> None:
    server.set("{a}:list", "no list")
    claim = new_claim(server)
    claim.add(Place(0, 0), commands("a", 1))
    with pytest.raises(CommandFailed):
        claim.flush()
    claim = new_claim(server)
    claim.add(Place(0, 0), commands("a", 2))
    with pytest.raises(OtherCommands, match="1 other commands are done"):
        claim.flush()
    assert server.get("{a}:sum") == b"1"


def test_long_topic_goes_in_calls_of_bounded_size(server: redis.Redis) -> None:
    claim = new_claim(server)
    big = b"x" * 400_000
    for offset in range(7):
        claim.add(Place(0, offset), {KEYS[0]: [("SET", "{a}:big", big)]})
    for offset in range(7, 257):
        claim.add(Place(0, offset), {KEYS[1]: [("INCRBY", "{b}:sum", 1), ("RPUSH", "{b}:list", 1)]})
    for offset in range(257, 270):
        claim.add(Place(0, offset), {KEYS[0]: [("SADD", "{a}:set", *range(990 * offset, 990 * offset + 990))]})
    before = int(server.info("commandstats")["cmdstat_fcall"]["calls"])
    claim.flush()
    assert int(server.info("commandstats")["cmdstat_fcall"]["calls"]) - before == 4 + 1 + 5
    assert server.get("{b}:sum") == b"250"


def test_record_that_is_larger_than_a_call_is_refused(server: redis.Redis) -> None:
    claim = new_claim(server)
    many = [("SADD", "{a}:set", *range(990))]
    for some in ([("INCRBY", "{a}:sum", 1)] * 101, [("SET", "{a}:big", b"x" * 1048576)], many * 10):
        with pytest.raises(ValueError, match="are the most"):
            claim.add(Place(0, 0), {KEYS[0]: some})
    claim.add(Place(0, 0), commands("a", 1))
    assert claim.settle() == 1
    for keys in ([], [f"{{{number}}}:applied" for number in range(257)]):
        with pytest.raises(ValueError, match="1 to 256 applied hashes"):
            new_claim(server, keys)


def test_client_that_decodes_replies_is_as_good(server: redis.Redis) -> None:
    path = server.connection_pool.connection_kwargs["path"]
    with redis.Redis(unix_socket_path=path, decode_responses=True) as client:
        assert read(new_claim(client), TOPIC) == 11
        again = new_claim(client)
        with pytest.raises(ClaimLost, match="FENCED"):
            stale = new_claim(client)
            new_claim(client)
            stale.add(Place(9, 9), commands("a", 1))
            stale.flush()
        assert again.place == TOPIC[-1][0]


def test_offset_is_to_be_committed_only_when_enough_copies_have_what_was_applied(server: redis.Redis) -> None:
    claim = new_claim(server)
    read(claim, TOPIC, settles=False)
    assert claim.settle(replicas=1, timeout_ms=1) is None
    assert claim.settle() == 11


def test_offset_is_to_be_committed_once_the_append_only_file_has_what_was_applied(library: str) -> None:
    with running_server("valkey", options={"appendonly": "yes"}) as durable, durable.client() as client:
        client.function_load(library)
        claim = new_claim(client)
        read(claim, TOPIC, settles=False)
        assert claim.settle(replicas=1, on_disk=True, timeout_ms=1) is None
        assert claim.settle(on_disk=True, timeout_ms=60_000) == 11
        durable.restart(crash=True)
        assert new_claim(client).place == TOPIC[-1][0]
        assert applied(client) == [1, 2, 3, 4, 5, 6]
