"""Exactly once into Redis: a consumer applies its records to keys of its own, whatever is delivered twice.

A `Claim` owns one partition of an application. It collects the commands of records, sends them with their place by
`korvet_apply`, and knows where to begin and what may be committed. It needs the library of ``lua/`` in Redis, and any
Kafka broker; docs/apply.md has the loop around it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add, gt
from typing import Any, Final, NamedTuple, TypeAlias

import redis
from redis.cluster import RedisCluster

from korvet.errors import KorvetError
from korvet.redis.resp import Argument, Named
from korvet.store.contract import arguments

Client: TypeAlias = "redis.Redis | RedisCluster"
Command: TypeAlias = Sequence[str | bytes | int | float]
"""A command's name, its key, and its further arguments."""

MOST_TAGS: Final = 256
MOST: Final = (100, 9900, 1 << 20)
"""The most commands, words and bytes of one record in one tag, and of one call."""


class ClaimLost(KorvetError):
    """Somebody else owns the partition, or Redis or the topic lost their last writes: claim again, and seek."""


class CommandFailed(KorvetError):
    """Redis refused a command. Those before it are done; the next flush goes on with it or its replacement."""


class OtherCommands(KorvetError):
    """A call failed half-way, and the program now makes other commands of the records whose commands were done."""


class Place(NamedTuple):
    """A record's place in its partition; the epoch is -1 if the client does not know it."""

    leader_epoch: int
    offset: int

    def is_after(self, other: Place) -> bool:
        """Whether it comes later in the log. Without one of the epochs, offsets alone are compared."""
        if -1 in (self.leader_epoch, other.leader_epoch):
            return self.offset > other.offset
        return self > other


NOTHING: Final = Place(-1, -1)
"""The place of an application that has applied nothing yet."""


class Applied(NamedTuple):
    """A field of an applied hash."""

    application: str
    topic_id: str
    partition: int
    owner: str
    place: Place
    done: int
    """The number of the next commands that are done, because the one after them failed."""


def read_field(field: bytes, text: bytes) -> Applied:
    """A field of an applied hash.

    :raises ValueError: it is none.
    """
    application, topic_id, partition = field.decode().split(" ")
    owner, epoch, offset, done, _ = text.decode().split(" ")
    return Applied(application, topic_id, int(partition), owner, Place(int(epoch), int(offset)), int(done))


class _Record(NamedTuple):
    """The commands of a record on keys of one tag."""

    place: Place
    commands: list[list[bytes]]
    size: tuple[int, ...]
    """How many commands, words and bytes they are."""


class _Tag:
    """An applied hash: its place, as Redis has it, and the records whose commands wait to be sent."""

    def __init__(self, place: Place, done: int) -> None:
        self.place = place
        self.done = done
        self.waiting: deque[_Record] = deque()

    def chunk(self) -> list[_Record]:
        """The first waiting records, as many as go into a call; none as long as they are fewer than those done."""
        chunk: list[_Record] = []
        size: tuple[int, ...] = (0, 0, 0)
        for record in self.waiting:
            size = tuple(map(add, size, record.size))
            if chunk and any(map(gt, size, MOST)):
                return chunk
            chunk.append(record)
        return chunk if size[0] >= self.done else []

    def moved(self, place: Place) -> None:
        self.place, self.done = place, 0
        while self.waiting and not self.waiting[0].place.is_after(place):
            self.waiting.popleft()


