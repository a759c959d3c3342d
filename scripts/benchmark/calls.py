"""What one request costs a front-end: processor time, calls and system calls, beside the floor's and Kafka's.

The script is fixed and no clock decides: each line is a number of turns, in which all connections send their request
and then read their answers (`scripts.benchmark.play`). Processor time is measured in rounds on whole brokers. Calls are
counted afterwards, Python's in processes that count (`scripts.benchmark.counted`), the system's by strace, and Redis's
by MONITOR.
"""

import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis

from korvet.cli.kafka.records import Unsent, write_batch
from scripts.benchmark import coordinator, targets
from scripts.benchmark.growth import Growth
from scripts.benchmark.growth_jobs import FETCH, PRODUCE, fetch_of, produce_of
from scripts.benchmark.play import Sent, ask, connected
from scripts.benchmark.processes import OTHER_ROLE, pids_by_role
from scripts.benchmark.profiles import tool
from scripts.benchmark.rounds import Spent, Starter, let_rest, round_name, work
from scripts.benchmark.tables import processor_us
from scripts.benchmark.targets import Target
from tests.oracle import messages
from tests.oracle.script import error_codes
from tests.oracle.versions import API_KEYS

RECORDS: Final = "t"  # the floor answers with this name
LARGE: Final = "l"
OTHER: Final = "o"
BATCH_RECORDS: Final = 1000
BATCHES: Final = 320
"""More megabytes than a front-end keeps. As many are read in turn, after others were appended."""
_END: Final = "all is counted"
WAIT_MS: Final = 30_000
PRODUCE_SAME: Final = 15
FETCH_SAME: Final = 25
"""The bytes of an answer up to the error code of its only partition."""
API_NAMES: Final = {key: name for name, key in API_KEYS.items()}
TRIES: Final = 100
COUNTED_PART: Final = 10
"""Calls are counted in one part in so many of the turns."""


class Line(NamedTuple):
    """A line of the table: its turns, and the requests that count in each of them."""

    name: str
    turns: int
    number: int = 1


LINES: Final = (
    Line("heartbeat", 10_000),
    Line("heartbeats, 50 connections", 400, 50),
    Line("commits, 50 connections", 400, 50),
    Line("Produce of a record", 10_000),
    Line("record to a waiting Fetch", 5_000),
    Line("Fetch of 1 MB", 1_000),
)


class Job(NamedTuple):
    """The requests of a line, and how its offset grows: by a step, in so many steps, from the first one."""

    requests: Sequence[Sent]
    step: int = 0
    steps: int = 1 << 30
    first: Callable[[], int] = int


class Counts(NamedTuple):
    """Calls for each request."""

    python: float
    c: float
    system: float
    redis: float


def _sent(frame: bytes, same: int, offset_at: int = 0) -> Sent:
    return {"frame": frame.hex(), "offset_at": offset_at, "same": same}


def _fetch(topic: str, most_bytes: int = 1 << 20) -> Sent:
    """A Fetch that waits. Kafka fills ``most_bytes`` with a part of the next batch."""
    mark = 0x1122334455667788
    fields = {**fetch_of(topic, [(0, mark)]), "max_wait": WAIT_MS, "min_bytes": 1}
    fields["topics"][0]["partitions"][0]["partition_max_bytes"] = most_bytes
    frame = messages.request_frame("fetch", FETCH, fields, 1)
    return _sent(frame, FETCH_SAME, frame.index(mark.to_bytes(8)))


def _produce(topic: str, batch: bytes) -> bytes:
    rows = [{"index": 0, "records": batch}]
    fields = {**produce_of(topic, []), "topic_data": [{"name": topic, "partition_data": rows}]}
    return messages.request_frame("produce", PRODUCE, fields, 1)


def _append(wire: socket.socket, frame: bytes) -> int:
    """The base offset of the batch in a Produce. Kafka may take a moment to know a new topic."""
    for _ in range(TRIES):
        answer = messages.parse_answer("produce", PRODUCE, ask(wire, frame), 1)
        if not (errors := error_codes(answer)):
            offset: int = answer["responses"][0]["partition_responses"][0]["base_offset"]
            return offset
        time.sleep(0.05)
    raise RuntimeError(f"a Produce was answered {errors}")


