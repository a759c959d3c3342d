"""Failures of changes of a share group's offsets, in Kafka's words (org.apache.kafka.common.protocol.Errors)."""

from __future__ import annotations

from typing import Any, Final

from korvet.codes import INVALID_GROUP_ID, NON_EMPTY_GROUP

UNKNOWN_TOPIC: Final = "This server does not host this topic-partition."
_WORDS: Final = {INVALID_GROUP_ID: "The configured groupId is invalid.", NON_EMPTY_GROUP: "The group is not empty."}


def failed(code: int, why: str | None) -> dict[str, Any]:
    """A code and its message."""
    return {"error_code": code, "error_message": why}


def group_failed(code: int, why: str | None = None) -> dict[str, Any]:
    """The failure of a whole request."""
    return {**failed(code, why or _WORDS.get(code)), "responses": ()}
