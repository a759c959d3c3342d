"""A broker's refusals and lost connections, in sentences with advice."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError

_NOBODY: Final = "no broker serves it for now: try again, and see the broker's log"
_FORBIDDEN: Final = "an administrator may allow it with: korvet acls add"
# The advice after an error's name.
_ADVICE: Final = {
    ErrorCode.coordinator_not_available: _NOBODY,
    ErrorCode.leader_not_available: _NOBODY,
    ErrorCode.not_controller: _NOBODY,
    ErrorCode.request_timed_out: _NOBODY,
    ErrorCode.group_id_not_found: "see all groups with: korvet groups list",
    ErrorCode.non_empty_group: "stop its consumers and try again",
    ErrorCode.unknown_topic_or_partition: "see all topics with: korvet topics list",
    ErrorCode.unknown_server_error: "the broker's log says why",
    ErrorCode.kafka_storage_error: "Redis takes no writes, or the tier cannot be read; the broker's log and "
    "'korvet doctor' say why",
    ErrorCode.topic_authorization_failed: _FORBIDDEN,
    ErrorCode.group_authorization_failed: _FORBIDDEN,
    ErrorCode.cluster_authorization_failed: _FORBIDDEN,
    ErrorCode.security_disabled: "access rules are off there; the broker's config file turns them on with "
    "authorizer.class.name",
}


class BrokerError(KorvetError):
    """A broker answered with a Kafka error code, or does not answer (then ``code`` is None)."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class ConnectionLost(BrokerError):
    """The connection broke before the answer: the broker may have served the request."""


class UnfitSettings(BrokerError):
    """The client's TLS or login is not what the listener wants, or the other way round: trying again does not help."""


def error_name(code: ErrorCode) -> str:
    """An error's name as Kafka spells it."""
    return code.name.upper()


def check(code: ErrorCode, what: str, message: str | None = None) -> None:
    """Raise a broker's code and message about ``what``, with advice if there is some.

    :raises BrokerError: if the code is not NONE.
    """
    if code is not ErrorCode.none:
        text = f"{what}: {error_name(code)}" + (f": {message}" if message else "")
        raise BrokerError(f"{text.rstrip('.')}; {_ADVICE[code]}" if code in _ADVICE else text, code)
