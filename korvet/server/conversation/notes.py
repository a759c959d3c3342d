"""A request's notes for metrics and traces; none without metrics and tracing."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from korvet.metrics.requests import RequestFigures
from korvet.server.ground.tracing import Trace

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode


class Notes:
    """The notes of one request, made when it arrives."""

    __slots__ = ("_arrived_at", "_figures", "_sent_bytes", "metering", "trace")

    def __init__(self, figures: RequestFigures | None = None, trace: Trace | None = None) -> None:
        self._arrived_at = monotonic()
        self._figures = figures
        self._sent_bytes = 0
        self.trace = trace
        """What its span needs; None without tracing."""

    def sent(self, size_bytes: int) -> None:
        """Note the bytes of the answer."""
        self._sent_bytes = size_bytes

    def answered(self, codes: Sequence[int]) -> None:
        """Count the error codes of an answer, and note one for its trace."""
        if self.trace is not None:
            self.trace.code = int(codes[0])
        if self._figures is not None:
            self._figures.failed(codes)

    def failed(self, code: ErrorCode) -> None:
        """Note the code of a handler's exception."""
        if self._figures is not None:
            self._figures.failed((code,))
        if self.trace is not None:
            self.trace.code = code

    def ended(self, charged_bytes: int) -> None:
        """Count the request, whose answer was written."""
        if self._figures is not None:
            self._figures.answered(monotonic() - self._arrived_at, charged_bytes, self._sent_bytes)
