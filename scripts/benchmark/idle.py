"""Idle namespaces: the processor time and memory that they cost four workers which serve them to no client."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scripts.benchmark.processes import NONE, processor_times, resident_mb, spent
from scripts.benchmark.targets import korvet_of
from tests.support.ports import free_ports

WORKERS: Final = 4
SETTLES_S: Final = 180.0
"""After this time each namespace has been found idle, and looked at for the first time by each sweep."""
MEASURED_S: Final = 240.0
"""Two renewals of an idle lease."""
_READY_WITHIN_S: Final = 600.0
_SERVE: Final = """
[serve]
workers = {workers}
data-dir = "{data}"
"""
_LISTENER: Final = """
[[listener]]
listen = "127.0.0.1:{port}"
namespace = "idle-{number}"
"""


class Cost(NamedTuple):
    """What some idle namespaces cost; ``busy`` is a share of one processor, Redis's part included."""

    namespaces: int
    busy: float
    of_redis: float
    memory_mb: float

    def line(self) -> str:
        """The figures as text."""
        return (
            f"{self.namespaces} idle namespaces, {WORKERS} workers: {100 * self.busy:.2f} % of a processor, "
            f"{100 * self.of_redis:.2f} of it Redis; {self.memory_mb:.0f} MB"
        )


def run(
    namespaces: Sequence[int] = (1, 1000), settles_s: float = SETTLES_S, measured_s: float = MEASURED_S
) -> list[Cost]:
    """Start korvet with each number of namespaces, let them rest, and measure."""
    return [_measure(count, settles_s, measured_s) for count in namespaces]


def _measure(namespaces: int, settles_s: float, measured_s: float) -> Cost:
    with tempfile.TemporaryDirectory(prefix="korvet-bench-") as name:
        directory, first = Path(name), free_ports(namespaces)
        listeners = (_LISTENER.format(port=first + number, number=number) for number in range(namespaces))
        config = directory / "korvet.toml"
        config.write_text(_SERVE.format(workers=WORKERS, data=directory / "data") + "".join(listeners))
        with korvet_of(config, directory, _READY_WITHIN_S) as pid:
            time.sleep(settles_s)
            before = processor_times([pid])
            time.sleep(measured_s)
            used = spent(before, processor_times([pid]))
            total_s = sum(role.total_s for role in used.values())
            return Cost(
                namespaces, total_s / measured_s, used.get("Redis", NONE).total_s / measured_s, resident_mb([pid])
            )