@contextmanager
def _members(target: Target, api: str, count: int) -> Iterator[list[bytes]]:
    if target.name == "floor":
        yield coordinator.frames(api, [{"g": "g", "m": "m", "t": RECORDS, "generation": 1}] * count)
    else:
        with coordinator.members(target.address, api, count) as frames:
            yield frames


@contextmanager
def jobs(
    target: Target, batches: int = BATCHES, records: int = BATCH_RECORDS, members: int = coordinator.CONNECTIONS
) -> Iterator[dict[str, Job]]:
    """The jobs of all lines, after what they need is there: batches of records of 1 kB, and members of groups."""
    with ExitStack() as stack:
        wire = stack.enter_context(connected(target.address))
        for topic in (RECORDS, LARGE, OTHER):
            target.create_topic(topic)
            stack.callback(target.delete_topic, topic)
        batch = write_batch([Unsent(None, bytes(1000), [], int(time.time() * 1000))] * records, 0)
        first = _append(wire, _produce(LARGE, batch))
        for topic, number in ((LARGE, batches - 1), (OTHER, batches)):
            frame = _produce(topic, batch)
            for _ in range(number):
                _append(wire, frame)
        produce = messages.request_frame("produce", PRODUCE, produce_of(RECORDS, [0]), 1)
        heartbeats, commits = (
            stack.enter_context(_members(target, api, members)) for api in ("heartbeat", "offset_commit")
        )
        one = _sent(produce, PRODUCE_SAME)
        beats, offsets = ([_sent(each, 1 << 20) for each in frames] for frames in (heartbeats, commits))
        found = (
            Job(beats[:1]), Job(beats), Job(offsets), Job([one]),
            Job([_fetch(RECORDS), one], step=1, first=lambda: _append(wire, produce) + 1),
            Job([_fetch(LARGE, len(batch))], records, batches, lambda: first),
        )  # fmt: skip
        yield {line.name: job for line, job in zip(LINES, found, strict=True)}


def _play(target: Target, job: Job, turns: int) -> Spent:
    """Play a job whose requests are answered without an error now.

    :raises RuntimeError: they are not.
    """
    with connected(target.address) as wire:
        for sent in job.requests:
            if not sent["offset_at"]:
                frame = bytes.fromhex(sent["frame"])
                api, version = API_NAMES[int.from_bytes(frame[4:6])], int.from_bytes(frame[6:8])
                if errors := error_codes(messages.parse_answer(api, version, ask(wire, frame), 1)):
                    raise RuntimeError(f"{api} of {target.name} was answered {errors}")
    given = {"job": "play", "requests": job.requests, "turns": turns, "first": job.first(), "step": job.step,
             "steps": job.steps}  # fmt: skip
    return work(given, target)[1]


def _measured(running: Mapping[str, tuple[Target, Mapping[str, Job]]], rounds: int, say: Callable[[str], None]) -> Any:
    """Line -> broker -> a `Spent` for each round."""
    spent: dict[str, dict[str, list[Spent]]] = {line.name: {name: [] for name in running} for line in LINES}
    for number in range(rounds + 1):
        say(round_name(number, rounds))
        for line in LINES:
            for name, (target, jobs) in running.items() if number % 2 else reversed([*running.items()]):
                let_rest([each for each, _ in running.values()])
                cost = _play(target, jobs[line.name], line.turns)
                if number:
                    spent[line.name][name].append(Spent(cost.times, line.turns * line.number))
    return spent


@contextmanager
def _traced(pids: Sequence[int], found: list[int]) -> Iterator[None]:
    """Add the number of system calls of processes, in the time of the block, to a list."""
    with tempfile.NamedTemporaryFile("r") as written:
        command = [tool("strace", "--calls"), "-f", "-c", "-o", written.name]
        command += [part for pid in pids for part in ("-p", str(pid))]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            if "attached" not in (line := process.stderr.readline()):
                raise RuntimeError(f"strace failed: {line}")
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()
        found.append(system_calls(written.read()))


