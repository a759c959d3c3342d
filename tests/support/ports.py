"""Ports for servers that need a port's number before they start, which no other process takes meanwhile.

They lie below the range from which systems give out ports, also to connections. So do the ports 10,000 above, on which
the nodes of a Redis cluster talk to each other. Each process that runs tests in parallel has a share, and takes its
ports in turn.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import ExitStack
from typing import Final

FIRST: Final = 10_000
BEHIND_LAST: Final = 20_000
"""The end of the range. Linux gives out ports itself from 32,768 on; macOS and others begin higher."""
ATTEMPTS: Final = 1000


def share(worker: str, workers: int) -> range:
    """The ports of a process that pytest-xdist calls ``gw0`` and so on. One behind the last replaces a dead one."""
    size = (BEHIND_LAST - FIRST) // workers
    first = FIRST + int(worker.removeprefix("gw")) % workers * size
    return range(first, first + size)


_SHARE: Final = share(
    os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
)
# Tests of another clone may run at the same time.
_turns: Final = itertools.count(random.randrange(len(_SHARE)))


def free_port() -> int:
    """A TCP port of 127.0.0.1 without a listener."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row. Raises OSError if there are none."""
    for _ in range(ATTEMPTS):
        turns = [next(_turns) % len(_SHARE) for _ in range(count)]
        if turns[-1] == turns[0] + count - 1 and _are_free(_SHARE[turns[0] : turns[-1] + 1]):
            return _SHARE[turns[0]]
    raise OSError(f"no {count} free ports in a row from {_SHARE[0]} to {_SHARE[-1]}")


def _are_free(ports: range) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True
