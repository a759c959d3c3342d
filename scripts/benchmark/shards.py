"""The work of each server of a cluster: its processor time, and its function calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.redis import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Processor seconds and function calls of a server, since its start or between two readings."""

    processor_s: float
    calls: int

    def since(self, before: Done) -> Done:
        return Done(processor_s=self.processor_s - before.processor_s, calls=self.calls - before.calls)


def done_by(servers: Sequence[Server]) -> list[Done]:
    """The work of each server since its start."""
    return [_done_by(server) for server in servers]


def _done_by(server: Server) -> Done:
    with server.client() as client:
        times, calls = client.info("cpu"), client.info("commandstats")
    return Done(
        processor_s=float(times["used_cpu_user"]) + float(times["used_cpu_sys"]),
        calls=int(calls.get("cmdstat_fcall", {"calls": 0})["calls"]),
    )


def cost_us(done: Sequence[Done]) -> float:
    """Microseconds of processor time for each call, all servers together."""
    return 1e6 * sum(one.processor_s for one in done) / max(1, sum(one.calls for one in done))


def largest_part(done: Sequence[Done]) -> float:
    """The busiest server's part of all calls, from 0 to 1."""
    return max(one.calls for one in done) / max(1, sum(one.calls for one in done))