def system_calls(summary: str) -> int:
    """The total of a summary by ``strace -c``: percent, seconds, us a call, calls, and perhaps errors."""
    total = re.search(r"^ *100\.00 +\S+ +\S+ +(\d+) .*total$", summary, re.MULTILINE)
    return int(total[1]) if total else 0


@contextmanager
def monitored(url: str, found: list[int], named: str = "") -> Iterator[None]:
    """Add the number of commands that clients send to a Redis, in the time of the block, to a list.

    :param named: what a command must have in it to count.
    """
    with redis.Redis.from_url(url) as server, server.monitor() as monitor:
        yield
        server.echo(_END)
        seen = takewhile(lambda each: _END not in each["command"], monitor.listen())
        found.append(sum(each["client_type"] != "lua" and named in each["command"] for each in seen))


def _counted_calls(path: Path) -> tuple[int, int]:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(path))
        python, c = wire.makefile().readline().split()
        return int(python), int(c)


def _count_calls(start: Callable[..., Any], module: str) -> dict[str, Counts]:
    """The calls of a broker that is started for this alone."""
    found = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        path = directory / "counts"
        program = ("-m", "scripts.benchmark.counted", str(path), module)
        target = stack.enter_context(start(directory, program=program))
        ready = stack.enter_context(jobs(target))
        for line in LINES:
            job, turns, counted = ready[line.name], max(BATCHES, line.turns // COUNTED_PART), list[int]()
            _play(target, job, turns)
            before = _counted_calls(path)
            _play(target, job, turns)
            counted += [now - then for now, then in zip(_counted_calls(path), before, strict=True)]
            with _traced(pids_by_role(target.pids)[OTHER_ROLE], counted):
                _play(target, job, turns)
            with monitored(str(target.redis_url), counted):
                _play(target, job, turns)
            found[line.name] = Counts(*(each / (turns * line.number) for each in counted))
    return found


def rows(
    spent: Mapping[str, Mapping[str, Sequence[Spent]]], counts: Mapping[str, Mapping[str, Counts]]
) -> list[tuple[str, ...]]:
    """A row for each line. A cell has the brokers' figures in their order, each ratio that of processor time to the
    first broker's."""
    found = []
    for line, brokers in processor_us(spent).items():
        own = {name: roles.get(OTHER_ROLE) or roles["Kafka"] for name, roles in brokers.items()}
        first, _ = next(iter(own.values()))
        totals = [f"{total:.1f} ({kernel:.1f})" for total, kernel in own.values()]
        ratios = [f"{total / first:.2f}" if first else "-" for total, _ in own.values()]
        servers = [f"{roles['Redis'][0]:.1f}" for roles in brokers.values() if "Redis" in roles]
        each = (counts[name][line] for name in brokers if name in counts)
        calls = ([f"{number:.1f}" for number in numbers] for numbers in zip(*each, strict=True))
        found.append((line, *(", ".join(cell) for cell in (totals, ratios[1:], servers, *calls))))
    return found


def run(starts: Sequence[Starter], rounds: int, say: Callable[[str], None]) -> Growth:
    """Measure the floor and these brokers; calls are those of the floor and of korvet."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        running = {}
        for start in (targets.floor, *starts):
            target = stack.enter_context(start(directory))
            running[target.name] = target, stack.enter_context(jobs(target))
        spent = _measured(running, rounds, say)
    say("counting calls")
    counts = {"floor": _count_calls(targets.floor, "scripts.benchmark.floor"),
              "korvet": _count_calls(targets.korvet, "korvet.cli")}  # fmt: skip
    return Growth(
        title=f"One request: {', '.join(running)}; processor time in us, the kernel's part in brackets; then calls",
        headings=("line", "us", f"of the {next(iter(running))}'s", "Redis, us", "Python functions", "C functions",
                  "system", "Redis"),
        rows=tuple(rows(spent, counts)),
    )  # fmt: skip
