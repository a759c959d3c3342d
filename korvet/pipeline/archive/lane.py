"""One of the topics that an archive writes at a time: its work, and its failures."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import structlog

from korvet.pipeline.archive.topic import TopicArchive
from korvet.pipeline.errors import Passing, PipelineError
from korvet.pipeline.plan.batch import Ends
from korvet.pipeline.plan.table import Overtaken
from korvet.pipeline.tries import Tries

log = structlog.get_logger()


class Lane:
    """A topic's archive, the ends that it has to reach, and its failures in a row.

    :param is_endless: the archive continues after it has reached the ends.
    """

    def __init__(self, archive: TopicArchive, *, is_endless: bool) -> None:
        self.archive, self._is_endless = archive, is_endless
        self._tries = Tries()
        self._wanted: Ends | None = None
        self._is_through = False
        self.running: Future[bool] | None = None
        self.error: PipelineError | None = None
        self.behind: int | None = None
        """Offsets from the lake's end to the broker's newest known end; None before a first batch."""

    @property
    def topic(self) -> str:
        return self.archive.topic

    @property
    def is_alive(self) -> bool:
        """True if there is work to come, without regard to failures that stay."""
        return self.running is not None or not (self._is_through or self._has_failed)

    @property
    def needs_ends(self) -> bool:
        """True if the topic's ends must be requested from the broker."""
        return not self._is_through and self._wanted is None

    def want(self, ends: Ends | PipelineError) -> None:
        """Take the broker's answer."""
        if isinstance(ends, PipelineError):
            if self._tries.is_due:
                self.fail(ends)
        elif not self.archive.has(ends):
            self._wanted, self.behind = ends, self.archive.lacks(ends)
        else:
            self.behind = 0
            self._succeed(wrote=False)

    def begin(self, pool: Executor, *, others_go_on: bool) -> None:
        """Submit the next batch, if one is due."""
        if self._is_through or self._wanted is None or self.running is not None or not self._tries.is_due:
            return
        if self._has_failed and not (others_go_on and self._may_come_back):
            return
        self.running = pool.submit(self.archive.go_on, self._wanted)

    def collect(self) -> None:
        """Take the outcome of a batch that has ended."""
        if self.running is None or not self.running.done():
            return
        running, self.running = self.running, None
        try:
            self._succeed(wrote=running.result())
        except PipelineError as error:
            self.fail(error)

    def fail(self, error: PipelineError) -> None:
        """Note a failure, and log when the next try comes."""
        self.error = error
        wait_s = self._tries.fail()
        again = {} if self._has_failed and not self._may_come_back else {"again_in_s": wait_s}
        log.error("archive failed", topic=self.topic, reason=str(error), **again)
        if self.archive.is_kept and error is not self.archive.typed_error:
            log.critical(
                "alarm: the broker keeps this topic until an archive goes on (korvet.retention=archived)",
                topic=self.topic,
            )

    def _succeed(self, *, wrote: bool) -> None:
        self._tries.succeed()
        self.error = None
        if self._wanted is not None:
            self.behind = self.archive.lacks(self._wanted)
        if self._is_endless:
            self._wanted = None
        elif not wrote or self._wanted is None or self.archive.has(self._wanted):
            self._is_through = True

    @property
    def _has_failed(self) -> bool:
        """True if the failure stays, as far as is known."""
        return self.error is not None and (not isinstance(self.error, Passing) or self._tries.are_used_up)

    @property
    def _may_come_back(self) -> bool:
        """True if the topic is tried again beside others. Two archives of one topic would take turns for ever."""
        return self._is_endless and not isinstance(self.error, Overtaken)
