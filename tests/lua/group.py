"""One group, driven by the tests: the library's group functions, called with a front-end's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import redis

LATE = -6
UNINDEXED = -4
NONE = 0
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
MEMBER_ID_REQUIRED = 79
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82
GROUP_SUBSCRIBED_TO_TOPIC = 86

GROUP_ID = "cgp_01HF7YAT31JZHSMW1CG6Q6MHB7"
RETENTION_S = 7 * 86_400.0
START_S = 4_000_000_000.0
"""A time ahead of the server's own clock, so that Redis does not remove keys that the library lets expire."""
RANGE = (("range", b"range-metadata"),)
ROUND_ROBIN = (("roundrobin", b"roundrobin-metadata"),)

MEMBER_FIELDS = ("member_id", "instance_id", "client_id", "client_host")

Protocols = Sequence[tuple[str, bytes]]


class Joined(NamedTuple):
    """The reply of korvet_group_join and korvet_group_await; ``members`` is (member id, instance id, metadata)."""

    code: int
    member: str
    status: str = ""
    wait_ms: int = 0
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    skips_assignment: bool = False
    members: tuple[tuple[str, str, bytes], ...] = ()

    @property
    def is_parked(self) -> bool:
        return self.status == "parked"

    @property
    def refusal(self) -> tuple[int, str]:
        """The code and the member id of a refused join."""
        assert self.status == ""
        return self.code, self.member

    @property
    def is_leader(self) -> bool:
        return self.status == "ready" and self.leader == self.member


class Synced(NamedTuple):
    """The reply of korvet_group_sync."""

    code: int
    status: str = ""
    wait_ms: int = 0
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""

    @property
    def is_parked(self) -> bool:
        return self.status == "parked"


class Member(NamedTuple):
    """A member as korvet_group_describe shows it."""

    id: str
    instance_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Described(NamedTuple):
    """The reply of korvet_group_describe."""

    id: str
    locator: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[Member, ...]

    @property
    def member_ids(self) -> set[str]:
        return {member.id for member in self.members}


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def named(flat: Sequence[Any]) -> dict[str, Any]:
    """Names and values in turn as a table."""
    return dict(zip(map(plain, flat[::2]), flat[1::2], strict=True))


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


