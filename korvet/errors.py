"""The tree of korvet's own exceptions. Kafka's error codes are values (kio's ``ErrorCode``), not exceptions."""


class KorvetError(Exception):
    """The base of every exception that korvet raises on purpose. Its text is written for users."""


def forget_frames(error: BaseException) -> None:
    """Have an exception that was dealt with forget the frames that it and its causes came through.

    A future that failed holds its exception, and a frame that awaited it often holds the future. Only the collector
    frees such a circle, with all that the frames hold, and a front-end's collector seldom comes.
    """
    at: BaseException | None = error
    forgotten: set[int] = set()
    # ``raise error from error`` makes one its own cause.
    while at is not None and id(at) not in forgotten:
        forgotten.add(id(at))
        at.__traceback__ = None
        at = at.__cause__ or at.__context__


class ConfigError(KorvetError):
    """A flag, a config file or a setting is wrong. The text names it, the allowed values and the nearest name."""


class MalformedRequest(KorvetError):
    """A client's bytes are not a Kafka request. The connection closes, with one log line."""


class StoreError(KorvetError):
    """Redis answered with an error that is none of Kafka's outcomes: a broken contract or a corrupt key."""


class UnknownArguments(StoreError):
    """A function of Redis's library does not take the call's arguments: the library is of another version."""


class DamagedLog(StoreError):
    """A partition's keys hold data that korvet did not write. The log already has a line about it."""


class LostTier(DamagedLog):
    """Only a tier has records of a partition, and this front-end has no tier, or it is away, or Redis has no whole list
    of segments. Nothing begins anew there until that is restored."""


class StoreUnavailable(KorvetError):
    """Redis cannot be reached, is loading, or the connection was lost.

    ``outcome_unknown`` is true if the command had left this process: then Redis may or may not have applied it.
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class StoreRefusing(StoreUnavailable):
    """Redis answers but refuses all writes: its disk is full, or it has too few replicas (MISCONF, NOREPLICAS)."""


class NotCompared(StoreUnavailable):
    """Whether Redis has all of a partition that a tier has is being found out. The log gets a line if it has not."""


class SlotMoving(StoreUnavailable):
    """A cluster's slot is on its way to another node, and neither node applied the command."""


class StoreFull(KorvetError):
    """Redis is at maxmemory and refused a function that adds data (OOM)."""


class ValueTooLarge(KorvetError):
    """A value is larger than Redis takes; the command did not leave this process."""


class TooMany(KorvetError):
    """A namespace has as many groups as a setting allows."""


class Disconnect(KorvetError):
    """A request ends with its connection closed: so a producer that wants no answers (acks=0) learns of an error."""
