"""Two consumers of one partition, with steps in any order: deaths, late calls, lost calls and replies, a Redis and a
topic that lose their ends, compaction, and commands that fail half-way and are mended.

Each record is listed once in its tag: never twice, and none that the topic still has is missing below the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from korvet.apply import MOST, Claim, ClaimLost, CommandFailed, OtherCommands, Place, read_field
from tests.lua.machines import bound, run_machine

TAGS = ["a", "b"]
KEYS = {tag: f"{{{tag}}}:applied" for tag in TAGS}
FIELD = "app id 0"
RARELY = st.sampled_from([True, *[False] * 4])


class Record(NamedTuple):
    """A record with the numbers that it adds to the list of each tag; a broken one has a command that fails."""

    place: Place
    numbers: dict[str, list[int]]
    is_broken: bool


class Faulty(redis.Redis):
    """A client whose next call may be lost, or its reply."""

    fault = ""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        fault, self.fault = self.fault, ""
        if fault == "call":
            raise redis.ConnectionError("the call was lost")
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if fault == "reply":
            raise redis.ConnectionError("the reply was lost")
        return reply


class ApplyMachine(RuleBasedStateMachine):
    server: redis.Redis
    set_clock: Callable[[float], None]

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.client = Faulty(connection_pool=self.server.connection_pool)
        self.topic: list[Record] = []
        self.epoch = self.next_offset = self.numbers = 0
        self.has_lost_records = False
        self.mended: set[Place] = set()
        self.claims: list[Claim | None] = [None, None]
        self.fetched: list[list[Record]] = [[], []]
        """The records that each consumer has fetched and not added: the topic may have lost them since."""
        self.at: list[Place] = [Place(-1, -1)] * 2
        self.kept: dict[bytes, Any] = {}

    # ------------------------------------------------------------------ the topic

    def _produce(self, counts: list[tuple[int, int]], breaks: bool) -> None:
        for each in counts:
            numbers = {}
            for tag, count in zip(TAGS, each, strict=True):
                numbers[tag] = [*range(self.numbers, self.numbers + count)]
                self.numbers += count
            self.topic.append(Record(Place(self.epoch, self.next_offset), numbers, breaks and sum(each) > 1))
            self.next_offset += 1

    @precondition(lambda self: self.topic)
    @rule(part=st.floats(0, 1))
    def lose_the_end_of_the_topic(self, part: float) -> None:
        """Its offsets are given out again, in a later epoch."""
        kept = round(part * len(self.topic))
        self.next_offset = self.topic[kept].place.offset if kept < len(self.topic) else self.next_offset
        self.topic, self.epoch, self.has_lost_records = self.topic[:kept], self.epoch + 1, True

    @precondition(lambda self: len(self.topic) > 1)
    @rule(part=st.floats(0, 0.99))
    def compact(self, part: float) -> None:
        del self.topic[int(part * (len(self.topic) - 1))]
        self.has_lost_records = True

    # ------------------------------------------------------------------ Redis

    def _save(self) -> None:
        self.kept = {key: self.server.dump(key) for key in self.server.scan_iter()}

    @rule()
    def lose_the_end_of_redis(self) -> None:
        self.server.flushall()
        for key, dumped in self.kept.items():
            self.server.restore(key, 0, dumped)

    # ------------------------------------------------------------------ consumers

    def _claim(self, of: int) -> Claim:
        """A consumer starts, or starts again; its partition may be another one's."""
        self.claims[of] = claim = Claim(self.client, "app", "id", 0, list(KEYS.values()))
        self.at[of], self.fetched[of] = claim.place, []
        return claim

    # Hypothesis leaves rules out of an example. With one rule for what is usual, no example is without it.
    @rule(
        of=st.integers(0, 1), produced=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=3),
        breaks=st.booleans(), restarts=RARELY, saves=RARELY, fetches=st.integers(0, 6), count=st.integers(0, 6),
        settles=st.booleans(), fault=st.sampled_from(["", "", "", "call", "reply"]),
    )  # fmt: skip
    def work(
        self, of: int, produced: list[tuple[int, int]], breaks: bool, restarts: bool, saves: bool, fetches: int,
        count: int, settles: bool, fault: str,
    ) -> None:  # fmt: skip
        """Fetch, and then apply some of what was fetched. Kafka's clients validate a position by its epoch, too."""
        if saves:
            self._save()
        self._produce(produced, breaks)
        claim = self.claims[of]
        if restarts or claim is None:
            claim = self._claim(of)
        fetched = [one for one in self.topic if one.place.is_after(self.at[of])][:fetches]
        records = [*self.fetched[of], *fetched]
        self.fetched[of] = records[count:]
        self.at[of] = records[-1].place if records else self.at[of]
        self.client.fault = fault
        try:
            for record in records[:count]:
                claim.add(record.place, {KEYS[tag]: self._commands(tag, record) for tag in TAGS})
            if settles:
                claim.settle()
            else:
                claim.flush()
        except ClaimLost:
            self.claims[of] = None
        except redis.ConnectionError:
            pass
        except CommandFailed:
            self.mended |= {record.place for record in self.topic}
            self.claims[of] = None
        except OtherCommands:
            # The topic lost records whose commands were done; the operator begins anew.
            assert self.has_lost_records
            self.server.flushall()
            self.kept = {}
            self.claims[of] = None
        finally:
            self.client.fault = ""

    def _commands(self, tag: str, record: Record) -> list[tuple[str | int, ...]]:
        """Of a broken record the second command fails, until the program is mended and leaves it out."""
        pushes: list[tuple[str | int, ...]] = [("RPUSH", f"{{{tag}}}:list", one) for one in record.numbers[tag]]
        if record.is_broken and record.place not in self.mended:
            pushes.insert(1, ("INCRBY", f"{{{tag}}}:list", "no number"))
        return pushes

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def each_record_is_listed_once(self) -> None:
        for tag, key in KEYS.items():
            listed = [int(one) for one in self.server.lrange(f"{{{tag}}}:list", 0, -1)]
            assert len(set(listed)) == len(listed)
            text: Any = self.server.hget(key, FIELD)
            place, done = read_field(FIELD.encode(), text)[4:] if text is not None else (Place(-1, -1), 0)
            below = [one for record in self.topic if not record.place.is_after(place) for one in record.numbers[tag]]
            above = [one for record in self.topic if record.place.is_after(place) for one in record.numbers[tag]]
            assert set(below) <= set(listed)
            assert len(set(above) & set(listed)) <= done

    def teardown(self) -> None:
        """At last one consumer, with nothing going wrong, brings Redis to the end of the topic."""
        # If the topic lost records whose commands were done, that is seen once there are as many commands again, and no
        # call has more than these.
        self._produce([(MOST[0], MOST[0])], False)
        everything = len(self.topic)
        for restarts in (True, False, False, False):
            self.work(0, [], False, restarts, False, everything, everything, True, "")
        for tag in TAGS:
            listed = {int(one) for one in self.server.lrange(f"{{{tag}}}:list", 0, -1)}
            assert {one for record in self.topic for one in record.numbers[tag]} <= listed


def test_each_record_is_applied_once_whatever_is_lost(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    run_machine(bound(ApplyMachine, server, set_clock), examples=200, steps=40)