class Group:
    """The group ``name``. Time stands still until `pass_time` moves it."""

    def __init__(self, server: redis.Redis, set_clock: Callable[[float], None], name: str = "g") -> None:
        self.server = server
        unit = f"korvet:{{default:@group:{name}}}"
        self.keys = tuple(f"{unit}:{part}" for part in ("group", "members", "sessions", "static", "offsets"))
        self.attached = f"{unit}:attached"
        self.id, self.locator = GROUP_ID, "default/consumer-groups/g"
        self.now = START_S
        self.initial_delay_ms = 0
        self.max_size = 2**31 - 1
        self._set_clock = set_clock
        self._names = count(1)
        self._outages: list[str] = []
        self.served_until: float | None = None
        set_clock(self.now)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which Redis serves."""
        self.now += seconds
        self._set_clock(self.now)

    def outage(self, seconds: float) -> None:
        """Let time pass in which no front-end can call Redis; every later call tells of this outage."""
        began = milliseconds(self.now)
        self.pass_time(seconds)
        self._outages.append(f"{began}-{milliseconds(self.now)}")

    @property
    def outages(self) -> str:
        """The outages as a front-end passes them; '' before the first one. `served_until` is now unless it is set."""
        if not self._outages and self.served_until is None:
            return ""
        served_until = milliseconds(self.now if self.served_until is None else self.served_until)
        return " ".join([str(served_until), *self._outages])

    def call(self, function: str, *args: str | int | bytes, keys: Sequence[str] = ()) -> Any:
        """Call a function that writes; it is told of the outages."""
        keys = (*self.keys, *keys)
        return self.server.fcall(f"korvet_group_{function}", len(keys), *keys, self.outages, *args)

    def read(self, function: str, *args: str | int | bytes, keys: Sequence[str] = ()) -> Any:
        """Call a function that reads; all but fetch are told of the outages."""
        keys = (*self.keys, *keys)
        told = () if function == "fetch" else (self.outages,)
        return self.server.fcall_ro(f"korvet_group_{function}", len(keys), *keys, *told, *args)

    def read_named(self, function: str, *args: str | int | bytes, keys: Sequence[str] = ()) -> dict[str, Any]:
        """The reply of describe or state, by its names."""
        code, *flat = self.read(function, *args, keys=keys)
        assert code == NONE, code
        return named(flat)

    def join(
        self,
        member: str = "",
        protocols: Protocols = RANGE,
        *,
        instance: str = "",
        session_s: float = 10,
        rebalance_s: float = 60,
        protocol_type: str = "consumer",
        version: int = 9,
        client: str = "client",
    ) -> Joined:
        flat = [part for protocol in protocols for part in protocol]
        new_member = f"{instance or client}-{next(self._names)}"
        args = (
            self.id, self.locator, member, new_member, instance, client, "/10.0.0.1",
            round(session_s * 1000), round(rebalance_s * 1000), protocol_type, version, 6000, 1_800_000,
            self.max_size, self.initial_delay_ms, round(RETENTION_S * 1000), *flat,
        )  # fmt: skip
        return self._joined(self.call("join", *args))

    def wait(self, member: str, instance: str = "") -> Joined:
        """Ask for the answer to a parked join."""
        (joined,) = self.wait_all((member, instance))
        return joined

    def wait_all(self, *members: tuple[str, str]) -> list[Joined]:
        """Ask for the answers to parked joins together; members are (member id, instance id)."""
        return [self._joined(reply) for reply in self.call("await", *(part for pair in members for part in pair))]

    def _joined(self, reply: Any) -> Joined:
        head = [plain(value) for value in reply[:9]]
        if len(head) < 9:
            return Joined(*head)
        told = reply[9]
        members = tuple((plain(told[at]), plain(told[at + 1]), told[at + 2]) for at in range(0, len(told), 3))
        return Joined._make((*head[:8], bool(head[8]), members))

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str = "",
        protocol: tuple[str, str] | None = None,
    ) -> Synced:
        flat = [part for assignment in (assignments or {}).items() for part in assignment]
        protocol_named = (1, *protocol) if protocol else (0, "", "")
        return self._synced(self.call("sync", member, instance, generation, *protocol_named, *flat))

    def wait_sync_all(self, generation: int, *members: tuple[str, str]) -> list[Synced]:
        """Ask for the answers to parked syncs together; members are (member id, instance id)."""
        flat = (part for pair in members for part in pair)
        return [self._synced(reply) for reply in self.call("await_sync", generation, *flat)]

    def wait_sync(self, member: str, generation: int, instance: str = "") -> Synced:
        """Ask for the answer to a parked sync."""
        (synced,) = self.wait_sync_all(generation, (member, instance))
        return synced

    def _synced(self, reply: Any) -> Synced:
        return Synced(*[plain(value) for value in reply[:5]], *reply[5:])

    def heartbeat(self, member: str, generation: int, instance: str = "", catalog: Sequence[int] = ()) -> int:
        """``catalog`` is the version of a front-end's catalog, if it tells one."""
        return int(self.call("heartbeat", member, instance, generation, *catalog))

    def leave(self, *members: tuple[str, str]) -> list[int]:
        return list(self.call("leave", *(part for member in members for part in member)))

    def commit(
        self,
        offsets: dict[str, str],
        member: str = "",
        generation: int = -1,
        *,
        instance: str = "",
        version: int = 9,
        retention_s: float = RETENTION_S,
    ) -> int:
        flat = [part for offset in offsets.items() for part in offset]
        head = (self.id, self.locator, member, instance, generation, version, round(retention_s * 1000))
        return int(self.call("commit", *head, *flat))

    def fetch(self, *partitions: str) -> dict[str, str]:
        flat = [plain(value) for value in self.read("fetch", *partitions)]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def delete(self) -> int:
        return int(self.call("delete", "any", keys=[self.attached]))

    def delete_offsets(self, *partitions: str) -> tuple[int, list[int]]:
        code, codes = self.call("offset_delete", *partitions)
        return code, codes

    def forget(self, partitions: dict[str, str]) -> int:
        """Forget offsets of topics that are gone, each with its topic's id."""
        flat = [part for pair in partitions.items() for part in pair]
        return int(self.server.fcall("korvet_group_offset_forget", len(self.keys), *self.keys, *flat))

    def describe(self) -> Described:
        found = self.read_named("describe")
        members = tuple(
            Member._make((*(plain(of[name]) for name in MEMBER_FIELDS), of["metadata"], of["assignment"]))
            for of in map(named, found["members"])
        )
        return Described._make((*(plain(found[name]) for name in Described._fields[:-1]), members))

    @property
    def state(self) -> str:
        reply = self.read("state")
        return "Dead" if reply[0] == GROUP_ID_NOT_FOUND else str(plain(named(reply[1:])["state"]))

    @property
    def generation(self) -> int:
        return self.describe().generation

    def exists(self) -> list[str]:
        """The last parts of the group's existing keys."""
        return [key.rpartition(":")[2] for key in self.keys if self.server.exists(key)]

    def field(self, name: str) -> str | None:
        value: Any = self.server.hget(self.keys[0], name)
        return None if value is None else str(plain(value))

    # ------------------------------------------------------------------ short cuts

    def known(self, client: str = "client", **options: Any) -> str:
        """A member id that was handed out and has yet to join."""
        handed_out = self.join(client=client, **options)
        assert handed_out.code == MEMBER_ID_REQUIRED
        return handed_out.member

    def entered(self, protocols: Protocols = RANGE, **options: Any) -> Joined:
        """A new dynamic member's join, by the id that it was given first."""
        return self.join(self.known(protocols=protocols, **options), protocols, **options)

    def settle(self, *waiting: str, instances: dict[str, str] | None = None) -> dict[str, Joined]:
        """The answers of parked joins, which must be ready by now."""
        answers = {member: self.wait(member, (instances or {}).get(member, "")) for member in waiting}
        assert [answer for answer in answers.values() if answer.status != "ready"] == []
        return answers

    def gathered(self, *protocols: Protocols, **options: Any) -> list[Joined]:
        """The answers of a new group's members, which have no assignment yet, the leader's first."""
        self.initial_delay_ms = 1000
        members = [self.entered(one, **options).member for one in protocols]
        # Later members make the first one wait once more.
        for _ in protocols[:2]:
            self.pass_time(1)
            self.wait(members[0])
        return list(self.settle(*members).values())

    def assign(self, leader: Joined) -> None:
        """The leader's sync; each member's assignment is its own id."""
        assignments = {member: member.encode() for member, _, _ in leader.members}
        synced = self.sync(leader.member, leader.generation, assignments)
        assert (synced.code, synced.status) == (NONE, "ready")

    def stable(self, size: int = 1, **options: Any) -> list[str]:
        """A Stable group of dynamic members, the leader first."""
        assert self.state in ("Dead", "Empty")
        members = []
        leader = self.entered(**options)
        if leader.is_parked:
            self.pass_time(self.initial_delay_ms / 1000)
            leader = self.wait(leader.member)
        members.append(leader.member)
        self.assign(leader)
        for _ in range(size - 1):
            joining = self.entered(**options)
            assert joining.is_parked
            for member in members:
                protocols = options.get("protocols", RANGE)
                rest = {name: value for name, value in options.items() if name != "protocols"}
                assert self.join(member, protocols, **rest).code == NONE
            members.append(joining.member)
        if size > 1:
            leader = self.settle(*members)[members[0]]
            self.assign(leader)
            for member in members[1:]:
                assert self.sync(member, leader.generation).assignment == member.encode()
        assert self.state == "Stable"
        return members
