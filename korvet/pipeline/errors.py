"""Errors that the pipeline raises on purpose. Users see the text: what happened, why, and what to do."""

from __future__ import annotations

from korvet.errors import KorvetError


class PipelineError(KorvetError):
    """A job cannot go on, because of the broker, a topic, the lake or an option."""


class Passing(PipelineError):
    """The cause may be gone in a moment: the same work may succeed if it is done again."""


class BrokerUnreachable(Passing):
    """No broker answers."""


class ProcessDied(Passing):
    """A process of Spark died, or did not start in time."""


class UnknownTopic(PipelineError):
    """A named topic does not exist, or no longer does."""
