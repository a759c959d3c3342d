"""The command loop of the Python drivers: JSON lines in, JSON lines out."""

import json
import queue
import sys
import threading
from typing import Any, Protocol

from tests.kafka.records import Record

Command = dict[str, Any]


class Driver(Protocol):
    """A blocking driver with a method `op_<name>` for each command, which takes the command's arguments by name."""

    @property
    def is_member(self) -> bool:
        """Whether `poll_member` has anything to do."""

    def poll_member(self) -> None:
        """Let the group member work for a fraction of a second, and emit its events."""

    def shut(self) -> None:
        """Close the reader and the member, if they are open."""


def emit(event: str, **fields: Any) -> None:
    """Write one event."""
    write_line({"event": event, **fields})


def emit_record(record: Record) -> None:
    emit("record", record=record.to_json())


def write_line(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _read_commands(into: "queue.SimpleQueue[Command | None]") -> None:
    """Put each line of stdin into the queue, and None at its end. Blocks until then."""
    for line in sys.stdin:
        into.put(json.loads(line))
    into.put(None)


def serve(driver: Driver, error_code: Any) -> None:
    """Run commands until stdin ends. `error_code(exception)` gives Kafka's error code, or -1."""
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    emit("ready")
    while True:
        if driver.is_member and commands.empty():
            _poll(driver)
            continue
        command = commands.get()
        if command is None:
            driver.shut()
            return
        _answer(driver, command, error_code)


def _poll(driver: Driver) -> None:
    try:
        driver.poll_member()
    except Exception as error:
        emit("trouble", message=f"{type(error).__name__}: {error}")


def _answer(driver: Driver, command: Command, error_code: Any) -> None:
    id, op = command.pop("id"), command.pop("op")
    try:
        write_line({"id": id, "result": getattr(driver, f"op_{op}")(**command)})
    except Exception as error:
        failure = {"code": error_code(error), "message": f"{type(error).__name__}: {error}"}
        write_line({"id": id, "error": failure})
