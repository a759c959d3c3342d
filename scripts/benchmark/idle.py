"""Idle namespaces: the processor time and memory that they cost four workers which serve them to no client.

A fixed namespace has a listener of its own and is open all the time; a tenant is opened by its first client.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ulid import ULID

from korvet.cli.redis.connections import call_function, open_nodes
from korvet.store.keys import TENANTS
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
_FIXED: Final = """
[[listener]]
listen = "127.0.0.1:{port}"
namespace = "idle-{number}"
"""
_TENANTS: Final = """
[[listener]]
listen = "127.0.0.1:{port}"
namespace-from = "principal"
security = "sasl_plaintext"
sasl = ["SCRAM-SHA-256"]
"""


class Cost(NamedTuple):
    """The cost of some namespaces; ``busy`` is a share of one processor, Redis's part included."""

    what: str
    busy: float
    of_redis: float
    memory_mb: float

    def line(self) -> str:
        """The figures as text."""
        return (
            f"{self.what}, {WORKERS} workers: {100 * self.busy:.2f} % of a processor, {100 * self.of_redis:.2f} of it "
            f"Redis; {self.memory_mb:.0f} MB in all processes"
        )


def run(
    namespaces: Sequence[int] = (1, 1000),
    tenants: Sequence[int] = (0, 1000),
    settles_s: float = SETTLES_S,
    measured_s: float = MEASURED_S,
) -> Iterator[Cost]:
    """Start korvet with each number of fixed namespaces and of tenants, let them rest, and measure."""
    for count in namespaces:
        first = free_ports(count)
        listeners = "".join(_FIXED.format(port=first + number, number=number) for number in range(count))
        yield _measure(f"{count} fixed namespaces", listeners, 0, settles_s, measured_s)
    for count in tenants:
        listeners = _TENANTS.format(port=free_ports(1))
        yield _measure(f"{count} tenants", listeners, count, settles_s, measured_s)


def _measure(what: str, listeners: str, tenants: int, settles_s: float, measured_s: float) -> Cost:
    with tempfile.TemporaryDirectory(prefix="korvet-bench-") as name:
        directory = Path(name)
        data, config = directory / "data", directory / "korvet.toml"
        config.write_text(_SERVE.format(workers=WORKERS, data=data) + listeners)
        with korvet_of(config, directory, _READY_WITHIN_S) as pid:
            _create(tenants, f"unix://{data}/valkey.sock")
            time.sleep(settles_s)
            before = processor_times([pid])
            time.sleep(measured_s)
            used = spent(before, processor_times([pid]))
            total_s = sum(role.total_s for role in used.values())
            of_redis_s = used.get("Redis", NONE).total_s
            return Cost(what, total_s / measured_s, of_redis_s / measured_s, resident_mb([pid]))


def _create(tenants: int, redis_url: str) -> None:
    with open_nodes(redis_url) as nodes:
        for number in range(tenants):
            code, _ = call_function(
                nodes, "korvet_tenant_create", TENANTS.tenants,
                name=f"idle-{number}", id=str(ULID()), limits="{}", super_users="",
            )  # fmt: skip
            assert code == 0, code
