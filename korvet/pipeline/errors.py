"""What the pipeline raises on purpose. Each text says what happened, why, and what to do, and is shown as it is."""

from __future__ import annotations

from korvet.errors import KorvetError


class PipelineError(KorvetError):
    """A job cannot go on: the broker, a topic, the lake or an option is not as it must be."""


class BrokerUnreachable(PipelineError):
    """No broker answers; trying again later may help."""


class UnknownTopic(PipelineError):
    """A topic that was asked for does not exist, or not any more."""
