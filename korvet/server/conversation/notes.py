"""What is noted of a request for figures, traces and quotas. If nobody wants any of them, a request has no notes."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from korvet.api import Answer
from korvet.metrics.requests import RequestFigures
from korvet.server.conversation.metering import Metering
from korvet.server.ground.tracing import Trace
from korvet.wire.codec import Buffers, Refusals

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
        self.metering: Metering | None = None
        """What it uses of its client's quotas; None if the namespace has none."""

    def told(self, frame: Buffers) -> Buffers:
        """A response frame that tells the throttle time."""
        return frame if self.metering is None else self.metering.told(frame)

    def sent(self, size_bytes: int) -> None:
        """Note the bytes of the answer."""
        self._sent_bytes = size_bytes

    def answered(self, answer: Answer) -> None:
        """Count the error codes of an answer, and note one for its trace."""
        if self.trace is not None:
            self.trace.note(answer)
        if self._figures is None:
            return
        if isinstance(answer, list):
            if isinstance(answer, Refusals):
                self._figures.failed(answer.codes)
        elif answer is not None:
            self._figures.look_for_errors(answer)

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
