"""The tree of korvet's own exceptions. Kafka's error codes are values (kio's ``ErrorCode``), not exceptions."""


class KorvetError(Exception):
    """Base of every exception korvet raises on purpose; its text is fit to be shown to a user."""


class ConfigError(KorvetError):
    """A flag, a config file or a setting is wrong. Says what, where, what is allowed and the nearest name."""


class MalformedRequest(KorvetError):
    """Bytes from a client are not a Kafka request; the connection is closed with one log line."""


class StoreError(KorvetError):
    """Redis answered with an error that is not one of Kafka's outcomes (a broken contract or a corrupt state)."""


class StoreUnavailable(KorvetError):
    """Redis cannot be reached, is loading, or the connection was lost.

    ``outcome_unknown`` is true when the command had left this process, so that it may or may not have been applied.
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class SlotMoving(StoreUnavailable):
    """A cluster's slot is on its way to another node, and the command was not applied at either."""


class StoreFull(KorvetError):
    """Redis is at maxmemory and refused a function that adds data (OOM)."""


class Disconnect(KorvetError):
    """The connection is to be closed without an answer: how one who asked for none (acks=0) learns of an error."""
