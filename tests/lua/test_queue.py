"""Redis workers in a share group: korvet_queue_take and korvet_queue_settle."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from tests.lua.log import listening
from tests.lua.records import Records
from tests.lua.share import ACCEPT, NONE, Share
from tests.support.redis import Server
from tests.support.tools import find_tool
from tests.wire.whole import Whole

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "queues.md"


class Queue:
    """A partition of records as workers use it, and the same share partition for Kafka's consumers."""

    def __init__(self, server: redis.Redis, set_clock: Callable[[float], None]) -> None:
        self.server = server
        self.records = Records(server)
        assert self.records.configure("2000000 0 0 0") == 0
        self.share = Share(server, set_clock)
        self.share.mode = "records"

    def add(self, *values: str) -> None:
        for value in values:
            self.records.call("korvet_record_append", "value", value)

    def take(self, count: int = 10, worker: str = "w", *options: int | str, lock_ms: int = 30_000) -> list[Any]:
        """wait_ms, and (offset, deliveries, value) of each record."""
        args: tuple[str | int, ...] = (self.share.group, worker, count, lock_ms, *options)
        wait_ms, *found = self.share.call("korvet_queue_take", *args, keys=self.share.share_keys)
        values = (fields[fields.index(b"value") + 1].decode() for *_, fields in found)
        return [wait_ms, *((offset, count, value) for (offset, count, *_), value in zip(found, values, strict=True))]

    def settle(self, kind: str, *offsets: int, worker: str = "w", ms: int = 0, limit: int = 5) -> int:
        args: tuple[str | int, ...] = (self.share.group, worker, kind, ms, limit, *offsets)
        return int(self.share.call("korvet_queue_settle", *args, keys=self.share.share_keys))


@pytest.fixture
def queue(server: redis.Redis, set_clock: Callable[[float], None]) -> Queue:
    queue = Queue(server, set_clock)
    queue.add("a", "b", "c")
    return queue


def test_workers_take_records_and_settle_them(queue: Queue) -> None:
    assert queue.take(2) == [0, (0, 1, "a"), (1, 1, "b")]
    assert queue.take(2, "v") == [30_000, (2, 1, "c")]
    assert queue.settle("done", 1, 0) == 2
    assert queue.settle("retry", 2, worker="v") == 1
    assert queue.take() == [30_000, (2, 2, "c")]
    assert queue.settle("reject", 2) == 1
    assert queue.take() == [-1]
    queue.add("d")
    assert queue.take() == [30_000, (3, 1, "d")]
    assert queue.share.describe()[1:5] == ("-", 3, 4, 1)


def test_lock_of_a_dead_worker_ends(queue: Queue) -> None:
    assert queue.take(2, "dead", lock_ms=5000)[1:] == [(0, 1, "a"), (1, 1, "b")]
    queue.share.pass_time(4)
    assert queue.settle("extend", 1, worker="dead", ms=10_000) == 1
    queue.share.pass_time(1)
    assert queue.take(1) == [0, (0, 2, "a")]
    with pytest.raises(redis.ResponseError, match="dead does not hold all of these records"):
        queue.settle("done", 0, 1, worker="dead")
    assert queue.settle("done", 1, worker="dead") == 1


def test_retry_waits_and_ends_at_the_limit_of_deliveries(queue: Queue) -> None:
    assert queue.take(1)[1:] == [(0, 1, "a")]
    assert queue.settle("retry", 0, ms=2000, limit=2) == 1
    assert queue.take(5)[1:] == [(1, 1, "b"), (2, 1, "c")]
    assert queue.take() == [2000]
    queue.share.pass_time(2)
    assert queue.take()[1:] == [(0, 2, "a")]
    assert queue.settle("retry", 0, limit=2) == 1
    assert queue.share.describe().start == 1


def test_workers_and_share_consumers_are_one_group(queue: Queue) -> None:
    assert queue.take(1)[1:] == [(0, 1, "a")]
    assert queue.share.begin("cgp_1") == [NONE, 0]
    assert queue.share.take(1, "member") == [(1, 1, 1)]
    assert queue.take()[1:] == [(2, 1, "c")]
    assert queue.share.settle(ACCEPT, 1, member="member") == NONE
    assert queue.settle("done", 0, 2) == 2
    assert queue.share.describe()[1:5] == ("cgp_1", 3, 3, 0)


