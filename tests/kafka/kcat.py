"""kcat as a client: each command runs as a process, and this parses its output."""

import contextlib
import itertools
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from tests.kafka.client import At, Client, ClientError, Member, Offsets, Reader, Start
from tests.kafka.options import MemberOptions, Outcome, ProduceOptions
from tests.kafka.records import Header, Record
from tests.kafka.waiting import TIMEOUT_S, announce, wait_until

COMMAND_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 60.0

# The separators of records, and of key and value, on kcat's input; no record of the scenarios contains them.
RECORD_END = b"\x1e<end of record>\x1e"
KEY_END = b"\x1f<end of key>\x1f"

# One line of numbers, one of headers, then key and value; the first line has their lengths, -1 for null.
OUTPUT_FORMAT = "%p %o %T %K %S\\n%h\\n%k%s\\n"

MESSAGE_TOO_LARGE = 10
ERROR_CODES = {"Broker: Message size too large": MESSAGE_TOO_LARGE}


class Kcat(Client):
    """kcat has no administration and cannot read committed offsets: `Traits` says so, and no scenario asks it to."""

    name = "kcat"

    def __init__(self, path: str, bootstrap: str) -> None:
        # kcat runs without a configuration file, so that the user's own has no effect.
        self._base = [path, "-F", "/dev/null", "-b", bootstrap]

    def produce(self, topic: str, records: list[Record], options: ProduceOptions | None = None) -> list[Outcome]:
        chosen = options or ProduceOptions()
        outcomes: list[Outcome] = []
        # Consecutive records that differ only in key and value share one kcat; with one_by_one each record has its own.
        sizes = itertools.count()
        for _, run in itertools.groupby(records, lambda r: next(sizes) if chosen.one_by_one else _shape(r)):
            outcomes.extend(self._produce_run(topic, list(run), chosen))
        return outcomes

    def _produce_run(self, topic: str, run: list[Record], options: ProduceOptions) -> list[Outcome]:
        command = [*self._base, "-P", "-t", topic, "-D", _escaped(RECORD_END), *_settings(options)]
        partition, headers, has_key, is_null = _shape(run[0])
        command += [] if partition is None else ["-p", str(partition)]
        command += ["-K", _escaped(KEY_END)] if has_key else []
        command += ["-Z"] if is_null else []
        for name, value in headers:
            command += ["-H", f"{name}={(value or b'').decode()}"]
        given = b"".join(_input(record) + RECORD_END for record in run)
        done = subprocess.run(command, input=given, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
        if done.returncode == 0 and b"ERROR" not in done.stderr:
            return [Outcome(partition=partition) for _ in run]
        message = done.stderr.decode(errors="replace")
        code = next((code for text, code in ERROR_CODES.items() if text in message), -1)
        return [Outcome(error=code, message=message) for _ in run]

    def open(self, topic: str, start: Start) -> Reader:
        if isinstance(start, Offsets):
            ((partition, offset),) = start.by_partition.items()
            where = ["-p", str(partition), "-o", str(offset)]
        elif isinstance(start, At):
            where = ["-o", f"s@{start.timestamp_ms}"]
        else:
            where = ["-o", {"earliest": "beginning", "latest": "end"}[start]]
        output = ["-u", "-f", OUTPUT_FORMAT]
        partitions = 1 if isinstance(start, Offsets) else self._partition_count(topic)
        reader = KcatReader([*self._base, "-C", "-t", topic, *where, *output])
        if start == "latest":
            reader.await_ends(partitions)
        return reader

    def _partition_count(self, topic: str) -> int:
        listing = subprocess.run(
            [*self._base, "-L", "-t", topic], capture_output=True, timeout=COMMAND_TIMEOUT_S, check=True
        )
        return len(re.findall(rb"^ +partition \d+,", listing.stdout, re.MULTILINE))

    def join(self, group: str, topic: str, options: MemberOptions | None = None) -> Member:
        return KcatMember(self._base, group, topic, options or MemberOptions())

    def committed(self, group: str, topic: str) -> dict[int, int]:
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def topics(self) -> list[str]:
        raise NotImplementedError

    def set_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Do nothing: no process runs between two commands."""


class _Consuming:
    """A kcat that consumes; one thread parses the records on stdout, another keeps the lines of stderr."""

    def __init__(self, command: Sequence[str]) -> None:
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read_records, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._read_lines, args=(self.process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_records(self, output: IO[bytes]) -> None:
        for record in _parse(output):
            self.records.append(record)
            announce()
        announce()

    def _read_lines(self, errors: IO[bytes]) -> None:
        for line in errors:
            self.lines.append(line.decode(errors="replace").strip())
            announce()

    def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code. A process that does not end is killed, and TimeoutError raised."""
        self.process.send_signal(number)
        try:
            self.process.wait(LEAVE_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            raise TimeoutError("kcat did not end") from error
        finally:
            code = self.process.wait()
            for thread in self._threads:
                thread.join()
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
        return code


class KcatReader(Reader):
    def __init__(self, command: Sequence[str]) -> None:
        self._kcat = _Consuming(command)
        self._given = 0

    def await_ends(self, count: int) -> None:
        """Wait until kcat reports for each partition that it reached the end."""

        def reached() -> int:
            return sum("Reached end of topic" in line for line in self._kcat.lines)

        wait_until(lambda: reached() >= count, lambda: f"kcat at {count} ends: {self._kcat.lines}")

    def read(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Record]:
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: len(self._kcat.records) >= self._given + count, "records", timeout_s)
        found = self._kcat.records[self._given :]
        self._given += len(found)
        return found

    def close(self) -> None:
        self._kcat.end(signal.SIGTERM)


class KcatMember(Member):
    """kcat commits its printed records at intervals and when it ends, so `max_records` ends it instead of `commit`."""

    REBALANCED = re.compile(r"rebalanced \(memberid .*\): (assigned|revoked): (.*)$")
    PARTITION = re.compile(r"\[(\d+)\]")

    def __init__(self, base: Sequence[str], group: str, topic: str, options: MemberOptions) -> None:
        super().__init__()
        settings = {"auto.offset.reset": options.reset, "session.timeout.ms": options.session_timeout_ms}
        command = [*base, "-G", group, "-u", "-f", OUTPUT_FORMAT]
        for name, value in settings.items():
            command += [] if value is None else ["-X", f"{name}={value}"]
        command += [] if options.max_records is None else ["-c", str(options.max_records)]
        self._kcat = _MemberOutput([*command, topic], self)

    @property
    def alive(self) -> bool:
        return self._kcat.process.poll() is None

    def commit(self) -> None:
        """Do nothing; the class says why."""

    def leave(self) -> None:
        code = self._kcat.end(signal.SIGTERM)
        if code < 0:
            raise ClientError(-1, f"kcat ended by signal {-code}")

    def kill(self) -> None:
        self._kcat.end(signal.SIGKILL)

    def observe(self, records: list[Record], lines: list[str]) -> None:
        """Take over all output of kcat so far."""
        assignment: list[int] = []
        for line in lines:
            if found := self.REBALANCED.search(line):
                taken = found[1] == "assigned"
                assignment = sorted(int(p) for p in self.PARTITION.findall(found[2])) if taken else []
        self.seen.assignment = assignment
        self.seen.records = list(records)
        self.seen.troubles = [line for line in lines if "ERROR" in line]


class _MemberOutput(_Consuming):
    """Gives a member kcat's output, each time before it announces it."""

    def __init__(self, command: Sequence[str], member: KcatMember) -> None:
        self._member = member
        super().__init__(command)

    def _read_records(self, output: IO[bytes]) -> None:
        for record in _parse(output):
            self.records.append(record)
            self._member.observe(self.records, self.lines)
            announce()
        announce()

    def _read_lines(self, errors: IO[bytes]) -> None:
        for line in errors:
            self.lines.append(line.decode(errors="replace").strip())
            self._member.observe(self.records, self.lines)
            announce()


def _settings(options: ProduceOptions) -> list[str]:
    values = {
        "acks": options.acks,
        "enable.idempotence": None if options.idempotent is None else str(options.idempotent).lower(),
        "batch.size": options.batch_bytes,
        "message.max.bytes": options.request_bytes,
    }
    settings = [] if options.compression is None else ["-z", options.compression]
    for name, value in values.items():
        settings += [] if value is None else ["-X", f"{name}={value}"]
    return settings


def _shape(record: Record) -> tuple[int | None, tuple[Header, ...], bool, bool]:
    """The properties that all records of one kcat share: partition, headers, and whether key and value are null."""
    return record.partition, record.headers, record.key is not None, record.value is None


def _input(record: Record) -> bytes:
    key = b"" if record.key is None else record.key + KEY_END
    return key + (record.value or b"")


def _escaped(delimiter: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in delimiter)


def _parse(output: IO[bytes]) -> Iterator[Record]:
    """Parse records from kcat's output by OUTPUT_FORMAT, until it ends; a record that the end cuts off is left out."""
    while (numbers := output.readline()).endswith(b"\n"):
        partition, offset, timestamp, key_length, value_length = (int(n) for n in numbers.split())
        headers = output.readline().rstrip(b"\n")
        key = output.read(max(key_length, 0))
        value = output.read(max(value_length, 0))
        if output.read(1) != b"\n":
            return
        yield Record(
            key=None if key_length < 0 else key,
            value=None if value_length < 0 else value,
            headers=tuple(_header(text) for text in headers.split(b",")) if headers else (),
            timestamp_ms=timestamp,
            partition=partition,
            offset=offset,
        )


def _header(text: bytes) -> Header:
    name, _, value = text.partition(b"=")
    return name.decode(), value
