"""What one request uses of its client's quotas, and the time for which its connection is then not read.

- Produce counts its bytes when it arrives, before it is started: later requests of the connection wait at once.
- Fetch and ShareFetch count the bytes of the records in their answers. A client that is over its quota gets no records.
- Time adds up the request's own steps in the front-end's thread, the threads that work for it (`korvet.store.threads`),
  and Redis's for the functions that the steps call (`Store.redis_s`). Other requests' steps in between do not count. As
  in Kafka, requests without an answer and logins use none.
- Other throttle times are the handler's, in the answer's field (`korvet.api.shared.mutations`).

Source: KafkaApis.handleProduceRequest, handleFetchRequest, ClientRequestQuotaManager; KIP-124, KIP-219
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from math import ceil
from time import thread_time
from typing import Any, Final, TypeVar

from korvet.api import Answer, Api
from korvet.api.shared.context import Context
from korvet.quotas.meters import Meters
from korvet.security.sasl import AUTHENTICATE_KEY, HANDSHAKE_KEY
from korvet.store.threads import COUNT_CPU_S
from korvet.wire.requests import Entity
from korvet.wire.schema import FETCH_KEY, PRODUCE_KEY, SHARE_FETCH_KEY
from korvet.wire.writer import Fields, Steps

T = TypeVar("T")

_MS: Final = 1000
_LONGEST_MS: Final = 2**31 - 1
_FETCHES: Final = (FETCH_KEY, SHARE_FETCH_KEY)
_UNTIMED: Final = (HANDSHAKE_KEY, AUTHENTICATE_KEY)


class Metering:
    """The use of one request."""

    __slots__ = ("_api", "_context", "_meter", "_meters", "_over_s", "_spent_s", "_throttle_s")

    def __init__(self, meters: Meters, api: Api, context: Context) -> None:
        self._meters = meters
        self._meter = meters.meter(context.principal, context.client_id)
        self._api = api
        self._context = context
        self._spent_s = 0.0
        self._over_s = 0.0
        """The time that a Fetch has to wait before it is served, or a ShareFetch before it gets records."""
        self._throttle_s = 0.0

    def arrived(self, size_bytes: int) -> float:
        """Count a request's bytes. Returns the time for which its connection is not read from now on."""
        limits = self._meter.produce
        if limits and self._api.key == PRODUCE_KEY:
            self._meters.consume(limits, size_bytes)
            self._throttle_s = self._meters.wait_s(limits)
        return self._throttle_s

    def handle(self, context: Context, request: Entity) -> Coroutine[Any, Any, Answer]:
        """The coroutine of a request's handler. A Fetch whose client is over the quota is not served."""
        if self._api.key in _FETCHES:
            self._over_s = self._meters.wait_s(self._meter.fetch)
            # A ShareFetch also acknowledges. Its handler finds the quota itself.
            if self._over_s and self._api.key == FETCH_KEY:
                return _ready({"responses": ()})
        return self._api.handle(context, request)

    def answered(self, answer: Fields) -> float:
        """Count an answer's bytes, and the time spent on it.

        :returns: the time for which its connection is not read from now on.
        """
        wait_s: float = max(self._over_s, answer.get("throttle_time", 0) / _MS)
        if self._api.key in _FETCHES and self._meter.fetch and not self._over_s:
            self._meters.consume(self._meter.fetch, _fetched_bytes(answer))
        limits = self._meter.request
        if limits and self._api.key not in _UNTIMED:
            self._meters.consume(limits, self._spent_s)
            wait_s = max(wait_s, min(self._meters.wait_s(limits), self._meters.window_s))
        self._throttle_s = max(self._throttle_s, wait_s)
        return wait_s

    def throttled(self, answer: Fields) -> Fields:
        """The answer with its throttle time."""
        if not self._throttle_s:
            return answer
        return {**answer, "throttle_time": min(ceil(self._throttle_s * _MS), _LONGEST_MS)}

    # ------------------------------------------------------------------ time

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Call a function for the request, and count its time."""
        if not self._meter.request:
            return function(*args)
        store = self._context.frontend.store
        began = thread_time() + store.redis_s
        try:
            return function(*args)
        finally:
            self._spent_s += thread_time() + store.redis_s - began
            # It may refer to an exception, whose frames refer to this one.
            del function, args

    def count_thread(self, spent_s: float) -> None:
        """Count the time of a thread at once: the thread may end after its client has left."""
        if self._api.key not in _UNTIMED:
            self._meters.consume(self._meter.request, spent_s)

    def write(self, steps: Steps) -> None:
        """Write a part of the answer. Its time counts for later answers: this one already shows its throttle time."""
        before_s = self._spent_s
        try:
            self.call(next, steps)
        finally:
            self.count_thread(self._spent_s - before_s)

    def timed(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """The same awaitable; the time of each step counts."""
        return _Timed(self, awaitable) if self._meter.request else awaitable


class _Timed:
    """An awaitable whose steps are calls of a request's `Metering`."""

    def __init__(self, metering: Metering, awaitable: Awaitable[Any]) -> None:
        self._metering = metering
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        step: Callable[[], Any] = steps.__next__
        COUNT_CPU_S.set(self._metering.count_thread)
        try:
            while True:
                waits_for = self._metering.call(step)
                try:
                    yield waits_for
                except BaseException as error:
                    step = partial(steps.throw, error)
                else:
                    step = steps.__next__
        except StopIteration as end:
            return end.value
        finally:
            COUNT_CPU_S.set(None)
            # An exception refers to this frame, which must not refer to it.
            del step


def _fetched_bytes(answer: Fields) -> int:
    """The bytes of the records in the answer to a Fetch or ShareFetch."""
    parts = (part for topic in answer["responses"] for part in topic["partitions"])
    return sum(len(buffer) for part in parts for buffer in part.get("records", ()))


async def _ready(answer: Answer) -> Answer:
    return answer