def test_rejected_records_become_dead_letters_if_the_group_has_a_topic_for_them(queue: Queue) -> None:
    queue.share.begin("cgp_1")
    queue.share.dead_letters = 1
    assert queue.share.take(1, "member") == [(0, 0, 1)]
    assert queue.take()[1:] == [(1, 1, "b"), (2, 1, "c")]
    with listening(queue.server, queue.share.shares) as next_message:
        assert queue.settle("reject", 1) == 1
        assert next_message() == b"g"
    assert queue.settle("retry", 2, limit=1) == 1
    assert queue.share.lease() == [(1, 1, 1, "rejected"), (2, 2, 1, "limit")]


def test_queue_begins_where_its_first_worker_says(queue: Queue) -> None:
    assert queue.take(10, "w", 5, "latest") == [-1]
    queue.add("later")
    assert queue.take()[1:] == [(3, 1, "later")]


def test_workers_get_no_records_of_open_or_aborted_transactions(queue: Queue) -> None:
    ordinal = 1_700_000_000_000_000
    queue.records.add(Whole(value=b"open"), producer=(7, 0, 0), ordinal=ordinal)
    queue.add("after")
    assert [one[2] for one in queue.take()[1:]] == ["a", "b", "c"]
    assert queue.take()[1:] == []
    marker = b"\0" * 22 + b"\x30" + b"\0" * 55
    args = (queue.records.topic_id, queue.records.run_id, 7, 0, ordinal, "abort", 78, 1000, 0, marker)
    queue.records.call("korvet_log_mark", *args, keys=queue.records.transactional)
    assert queue.take()[1:] == [(4, 1, "after")]
    assert queue.settle("done", 0, 1, 2, 4) == 4
    assert queue.share.describe()[2:5] == (6, 6, 0)


def test_answer_is_of_about_a_mebibyte_and_the_rest_comes_next(queue: Queue) -> None:
    for letter in "defgh":
        queue.add(letter * 400_000)
    taken = [[one[0] for one in queue.take(10)[1:]] for _ in range(3)]
    assert taken == [[0, 1, 2, 3, 4, 5], [6, 7], []]
    assert queue.settle("retry", *range(8)) == 8
    again = [[one[:2] for one in queue.take(10)[1:]] for _ in range(2)]
    assert again == [[(offset, 2) for offset in range(6)], [(6, 2), (7, 2)]]


def test_batches_and_records_in_the_tier_are_left_to_kafka_clients(queue: Queue) -> None:
    assert queue.records.append(2, batch=b"\0" * 80).code == 0
    queue.add("d")
    assert [one[2] for one in queue.take()[1:]] == ["a", "b", "c"]
    with pytest.raises(redis.ResponseError, match="offset 3 is in a batch of records"):
        queue.take()
    queue.share.begin("cgp_1")
    assert queue.share.take(2, "member") == [(3, 4, 1)]
    assert queue.take()[1:] == [(5, 1, "d")]
    queue.settle("retry", 0)
    queue.server.hset(queue.share.meta, "local_start", 2)
    with pytest.raises(redis.ResponseError, match="offset 0 is in the tier alone"):
        queue.take()


def test_records_with_a_time_ahead_are_left_until_then(queue: Queue) -> None:
    now = round(queue.share.now * 1000)
    queue.take(3)
    queue.settle("done", 0, 1, 2)

    def take(count: int = 10, worker: str = "w") -> list[Any]:
        return queue.take(count, worker, 5, "earliest", "at")

    def add(value: str, *times: object) -> None:
        headers = [part for time in times for part in ("header.at", str(time))]
        queue.records.call("korvet_record_append", "value", value, "header.of", str(now + 9000), *headers)

    add("later", now + 1000)
    add("soon", now - 5, now + 501)
    add("too", now + 599)
    # Of these none has a time ahead.
    for value, time in (("over", now), ("no", "soon"), ("minus", -now), ("far", "9" * 30), ("empty", "")):
        add(value, time)
    add("plain")
    assert [one[2] for one in take()[1:]] == ["over", "no", "minus", "far", "empty", "plain"]
    assert queue.share.states()[:3] == [("delayed", 3, 3, 0), ("delayed", 4, 5, 0), ("acquired", 6, 11, 1)]
    with listening(queue.server, queue.share.shares) as next_message:
        assert take() == [600]
        queue.server.spublish(queue.share.shares, "end")
        assert next_message() == b"end"
    queue.share.pass_time(0.6)
    assert take(1) == [0, (4, 1, "soon")]
    assert queue.settle("retry", 4) == 1
    assert take() == [400, (4, 2, "soon"), (5, 1, "too")]
    assert queue.settle("done", 4) == 1
    assert queue.settle("reject", 5) == 1
    queue.share.pass_time(0.4)
    assert take()[1:] == [(3, 1, "later")]
    assert queue.settle("done", 3, *range(6, 12)) == 7
    assert queue.share.describe()[2:5] == (12, 12, 0)


