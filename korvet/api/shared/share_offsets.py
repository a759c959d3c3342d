"""What changes of a share group's offsets have in common: the rights, and failures in Kafka's words.

Source: org.apache.kafka.common.protocol.Errors
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from korvet.api.shared import needs
from korvet.codes import INVALID_GROUP_ID, NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION
from korvet.security.acl import Operation
from korvet.wire.writer import Fields

_WORDS: Final = {
    INVALID_GROUP_ID: "The configured groupId is invalid.",
    NON_EMPTY_GROUP: "The group is not empty.",
    UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
}


def check(operation: Operation, refused: Callable[[Any], Fields]) -> needs.Needs:
    """A check of an operation on the group, and of READ on each topic."""
    return needs.every(
        needs.group(operation, needs.failed(needs.GROUP, responses=())),
        needs.items(
            needs.TOPIC,
            needs.READ,
            field="topics",
            answered="responses",
            refused=refused,
            name=lambda topic: topic.topic_name,
            is_whole=True,
        ),
    )


def failed(code: int, why: str | None = None) -> dict[str, Any]:
    """A code and its message."""
    return {"error_code": code, "error_message": why or _WORDS.get(code)}


def answered(responses: Sequence[Fields] = (), code: int = 0, why: str | None = None) -> Fields:
    """The answer, or the failure of a whole request."""
    return {**failed(code, why), "responses": responses}
