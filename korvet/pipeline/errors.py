"""Errors that the pipeline raises on purpose. Users see the text: what happened, why, and what to do."""

from __future__ import annotations

from korvet.errors import KorvetError


class PipelineError(KorvetError):
    """A job cannot go on, because of the broker, a topic, the lake or an option."""


class BrokerUnreachable(PipelineError):
    """No broker answers; trying again later may help."""


class UnknownTopic(PipelineError):
    """A named topic does not exist, or not any more."""