def test_queue_of_records_with_times_ahead_is_read_once(queue: Queue) -> None:
    now = round(queue.share.now * 1000)
    queue.settle("done", *(offset for offset, *_ in queue.take()[1:]))
    for number in range(2100):
        args = ("value", "x", "header.at", str(now + 60_000 + 7 * number))
        queue.records.call("korvet_record_append", *args)
    calls, wait_ms = 0, 0
    while wait_ms == 0:
        (wait_ms,) = queue.take(100, "w", 5, "earliest", "at")
        calls += 1
    # The window is full.
    assert (calls, queue.share.describe()[2:4]) == (20, (3, 2003))
    assert len(queue.share.states()) < 200


def test_take_that_is_refused_leaves_expired_records_to_kafka_clients(queue: Queue) -> None:
    assert len(queue.take(lock_ms=1000)) == 4
    queue.share.begin("cgp_1")
    queue.share.pass_time(1)
    queue.server.hset(queue.share.meta, "local_start", 2)
    with pytest.raises(redis.ResponseError, match="offset 0 is in the tier alone"):
        queue.take()
    assert queue.share.take() == [(0, 2, 2)]


def test_times_out_of_bounds_are_refused_and_nothing_is_written(queue: Queue) -> None:
    queue.take(2)
    before = queue.share.dump()
    for ms in (-1, "1e300", 2**53):
        with pytest.raises(redis.ResponseError, match="lock_ms must be 0 to 2592000000"):
            queue.share.call("korvet_queue_take", "g", "w", 1, ms, keys=queue.share.share_keys)
        for kind in ("extend", "retry"):
            with pytest.raises(redis.ResponseError, match="ms must be 0 to 2592000000"):
                queue.share.call("korvet_queue_settle", "g", "w", kind, ms, 5, 0, keys=queue.share.share_keys)
    assert queue.share.dump() == before
    assert queue.settle("extend", 0, 1, ms=2_592_000_000) == 2


def test_keys_of_another_group_or_partition_are_refused(queue: Queue) -> None:
    queue.take(2)
    before = queue.share.dump()
    log, meta, shares, ranges = queue.share.share_keys
    for keys in ((log, meta, shares, f"{ranges}2"), (log, meta, ranges, ranges), (log, shares, shares, ranges)):
        with pytest.raises(redis.ResponseError, match="the keys are not those of a partition and of the group g"):
            queue.share.call("korvet_queue_take", "g", "w", 1, 1000, keys=keys)
        with pytest.raises(redis.ResponseError, match="the keys are not those of a partition and of the group g"):
            queue.share.call("korvet_queue_settle", "g", "w", "done", 0, 5, 0, keys=keys)
    assert queue.share.dump() == before


def test_queue_whose_header_was_removed_by_hand_begins_anew(queue: Queue) -> None:
    queue.take()
    queue.server.hdel(queue.share.shares, "g")
    assert [one[0] for one in queue.take(2)[1:]] == [0, 1]
    queue.share.pass_time(30)
    assert [one[0] for one in queue.take()[1:]] == [0, 1, 2]
    assert queue.settle("done", 0, 1, 2) == 3
    assert queue.share.describe()[2:5] == (3, 3, 0)


def test_workers_that_find_a_full_window_wake_nobody_until_it_moves(queue: Queue) -> None:
    for _ in range(20):
        queue.add(*"x" * 100)
    while len(queue.take(100)) > 1:
        pass
    assert queue.share.describe()[2:4] == (0, 2000)
    with listening(queue.server, queue.share.shares) as next_message:
        for _ in range(3):
            assert queue.take() == [30_000]
        assert queue.settle("done", *range(2)) == 2
        assert queue.take()[1:] == [(2000, 1, "x"), (2001, 1, "x")]
        queue.server.spublish(queue.share.shares, "end")
        assert [next_message(), next_message()] == [b"g", b"end"]


def test_topic_of_batches_is_refused(queue: Queue) -> None:
    queue.records.configure("")
    before = queue.share.dump()
    with pytest.raises(redis.ResponseError, match="not a partition of a topic with korvet"):
        queue.take()
    assert queue.share.dump() == before