class Claim:
    """One partition of an application, from its assignment until it is revoked. For one thread.

    After ClaimLost it is of no more use: make another one, with the topic's id as it is then, and have the consumer
    seek to where that begins.
    """

    def __init__(self, client: Client, application: str, topic_id: str, partition: int, applied: Sequence[str]) -> None:
        """Claim the partition in each applied hash.

        :param topic_id: the topic's id as a client shows it, or its name if the client has no ids.
        :param applied: the keys of the applied hashes, one for each hash tag that the application's keys have, at most
            256, and the same ones each time.
        :raises ValueError: there are more.
        :raises redis.RedisError:
        """
        if not 1 <= len(applied) <= MOST_TAGS:
            raise ValueError(f"an application has 1 to {MOST_TAGS} applied hashes, not {len(applied)}")
        self._client = client
        # librdkafka writes ids with base64's other two letters.
        topic_id = topic_id.translate({ord("+"): "-", ord("/"): "_"})
        self._whose: dict[str, Named] = {"application": application, "topic_id": topic_id, "partition": partition}
        self._field = f"{application} {topic_id} {partition}"
        self._owner = secrets.token_hex(16)
        self._last: Place | None = None
        self._tags: dict[str, _Tag] = {}
        for key in applied:
            epoch, offset, done = self._call("korvet_apply_claim", [key], **self._whose, owner=self._owner)
            self._tags[key] = _Tag(Place(epoch, offset), done)

    @property
    def place(self) -> Place:
        """The lowest place of all tags: the consumer begins after it, whatever the group committed."""
        lowest, *others = (tag.place for tag in self._tags.values())
        for place in others:
            lowest = place if lowest.is_after(place) else lowest
        return lowest

    def add(self, place: Place, commands: Mapping[str, Iterable[Command]]) -> None:
        """Take a record's commands, by the applied hash of their tag; without any the record still counts as read.

        :raises ClaimLost: the consumer went back: it has lost records of the topic, or reads another topic of its name.
        :raises ValueError: the record's commands are more than a call may have.
        :raises KeyError: there is no such applied hash.
        """
        if self._last is not None and not place.is_after(self._last):
            raise ClaimLost(f"after {self._last} the consumer read {place}")
        records = [(self._tags[key], _record(place, some)) for key, some in commands.items()]
        self._last = place
        for tag, record in records:
            if record.commands and place.is_after(tag.place):
                tag.waiting.append(record)

    def flush(self) -> None:
        """Send all commands that were added. After an error it may be called again.

        :raises ClaimLost:
        :raises CommandFailed, OtherCommands: nothing goes on until the program or the data is mended.
        :raises redis.RedisError: nothing was done, or what was done is skipped next time.
        """
        for key, tag in self._tags.items():
            while chunk := tag.chunk():
                self._apply(key, tag, chunk[-1].place, [one for record in chunk for one in record.commands])

    def settle(self, *, replicas: int = 0, on_disk: bool = False, timeout_ms: int = 1000) -> int | None:
        """Flush, and bring all tags to the last record that was added.

        :param replicas: so many replicas must have it (WAIT).
        :param on_disk: the primary's append-only file must have it, and those of so many replicas (WAITAOF).
        :returns: the offset to commit; None if some tag has applied nothing, or if there are too few copies after
            ``timeout_ms``.
        :raises ClaimLost, CommandFailed, OtherCommands, redis.RedisError: as `flush`.
        """
        self.flush()
        for key, tag in self._tags.items():
            if self._last is not None and self._last.is_after(tag.place) and not (tag.waiting or tag.done):
                self._apply(key, tag, self._last, [])
        copies: list[Any] = ["WAIT", replicas, timeout_ms] if replicas else []
        if on_disk:
            copies = ["WAITAOF", 1, replicas, timeout_ms]
        kept = [self._is_kept(key, tag, copies) for key, tag in self._tags.items()]
        return self.place.offset + 1 if self.place != NOTHING and all(kept) else None

    def _apply(self, key: str, tag: _Tag, place: Place, commands: list[list[bytes]]) -> None:
        words: list[Argument] = []
        for command in commands:
            words += [len(command), *command]
        status, *rest = self._call(
            "korvet_apply",
            [key, *dict.fromkeys(command[1] for command in commands)],
            **self._whose,
            owner=self._owner,
            previous_epoch=tag.place.leader_epoch,
            previous_offset=tag.place.offset,
            epoch=place.leader_epoch,
            offset=place.offset,
            commands=words,
        )
        match status:
            case b"APPLIED" | b"SKIPPED" | "APPLIED" | "SKIPPED":
                tag.moved(Place(*rest))
            case b"FAILED" | "FAILED":
                number, problem = rest
                raise CommandFailed(f"{key}: {b' '.join(commands[number - 1])[:200]!r} failed: {_text(problem)}")
            case b"CONFLICT" | "CONFLICT":
                raise OtherCommands(f"{key}: after {tag.place} {rest[0]} other commands are done")
            case _:
                raise ClaimLost(f"{key}: {_text(status)} {' '.join(map(str, rest))}".rstrip())

    def _is_kept(self, key: str, tag: _Tag, copies: Sequence[Any]) -> bool:
        """Whether enough copies have all that was applied.

        WAIT counts what was written when its own connection was last used, so both commands go together.

        :raises ClaimLost: Redis no longer has what it answered, or somebody else owns the partition.
        """
        node: Any = self._client
        if isinstance(node, RedisCluster):
            node = node.get_redis_connection(node.get_node_from_key(key))  # type: ignore[no-untyped-call]
        with node.pipeline(transaction=False) as pipeline:
            pipeline.hget(key, self._field)
            if copies:
                pipeline.execute_command(*copies)
            text, *counts = pipeline.execute()
        kept = _text(text)
        if not kept.startswith(f"{self._owner} {tag.place.leader_epoch} {tag.place.offset} "):
            raise ClaimLost(f"{key}: {self._field} is now {kept}")
        found = counts[0] if counts and isinstance(counts[0], list) else counts
        return all(number >= wanted for number, wanted in zip(found, copies[1:-1], strict=True))

    def _call(self, function: str, keys: Sequence[str | bytes], /, **named: Named) -> Any:
        given = arguments(function, named)
        return self._client.execute_command("FCALL", function, len(keys), *keys, *given)  # type: ignore[no-untyped-call]


def _record(place: Place, commands: Iterable[Command]) -> _Record:
    encoded = [[*_encoded(command)] for command in commands]
    size = (len(encoded), sum(map(len, encoded)), sum(len(word) for command in encoded for word in command))
    if any(map(gt, size, MOST)):
        raise ValueError(f"in one tag {place} has {size} commands, words and bytes; {MOST} are the most")
    return _Record(place, encoded, size)


def _encoded(command: Command) -> Iterator[bytes]:
    for word in command:
        yield word if isinstance(word, bytes) else str(word).encode()


def _text(reply: Any) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
