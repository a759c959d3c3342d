"""A supervisor's view of its workers: their last metrics, and whether they serve.

The board adds up the workers' metrics. When a worker ends, its counters stay and its gauges go, so sums never decrease;
a killed worker loses the counts of its last second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog

from korvet.metrics.clients import Clients, Pushed
from korvet.metrics.lags import Lags
from korvet.metrics.samples import Samples

log = structlog.get_logger()

_LATELY_S: Final = 5.0
"""A worker that has been silent for longer does not serve now."""
_DEAD_S: Final = 30.0
"""A worker that has been silent for longer does not recover by itself."""


@dataclass(slots=True)
class _Worker:
    heard_at: float
    samples: Samples
    problem: str = ""
    turns: frozenset[str] = frozenset()
    accepts: bool = False


class Board:
    """The workers of one supervisor, by number.

    :param workers: their number.
    :param is_draining: whether they take no more clients.
    :param clients: the metrics that clients pushed to them.
    """

    def __init__(self, workers: int, is_draining: Callable[[], bool], clients: Clients) -> None:
        self.clients = clients
        self.lags = Lags()
        self._is_draining = is_draining
        self._of_redis = Samples()
        self._most = workers
        self._workers: dict[int, _Worker] = {}
        self._ended = Samples()
        self._restarts = 0

    # ------------------------------------------------------------------ written by the supervisor

    def started(self, number: int) -> None:
        """Note that a worker was started."""
        self._workers[number] = _Worker(monotonic(), Samples())

    def accepts(self, number: int) -> None:
        """Note that a worker accepts connections."""
        self._workers[number].accepts = True
        self._workers[number].heard_at = monotonic()

    def heard(self, number: int, line: bytes) -> None:
        """Take a line of a worker's metrics, as `korvet.server.processes.figures` writes it."""
        worker = self._workers[number]
        try:
            message = json.loads(line)
            worker.samples = Samples.from_json(message["samples"])
            worker.problem, worker.turns = str(message["problem"]), frozenset(message["turns"])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            log.error("a worker's figures cannot be read", worker=number, reason=str(error))
        worker.heard_at = monotonic()

    def pushed_by(self, number: int, line: bytes) -> None:
        """Take a client's push to a worker, as `korvet.server.tenants.telemetry_receiver` writes it."""
        try:
            self.clients.update(json.loads(line))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            log.error("a client's metrics cannot be read", worker=number, reason=str(error))

    def ended(self, number: int, *, is_restarted: bool) -> None:
        """Note that a worker ended."""
        worker = self._workers.pop(number, None)
        if worker is not None:
            self._ended.add(worker.samples, only_added=True)
        self._restarts += is_restarted

    def set_redis_samples(self, parts: Iterable[Samples]) -> None:
        """Take the metrics that this process read from Redis."""
        self._of_redis = Samples()
        for samples in parts:
            self._of_redis.add(samples)

    # ------------------------------------------------------------------ read by others

    @property
    def turns(self) -> Set[str]:
        """The namespaces that a worker of this supervisor has the turn to sweep."""
        return frozenset[str]().union(*(worker.turns for worker in self._workers.values()))

    def samples(self) -> Samples:
        """All metrics, as of now."""
        samples = Samples()
        samples.add(self._ended)
        now = monotonic()
        for number, worker in self._workers.items():
            samples.add(worker.samples)
            samples.set("korvet_worker_silent_seconds", now - worker.heard_at, str(number))
        samples.add(self._of_redis)
        self.clients.add_to(samples)
        samples.set("korvet_workers", self._most)
        samples.set("korvet_workers_up", sum(worker.accepts for worker in self._workers.values()))
        samples.set("korvet_worker_restarts_total", self._restarts)
        return samples

    def pushed(self) -> Pushed:
        """The series that clients pushed, as of now."""
        return self.clients.pushed()

    def death(self) -> str:
        """Why the process tree has to be restarted, in lines; empty if it lives."""
        return "\n".join(
            f"worker {number} has been silent for {silent_s:.0f} s"
            for number, worker in self._workers.items()
            if (silent_s := monotonic() - worker.heard_at) > _DEAD_S and worker.accepts
        )

    def unreadiness(self) -> str:
        """Why clients should go elsewhere, in lines; empty if some worker serves them."""
        if self._is_draining():
            return "draining"
        problems = [f"worker {number}: {self._problem(worker)}" for number, worker in self._workers.items()]
        if any(not self._problem(worker) for worker in self._workers.values()):
            return ""
        return "\n".join(problems) or "starting: no front-end runs yet"

    def _problem(self, worker: _Worker) -> str:
        if not worker.accepts:
            return "starting"
        silent_s = monotonic() - worker.heard_at
        return f"silent for {silent_s:.0f} s" if silent_s > _LATELY_S else worker.problem
