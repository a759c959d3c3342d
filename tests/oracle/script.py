"""Scripts of raw requests as data, and the machine that plays one against a broker.

A script is played whole on Kafka and whole on korvet. Strings of the form "$name" in a body stand for a value: one of
the script's unique names (`NAMES`), `$now` (ms, the same for both brokers), or what an earlier step saved from that
broker's own answer. So ids, member names and epochs need no agreement.
"""

import secrets
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from tests.oracle import messages
from tests.oracle.values import resolved
from tests.oracle.versions import edges, supported, usual

NAMES: Final = ("t", "u", "w", "g", "h")
ANSWER_WITHIN_S = 40.0
REPEAT_WITHIN_S = 120.0
REPEAT_EVERY_S = 0.02
CLOSED: Final = "connection closed"
NOTHING: Final = "no answer"
PASSWORD: Final = "of-the-oracle"
"""The password of all users that scripts log in."""

# Requests outside the API under test name topics, which these two APIs' newest versions do not.
SETUP_VERSIONS: Final = {"produce": 12, "fetch": 12}


PRESENT: Final = object()
"""Stands for any value in a step's ``until``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request, and the use of its answer.

    version: shapes the request; None is the version under test for the script's own API, else the newest usual one.
    sent_version, answer_version: the version in the header and the answer's, if they differ from `version`.
    on: the connection. later: send only, a Receive reads the answer. silent: no answer must come.
    save: variable -> path in the answer. until: repeat until `path` has the value, or any if that is `PRESENT`; ""
    means until there is no error.
    errors: every error code in Kafka's answer apart from NONE, to prove that a script fits its name; None: not checked.
    ignore: paths of this answer that may differ between two runs of the same broker.
    """

    api: str
    body: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    version: int | None = None
    sent_version: int | None = None
    answer_version: int | None = None
    on: str = "a"
    later: bool = False
    silent: bool = False
    save: Mapping[str, str] = field(default_factory=dict)
    until: tuple[str, Any] | None = None
    errors: tuple[str, ...] | None = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Read the answer to the oldest `later` step of a connection."""

    on: str
    save: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[str, ...] | None = ()
    ignore: tuple[str, ...] = ()


class Script:
    """A named sequence of steps, played once for each version of `api` (or only the given ones)."""

    def __init__(self, name: str, api: str, *steps: Step | Receive, versions: tuple[int, ...] = ()) -> None:
        self.name = name
        self.api = api
        self.steps = steps
        self.versions = versions

    def played_versions(self) -> tuple[int, ...]:
        """The versions of `api` at which this script is played."""
        return self.versions or tuple(supported(self.api))

    def edge_versions(self) -> frozenset[int]:
        """The ones of them that each run plays: the first, the last, and both sides of each change."""
        played = self.played_versions()
        return (edges(self.api) & {*played}) | {played[0], played[-1]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One answer: `outcome` is a tree of plain values, or CLOSED or NOTHING."""

    api: str
    label: str
    outcome: Any
    errors: tuple[str, ...] | None
    ignore: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Transcript:
    """All answers of one broker to one script, and the values its variables took."""

    variables: dict[str, Any]
    played: list[Played] = field(default_factory=list)


def at(tree: Any, path: str) -> Any:
    """The value at a path such as `topics[0].name`. Raises LookupError if there is none."""
    for part in path.replace("]", "").replace("[", ".").split("."):
        try:
            tree = tree[int(part)] if isinstance(tree, list) else tree[part]
        except (TypeError, ValueError) as error:
            raise LookupError(path) from error
    return tree


def error_codes(tree: Any) -> set[str]:
    """Every error code in an answer apart from NONE."""
    if isinstance(tree, dict):
        own = {tree["error_code"]} if isinstance(tree.get("error_code"), str) else set()
        return (own - {"NONE"}).union(*(error_codes(value) for value in tree.values()))
    return set().union(*(error_codes(value) for value in tree)) if isinstance(tree, list) else set()


