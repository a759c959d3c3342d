"""Share partitions under calls with any numbers and names: none leaves what the next one cannot read."""

from __future__ import annotations

import random
from collections.abc import Callable

import redis

from tests.lua.test_queue import Queue

NUMBERS = (
    -(2**63), -1, 0, 1, 2, 1000, 30_000, 2_592_000_000, 2_592_000_001, 2**31, 2**53, "1e300", "-1e300", "0.5", "nan",
    "inf", "x", "",
)  # fmt: skip
NAMES = ("w", "m", "", "a b", "\n", "x\0y", "*")


def test_no_argument_leaves_a_share_partition_unreadable(
    server: redis.Redis, set_clock: Callable[[float], None]
) -> None:
    any_of = random.Random(7)
    queue = Queue(server, set_clock)
    queue.add(*"abcdefghij")
    queue.share.begin()
    topic_id = queue.share.topic_id

    def numbers(count: int) -> list[str | int]:
        return [any_of.choice(NUMBERS) if any_of.random() < 0.4 else any_of.randint(0, 12) for _ in range(count)]

    refused = 0
    for _ in range(1500):
        name, nonce = any_of.choice(NAMES), any_of.choice(("", "n", "*"))
        mode, isolation = any_of.choice(("batches", "records")), any_of.choice(("committed", "uncommitted"))
        kind, part = any_of.choice(("done", "retry", "reject", "extend")), any_of.choice(("all", "check", "apply"))
        calls: list[tuple[str, list[str | int]]] = [
            ("queue_take", ["g", name, *numbers(3)]),
            ("queue_settle", ["g", name, kind, *numbers(4)]),
            ("share_acquire", ["", topic_id, "g", name, nonce, *numbers(2), mode, isolation, *numbers(7)]),
            ("share_acknowledge", ["", topic_id, "g", name, nonce, *numbers(5), part, *numbers(6)]),
            ("share_release", ["", topic_id, "g", name, nonce, *numbers(4), "any", *numbers(1)]),
            ("share_dead_letters", [topic_id, "g", "o", *numbers(2)]),
            ("share_copied", [topic_id, "g", "o", *numbers(2)]),
            ("share_set", [topic_id, "g", "cgp_1", *numbers(1), any_of.choice(("begin", "move"))]),
        ]
        function, args = any_of.choice(calls)
        try:
            queue.share.call(f"korvet_{function}", *args, keys=queue.share.share_keys)
        except redis.ResponseError as error:
            assert "cannot be read" not in str(error) and "is no range" not in str(error), (function, args)
            refused += 1
        queue.share.pass_time(any_of.choice((0, 0, 0.5, 40)))
        queue.share.describe()
    assert 100 < refused < 1400