def test_offsets_that_the_worker_does_not_hold_settle_nothing(queue: Queue) -> None:
    with pytest.raises(redis.ResponseError, match="no worker took anything for the group g yet"):
        queue.settle("done", 0)
    queue.take(2)
    before = queue.share.dump()
    for offsets in ((0, 2), (7,), (-1,), (0, 1, 2)):
        with pytest.raises(redis.ResponseError, match="none was settled"):
            queue.settle("done", *offsets)
    assert queue.share.dump() == before


def test_outage_that_front_ends_noticed_ends_no_workers_lock(queue: Queue) -> None:
    share = queue.share
    probe = "korvet:{default:@probe:0}"
    share.server.fcall("korvet_probe", 1, probe)
    queue.take(3, "slow")
    share.pass_time(60)
    assert queue.take() == [30_000]
    for _ in range(30):
        share.server.fcall("korvet_probe", 1, probe)
        share.pass_time(1)
    assert queue.take() == [30_000, (0, 2, "a"), (1, 2, "b"), (2, 2, "c")]


def test_locks_end_although_no_front_end_is_there(queue: Queue) -> None:
    queue.share.server.fcall("korvet_probe", 1, "korvet:{default:@probe:0}")
    queue.take(3, "dead")
    queue.share.pass_time(61)
    assert queue.take()[1:] == [(0, 2, "a"), (1, 2, "b"), (2, 2, "c")]


def test_user_without_a_right_changes_nothing(queue: Queue, redis_server: Server) -> None:
    rights = "+fcall +hmget +hget +zadd +zrem +zrangebyscore +zrange +zcard +unlink +hset +xrange +spublish"
    admin: Any = queue.server
    admin.execute_command(
        "ACL", "SETUSER", "half", "on", ">p", "~korvet:{default:t:0}:*", "~clock_us", "+get", *rights.split()
    )
    before = queue.share.dump()
    with redis_server.client(username="half", password="p") as client:
        with pytest.raises(redis.ResponseError, match="the user may not call SPUBLISH for this queue"):
            client.fcall("korvet_queue_take", 4, *queue.share.share_keys, "g", "w", 1, 30_000)
        assert queue.share.dump() == before
        admin.execute_command("ACL", "SETUSER", "half", "&korvet:{default:t:0}:*")
        assert client.fcall("korvet_queue_take", 4, *queue.share.share_keys, "g", "w", 3, 30_000)
        assert client.fcall("korvet_queue_settle", 4, *queue.share.share_keys, "g", "w", "done", 0, 5, 1, 2) == 2
    admin.execute_command("ACL", "DELUSER", "half")


def test_settled_and_new_records_wake_workers(queue: Queue) -> None:
    queue.take(3)
    with listening(queue.server, queue.share.shares) as next_message:
        queue.settle("retry", 0)
        assert next_message() == b"g"


def _page() -> str:
    """The page about queues, for the topic of these tests."""
    return PAGE.read_text().replace("orders", "t")


def test_commands_of_the_page_work_as_written(queue: Queue, redis_server: Server) -> None:
    shell = [line.strip() for line in _page().split("```python")[0].splitlines() if line.startswith("    ")]
    repairs = [line.strip() for line in _page().split("## See and repair")[1].splitlines() if line.startswith("    ")]
    cli = f'redis-cli() {{ {find_tool("redis-cli")} -e -s {redis_server.socket_path} "$@"; }}'
    script = [cli, "set -eu", *(f"echo == ; {line}" for line in (*shell, *repairs))]
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, taken, settled, _, described, released, moved = (part.split() for part in done.stdout.split("=="))
    assert taken[:3] + taken[4:6] == ["30000", "0", "1", "value", "a"]
    assert (settled, released, moved) == (["1"], ["0", "2", "-1", "0"], ["0", "0"])
    assert described[:5] == ["0", "-", "1", "3", "2"]
    assert " ".join(described[6:]).startswith("acquired 1 2 1 3 ")


def test_worker_of_the_page_handles_each_record(queue: Queue) -> None:
    scope: dict[str, Any] = {}
    exec(_page().split("```python\n")[1].split("```")[0], scope)
    handled: list[bytes] = []

    def handle(fields: dict[bytes, bytes]) -> None:
        handled.append(fields[b"value"])
        if handled == [b"a"]:
            raise ValueError

    assert scope["work"](queue.server, ("t", 0), "g", "w", handle) == 2000
    assert handled == [b"a", b"b", b"c"]
    queue.share.pass_time(2)
    assert scope["work"](queue.server, ("t", 0), "g", "w", handle) == -1
    assert handled == [b"a", b"b", b"c", b"a"]
