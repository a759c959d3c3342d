"""The states of a connection, without I/O.

An `Event` takes a connection from one `State` to the next, by a table. Independently of that, each `Pause` stops some
of its work for a while. A `Conversation` has both, and says if the connection may read, take a frame, begin a request
or answer one. `korvet.server.conversation.connection` reports to it, and obeys. A load balancer's header and TLS come
before: `korvet.server.socket_server.arrival` awaits them on the bare socket.

The model is h11's ``_state.py``: everything that decides these things is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntFlag, auto
from types import MappingProxyType
from typing import Final


class State(Enum):
    """A state: a description, whether the connection takes requests, and whether queued ones get no answer any more."""

    HEALTH_CHECK = "a load balancer speaks for itself, and may ask for ApiVersions", True, False
    ENTERING = "it enters the namespace of its certificate or server name", False, False
    LOGIN = "its client logs in: one small request at a time", True, False
    OPEN = "it serves its client", True, False
    LOGIN_AGAIN = "its client logs in again (KIP-368): one request at a time", True, False
    REFUSED = "its login failed, and the client reads why", False, False
    DRAINING = "the front-end stops, or the client left: queued requests are answered, then it closes", False, False
    CLOSING = "it drops what arrives, and its task ends", False, True
    ENDED = "its task has ended; answers that were written leave", False, True

    def __init__(self, _meaning: str, takes: bool, is_closing: bool) -> None:
        self.takes = takes
        self.is_closing = is_closing


BEFORE_LOGIN: Final = (State.HEALTH_CHECK, State.LOGIN)
"""The client is unknown: it may send small frames only, and has little time."""
LOGINS: Final = (State.LOGIN, State.LOGIN_AGAIN)
"""Requests come one at a time."""


class Event(Enum):
    """A reason to change to another state."""

    ENTERED = auto()
    """It has entered its namespace."""
    BEGIN_LOGIN = auto()
    """A client that has logged in asks for a second login."""
    ADMIT = auto()
    """The login is over, or the second one was no login, and the client is known."""
    REFUSE = auto()
    """The login failed."""
    DRAIN = auto()
    """No more requests are taken."""
    LOSE = auto()
    """The client has left, and some of its requests are served all the same."""
    CLOSE = auto()
    """Queued requests get no answer."""
    END = auto()
    """Its task has ended."""


_DRAINING: Final = {Event.LOSE: State.DRAINING, Event.CLOSE: State.CLOSING, Event.END: State.ENDED}
_LIVE: Final = {Event.DRAIN: State.DRAINING, **_DRAINING}
_LOGIN: Final = {Event.ADMIT: State.OPEN, Event.REFUSE: State.REFUSED}
NEXT: Final[Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        State.HEALTH_CHECK: _LIVE,
        State.ENTERING: {Event.ENTERED: State.OPEN, **_LIVE},
        State.LOGIN: {**_LOGIN, **_LIVE},
        State.OPEN: {Event.BEGIN_LOGIN: State.LOGIN_AGAIN, **_LIVE},
        State.LOGIN_AGAIN: {**_LOGIN, **_LIVE},
        State.REFUSED: _LIVE,
        State.DRAINING: _DRAINING,
        State.CLOSING: {Event.END: State.ENDED},
        State.ENDED: {},
    }
)
"""The transitions. An event without one changes nothing: a login may succeed after the drain has begun."""


class Pause(IntFlag):
    """Why some work of a connection waits."""

    TURN = auto()
    """Other connections have their turn first, after many requests of this one."""
    STEP = auto()
    """A request of a login waits for its answer."""
    THROTTLE = auto()
    """The client is over a quota. Source: ThrottledChannel; KIP-219"""
    QUEUE = auto()
    """An answer named the throttle time: queued requests after it wait too, unless they are under way."""
    LARGE_FRAME = auto()
    """A large frame has begun, and others have their turn first."""
    UNREAD = auto()
    """The client has to read before it gets more answers."""


_FRAMES: Final = Pause.TURN | Pause.STEP | Pause.THROTTLE | Pause.LARGE_FRAME
"""The pauses that hold up frames which have arrived."""


class Conversation:
    """The state and the pauses of one connection, and what they allow."""

    __slots__ = ("answers", "begins", "is_reading", "is_unread", "pauses", "state", "takes")

    def __init__(self, state: State) -> None:
        self.state = state
        self.pauses = Pause(0)
        self.is_reading = True
        """True if the transport reads; its owner sets it as `may_read` says."""
        self._decide()

    def _decide(self) -> None:
        state, pauses = self.state, self.pauses
        self.takes = state.takes and not pauses & _FRAMES
        """True if a frame that has arrived becomes a request; otherwise the splitter keeps it."""
        self.is_unread = Pause.UNREAD in pauses
        """True if the client has to read before it gets more answers."""
        self.answers = not (state.is_closing or self.is_unread)
        """True if the first request may be answered, if it is under way."""
        self.begins = self.answers and not pauses & Pause.QUEUE
        """True if the first request may be handled."""

    def on(self, event: Event) -> None:
        """Go to the next state."""
        self.state = NEXT[self.state].get(event, self.state)
        if not self.state.takes:
            # They would only delay the end, and a client that has left will read nothing.
            self.pauses &= Pause(0) if event is Event.LOSE else Pause.UNREAD
        self._decide()

    def pause(self, pause: Pause) -> None:
        """Begin a pause, unless the connection takes nothing more anyway."""
        if self.state.takes or pause is Pause.UNREAD:
            self.pauses |= pause
            self._decide()

    def resume(self, pause: Pause) -> None:
        """End a pause."""
        self.pauses &= ~pause
        self._decide()

    def may_read(self, *, has_room: bool, is_inside_large_frame: bool) -> bool:
        """True if the transport may read now.

        A large frame arrives wholly once it is read: others wait for its memory, so no throttle or bound stops it.

        :param has_room: whether its requests, and the process's, are below their bounds.
        """
        if self.state.is_closing:
            # What arrives is dropped; a socket that closes with bytes unread would take the last answers back.
            return self.is_reading
        if not is_inside_large_frame:
            return self.takes and has_room
        return self.state.takes and not self.pauses & Pause.LARGE_FRAME and (self.is_reading or has_room)
