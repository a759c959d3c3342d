"""Ports for servers that need a port's number before they start, which no other process takes meanwhile.

They lie below the range from which systems give out ports, also to connections. So do the ports 10,000 above, on which
the nodes of a Redis cluster talk to each other. Each process that runs tests, of this clone or of another one, locks a
block of ports as long as it lives, and takes them in turn.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
BEHIND_LAST: Final = 20_000
"""The end of the range. Linux gives out ports itself from 32,768 on; macOS and others begin higher."""
BLOCK: Final = 200
ATTEMPTS: Final = 1000


def free_port() -> int:
    """A TCP port of 127.0.0.1 without a listener."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row. Raises OSError if there are none."""
    block, turns = _block()
    for _ in range(ATTEMPTS):
        taken = [next(turns) % len(block) for _ in range(count)]
        if taken[-1] == taken[0] + count - 1 and _are_free(block[taken[0] : taken[-1] + 1]):
            return block[taken[0]]
    raise OSError(f"no {count} free ports in a row from {block[0]} to {block[-1]}")


@functools.cache
def _block() -> tuple[range, Iterator[int]]:
    """This process's ports, and the turns in which it takes them. Raises OSError if other processes have all."""
    locks = Path(tempfile.gettempdir()) / f"korvet-test-ports-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    blocks = range(FIRST, BEHIND_LAST, BLOCK)
    for first in random.sample(blocks, len(blocks)):
        # The file is closed, and so the lock ends, with the process and not before.
        held = os.open(locks / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            continue
        return range(first, first + BLOCK), itertools.count(random.randrange(BLOCK))
    raise OSError(f"{len(blocks)} other processes run tests, and each has a block of ports ({locks})")


def _are_free(ports: range) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True
