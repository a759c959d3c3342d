"""A korvet that notes when bytes pass its sockets: ``python -m scripts.benchmark.stamped FILE serve …``.

The notes are kept in memory and written to the file when the process ends, as JSON: ``[monotonic_ns, step, port]``. The
port is the client's, or 0 for Redis. A note costs less than half a microsecond.
"""

import atexit
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from korvet.cli import main
from korvet.redis.resp import Connection as RedisConnection
from korvet.server.conversation.answers import Answers
from korvet.server.conversation.connection import Connection

ARRIVED: Final = "arrived"
ASKED: Final = "asked"
REPLIED: Final = "replied"
ANSWERED: Final = "answered"

_notes: list[tuple[int, str, int]] = []


def _noted(owner: Any, name: str, step: str, port: Callable[[Any], int], *, before: bool) -> None:
    """Have a method note the time before its work, or after it."""
    original = getattr(owner, name)
    note = _notes.append

    def passed(self: Any, *arguments: Any) -> Any:
        at = time.monotonic_ns()
        result = original(self, *arguments)
        note((at if before else time.monotonic_ns(), step, port(self)))
        return result

    setattr(owner, name, passed)


def _of_redis(_connection: object) -> int:
    return 0


def _of_client(connection: Connection) -> int:
    transport = connection.transport
    return 0 if transport is None else int(transport.get_extra_info("peername")[1])


def _of_answers(answers: Answers) -> int:
    return 0 if answers.transport is None else int(answers.transport.get_extra_info("peername")[1])


def run(file: Path) -> None:
    """Serve, and write the notes at the end."""
    _noted(Connection, "buffer_updated", ARRIVED, _of_client, before=True)
    _noted(RedisConnection, "_flush", ASKED, _of_redis, before=True)
    _noted(RedisConnection, "buffer_updated", REPLIED, _of_redis, before=True)
    _noted(Answers, "flush", ANSWERED, _of_answers, before=True)
    atexit.register(lambda: file.write_text(json.dumps(_notes)))
    main()


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