class Connection:
    """A blocking connection that numbers its requests and knows which answers are due.

    :param user: who logs in by PLAIN with `PASSWORD`; nobody if it is empty.
    """

    def __init__(self, address: str, user: str = "") -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_WITHIN_S)
        self._correlation_id = 0
        self.due: list[tuple[Step, int, int]] = []
        if user:
            self.send(Step("sasl_handshake"), 1, {"mechanism": "PLAIN"})
            self.send(Step("sasl_authenticate"), 2, {"auth_bytes": f"\0{user}\0{PASSWORD}".encode()})
            for _, answer in (self.receive(), self.receive()):
                assert answer != CLOSED and not error_codes(answer), answer

    def send(self, step: Step, version: int, body: Mapping[str, Any]) -> None:
        """Send a request; its answer becomes due."""
        self._correlation_id += 1
        frame = messages.request_frame(step.api, version, body, self._correlation_id, step.sent_version)
        self._socket.sendall(frame)
        self.due.append((step, version if step.answer_version is None else step.answer_version, self._correlation_id))

    def receive(self) -> tuple[Step, Any]:
        """The oldest step whose answer is due, and that answer, CLOSED or NOTHING."""
        step, version, correlation_id = self.due.pop(0)
        try:
            frame = self.frame()
        except ConnectionError:
            return step, CLOSED
        except TimeoutError:
            return step, NOTHING
        try:
            return step, messages.parse_answer(step.api, version, frame, correlation_id)
        except Exception as error:  # any failure of the decoder on a wrong answer is the finding
            return step, {"unreadable": frame.hex(), "why": repr(error)}

    def receive_nothing(self) -> tuple[Step, Any]:
        """Prove that the step just sent gets no answer: the next frame is the answer to an ApiVersions after it."""
        step, _, _ = self.due.pop()
        self.send(Step("api_versions"), 0, {})
        _, outcome = self.receive()
        return step, CLOSED if outcome == CLOSED else NOTHING

    def frame(self) -> bytes:
        """The next frame without its size. Raises ConnectionError, TimeoutError."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed by the broker")
            data += piece
        return bytes(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def new_variables() -> dict[str, Any]:
    """Unique names and the time, for one play of a script; give both brokers a copy of the same ones."""
    token = secrets.token_hex(4)
    return {**{name: f"oracle-{name}-{token}" for name in NAMES}, "now": time.time_ns() // 1_000_000}


class _Player:
    def __init__(
        self, script: Script, version: int, address: str, variables: Mapping[str, Any], user: str = ""
    ) -> None:
        self._script, self._version, self._address, self._user = script, version, address, user
        self._connections: dict[str, Connection] = {}
        self.transcript = Transcript(variables=dict(variables))

    def play(self) -> None:
        try:
            for number, step in enumerate(self._script.steps, 1):
                outcome = self._receive(step) if isinstance(step, Receive) else self._step(step)
                if outcome is not None:
                    self._keep(number, step, *outcome)
        finally:
            for connection in self._connections.values():
                connection.close()

    def _connection(self, name: str) -> Connection:
        if name not in self._connections:
            self._connections[name] = Connection(self._address, self._user)
        return self._connections[name]

    def _receive(self, step: Receive) -> tuple[Step, Any]:
        return self._connection(step.on).receive()

    def _step(self, step: Step) -> tuple[Step, Any] | None:
        deadline = time.monotonic() + REPEAT_WITHIN_S
        while True:
            connection = self._connection(step.on)
            connection.send(step, self._version_of(step), resolved(step.body, self.transcript.variables))
            if step.later:
                return None
            answered, outcome = connection.receive_nothing() if step.silent else connection.receive()
            if step.until is None or _reached(outcome, step.until):
                return answered, outcome
            if time.monotonic() > deadline:
                raise AssertionError(f"{self._address} never answered {step.until} to {step.api}: {outcome}")
            time.sleep(REPEAT_EVERY_S)

    def _keep(self, number: int, step: Step | Receive, asked: Step, outcome: Any) -> None:
        label = f"step {number} {asked.api} v{self._version_of(asked)}"
        for name, path in step.save.items():
            try:
                self.transcript.variables[name] = at(outcome, path)
            except LookupError:
                raise AssertionError(f"{self._address}, {label}: no {path} to save in {outcome}") from None
        self.transcript.played.append(
            Played(api=asked.api, label=label, outcome=outcome, errors=step.errors, ignore=step.ignore)
        )
        if outcome == CLOSED:
            name = step.on
            self._connections.pop(name).close()

    def _version_of(self, step: Step) -> int:
        if step.version is not None:
            return step.version
        if step.api == self._script.api:
            return self._version
        return SETUP_VERSIONS.get(step.api, usual(step.api))


def _reached(outcome: Any, until: tuple[str, Any]) -> bool:
    path, wanted = until
    if not path:
        return isinstance(outcome, dict) and not error_codes(outcome)
    try:
        found = at(outcome, path)
    except LookupError:
        return False
    return wanted is PRESENT or bool(found == wanted)


def play(script: Script, version: int, address: str, variables: Mapping[str, Any], user: str = "") -> Transcript:
    """Play a script against the broker at host:port, as a user who logs in if there is one.

    :raises AssertionError: if an `until` is not reached.
    """
    player = _Player(script, version, address, variables, user)
    player.play()
    return player.transcript
