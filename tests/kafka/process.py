"""Clients in driver processes that speak JSON lines; `tests/kafka/drivers/__init__.py` lists the commands."""

import contextlib
import copy
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.kafka.client import At, Client, ClientError, Member, Offsets, Position, Reader, Start
from tests.kafka.options import MemberOptions, Outcome, ProduceOptions
from tests.kafka.records import Record
from tests.kafka.waiting import TIMEOUT_S, announce, wait_until

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 60.0
# A command's own waits last at most a minute; the rest is for a busy machine.
COMMAND_TIMEOUT_S = 180.0


class Driver:
    """One driver process. A thread reads its output until it ends."""

    def __init__(self, command: Sequence[str], on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._on_event = on_event
        self._answers: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._ready = False
        self._ended = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the other streams)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            cwd=ROOT,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                # The process was killed while it wrote.
                break
            message = json.loads(line)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message["event"] == "ready":
                self._ready = True
            elif self._on_event is not None:
                self._on_event(message)
            announce()
        self._ended = True
        announce()

    def call(self, op: str, **arguments: Any) -> Any:
        """Run a command. Raises ClientError if the client fails, and TimeoutError."""
        self._await(lambda: self._ready, "the driver to start")
        self._last_id += 1
        number = self._last_id
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        self._await(lambda: number in self._answers, f"an answer to {op}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ClientError(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self._ended, what, COMMAND_TIMEOUT_S)
        if not condition():
            raise ClientError(-1, f"the driver ended while it was to give {what}: {self._last_words()}")

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def kill(self) -> None:
        self._process.kill()
        self._finish()

    def stop(self) -> int:
        """End stdin, wait for the process, and return its exit code. A process that does not end is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._finish()

    def _finish(self) -> int:
        code = self._process.wait()
        self._reading.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        return code


class ProcessReader(Reader):
    """The consumer that `open` began in the driver; a driver has one at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def read(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Record]:
        found = self._driver.call("read", count=count, timeout_ms=int(timeout_s * 1000))
        return [Record.from_json(data) for data in found]

    def close(self) -> None:
        self._driver.call("close")


class ProcessMember(Member):
    """A driver process of its own whose client is in a group."""

    def __init__(self, command: Sequence[str], group: str, topic: str, options: MemberOptions) -> None:
        super().__init__()
        self._driver = Driver(command, self._on_event)
        try:
            self._driver.call("join", group=group, topic=topic, options=asdict(options))
        except BaseException:
            self._driver.kill()
            raise

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "assignment":
            self.seen.assignment = event["partitions"]
            self.seen.assignments += 1
        elif event["event"] == "record":
            self.seen.records.append(Record.from_json(event["record"]))
        else:
            self.seen.troubles.append(event["message"])

    @property
    def alive(self) -> bool:
        return self._driver.alive

    def commit(self) -> None:
        self._driver.call("commit")

    def pause(self, partitions: Sequence[int]) -> None:
        self._driver.call("pause", partitions=list(partitions))

    def resume(self, partitions: Sequence[int]) -> None:
        self._driver.call("resume", partitions=list(partitions))

    def seek(self, partition: int, position: Position) -> None:
        self._driver.call("seek", partition=partition, position=position)

    def leave(self) -> None:
        try:
            self._driver.call("leave")
        finally:
            code = self._driver.stop()
        if code != 0:
            raise ClientError(-1, f"the member ended with {code}")

    def kill(self) -> None:
        self._driver.kill()


class ProcessClient(Client):
    """A client whose driver lives as long as the session; its group members are separate processes."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.protocol = "classic"
        self._command = command
        self._driver = Driver(command)

    def speaking(self, protocol: str) -> "ProcessClient":
        """The same client and driver, with members that speak this group protocol."""
        other = copy.copy(self)
        other.protocol = protocol
        return other

    def produce(self, topic: str, records: list[Record], options: ProduceOptions | None = None) -> list[Outcome]:
        data = [record.to_json() for record in records]
        answers = self.call("produce", topic=topic, records=data, options=asdict(options or ProduceOptions()))
        return [Outcome(**answer) for answer in answers]

    def open(self, topic: str, start: Start) -> Reader:
        self.call("open", topic=topic, start=_start(start))
        return ProcessReader(self._driver)

    def join(self, group: str, topic: str, options: MemberOptions | None = None) -> Member:
        options = replace(options or MemberOptions(), protocol=self.protocol)
        if self.protocol == "consumer" and options.session_timeout_ms is not None:
            # In the consumer protocol the broker sets the session, from a config of the group.
            self.configure_group(group, {"consumer.session.timeout.ms": str(options.session_timeout_ms)})
            options = replace(options, session_timeout_ms=None)
        return ProcessMember(self._command, group, topic, options)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return {int(p): offset for p, offset in self.call("committed", group=group, topic=topic).items()}

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        self.call("create_topic", topic=topic, partitions=partitions, configs=dict(configs or {}))

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)

    def topics(self) -> list[str]:
        names: list[str] = self.call("topics")
        return names

    def set_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.call("set_offsets", group=group, topic=topic, offsets=_by_name(offsets))

    def configure_group(self, group: str, configs: Mapping[str, str]) -> None:
        """Set configs of a group, which need not exist; only clients that know the consumer protocol do this."""
        self.call("configure_group", group=group, configs=dict(configs))

    def call(self, op: str, **arguments: Any) -> Any:
        return self._driver.call(op, **arguments)

    def stop(self) -> None:
        self._driver.stop()


class Administrator(ProcessClient):
    """The suite's own administration, by confluent-kafka: commands that some clients' drivers lack."""

    def produce(self, topic: str, records: list[Record], options: ProduceOptions | None = None) -> list[Outcome]:
        """Write each record once. A producer that is not idempotent writes a record again if its answer is lost."""
        return super().produce(topic, records, options or ProduceOptions(idempotent=True))

    def topic_id(self, topic: str) -> str:
        """The topic's id. Raises ClientError with UNKNOWN_TOPIC_OR_PARTITION (3)."""
        return str(self.call("topic_id", topic=topic))

    def serves(self, topic: str, partitions: int) -> bool:
        """Whether every partition has a leader that answers; in Kafka a listed topic may lack leaders for a moment."""
        return bool(self.call("serves", topic=topic, partitions=partitions))

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Move the start of partitions up to these offsets."""
        self.call("delete_records", topic=topic, offsets=_by_name(offsets))


def _start(start: Start) -> Any:
    if isinstance(start, At):
        return {"timestamp": start.timestamp_ms}
    if isinstance(start, Offsets):
        return {"offsets": _by_name(start.by_partition)}
    return start


def _by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}
