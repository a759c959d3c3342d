"""A group of the consumer protocol as the tests drive it; a test's own assignor stands for the front-end's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.lua.group import NONE, RETENTION_S, Group, named, plain

RETRY = -5
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
FENCED_MEMBER_EPOCH = 110
UNRELEASED_INSTANCE_ID = 111
STALE_MEMBER_EPOCH = 113

FOO = "0" * 31 + "1"
BAR = "0" * 31 + "2"
ZAR = "0" * 31 + "3"
"""Topics' ids; their names are those of `TOPICS`."""
TOPICS = {"foo": (FOO, 6), "bar": (BAR, 3), "zar": (ZAR, 1)}

Targets = Mapping[str, str]


class Beat(NamedTuple):
    """The reply of korvet_group_consumer_heartbeat; the assignment is None if the reply has none."""

    code: int
    member: str
    status: str = ""
    epoch: int = 0
    assignment: str | None = None
    why: str = ""
    topics: tuple[str, ...] = ()


class ConsumerMember(NamedTuple):
    """A member as korvet_group_describe shows it."""

    id: str
    instance_id: str
    epoch: int
    previous_epoch: int
    state: str
    owned: str
    revoking: str
    target: str
    topics: tuple[str, ...]
    partitions: tuple[str, ...]
    regex: str
    rack: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_ends_in_ms: int


class ConsumerGroup(Group):
    """The catalog is ``topics`` as of ``catalog_version``; ``assignor`` makes the targets of a snapshot's members."""

    session_s = 45.0
    policy = "bidirectional"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.topics = dict(TOPICS)
        self.catalog_version = 1
        self.targets: dict[str, str] = {}
        """The next target assignment by member; a member that it does not name has an empty one."""

    # ------------------------------------------------------------------ the functions

    def consume(
        self,
        member: str,
        epoch: int,
        *names: str,
        owned: str | None = None,
        subscribes: bool | None = None,
        regex: str | None = None,
        instance: str = "",
        rack: str = "",
        assignor: str = "",
        rebalance_s: float = -1,
        anyway: bool = False,
        given: str = "",
        client: str = "client",
        host: str = "/10.0.0.1",
        version: int = 1,
    ) -> Beat:
        """One call. The member subscribes to names if there are any, or if ``subscribes`` says so."""
        has_names = bool(names) if subscribes is None else subscribes
        args: tuple[str | int, ...] = (
            self.id, self.locator, self.catalog_version, member, epoch, instance, rack, assignor,
            regex or "", int(regex is not None), int(has_names), owned or "", int(owned is not None),
            -1 if rebalance_s < 0 else round(rebalance_s * 1000), round(self.session_s * 1000), client, host, version,
            self.max_size, round(RETENTION_S * 1000), self.policy, int(anyway), given, *names,
        )  # fmt: skip
        code, who, *rest = (plain(value) for value in self.call("consume", *args))
        if code != NONE:
            return Beat(code, who, why=rest[0])
        if rest[0] == "ready":
            return Beat(code, who, "ready", rest[1], rest[3] if rest[2] else None)
        return Beat(code, who, rest[0], topics=tuple(rest[1:]))

    def beat(self, member: str, epoch: int, *names: str, **options: Any) -> Beat:
        """A heartbeat as a front-end serves it: the target is brought up to date if the function asks for it."""
        if epoch > 0 and not names and options.keys() <= {"instance"} and self.is_settled(member, epoch, **options):
            return Beat(NONE, member, "ready", epoch)
        answer = self.consume(member, epoch, *names, **options)
        if answer.status == "target":
            self.retarget()
            answer = self.consume(member, epoch, *names, **options)
            assert answer.status != "target"
        return answer

    def is_settled(self, member: str, epoch: int, instance: str = "") -> bool:
        """A heartbeat that says nothing."""
        args = self.catalog_version, member, epoch, instance, round(self.session_s * 1000)
        return bool(self.server.fcall("korvet_group_beat", len(self.keys), *self.keys, *args))

    def enter(self, member: str, *names: str, rebalance_s: float = 5, owned: str = "", **options: Any) -> Beat:
        """A member joins with all that a client says then."""
        names = names or (() if options.get("regex") else ("foo", "bar"))
        return self.beat(member, 0, *names, rebalance_s=rebalance_s, owned=owned, **options)

    def part(self, member: str, epoch: int = -1, instance: str = "") -> Beat:
        """A member leaves, for a time if the epoch is -2."""
        return self.consume(member, epoch, instance=instance)

    def snapshot(self) -> dict[str, Any]:
        found = self.read_named("snapshot")
        members = [named(member) for member in found.pop("members")]
        tables = [{name: plain(value) for name, value in member.items()} for member in members]
        for table in tables:
            table["topics"] = [plain(name) for name in table["topics"]]
        return {**{name: plain(value) for name, value in found.items()}, "members": tables}

    def assign(  # type: ignore[override]
        self,
        snapshot: Mapping[str, Any],
        targets: Targets | None = None,
        topics: str | None = None,
        assignor: str = "uniform",
    ) -> tuple[int, int, int]:
        """Install a target that was made from a snapshot."""
        flat = [part for pair in (self.targets if targets is None else targets).items() for part in pair]
        lines = self.lines(snapshot) if topics is None else topics
        head = (snapshot["generation"], snapshot["target_epoch"], self.catalog_version, lines, assignor)
        code, generation, target_epoch = self.call("assign", *head, *flat)
        return code, generation, target_epoch

    def retarget(self) -> None:
        """A new target as a front-end makes it; a member that ``targets`` does not name gets an empty one."""
        snapshot = self.snapshot()
        ids = [member["member_id"] for member in snapshot["members"]]
        assert self.assign(snapshot, {member: self.targets.get(member, "") for member in ids})[0] == NONE

    def lines(self, snapshot: Mapping[str, Any]) -> str:
        """The topics that the members of a snapshot subscribe to; a regular expression is one for all."""
        members = snapshot["members"]
        wanted = {name for member in members for name in member["topics"]}
        if any(member["regex"] for member in members):
            wanted = set(self.topics)
        return "\n".join(
            f"{name} {topic_id} {count}" for name, (topic_id, count) in sorted(self.topics.items()) if name in wanted
        )

    # ------------------------------------------------------------------ state of the group

    def member(self, member: str) -> ConsumerMember:
        return self.members()[member]

    def members(self) -> dict[str, ConsumerMember]:
        found = {}
        for of in map(named, self.read_named("describe")["members"]):
            text = {name: plain(value) for name, value in of.items()}
            found[text["member_id"]] = ConsumerMember(
                text["member_id"], text["instance_id"], text["member_epoch"], text["previous_epoch"],
                text["member_state"], text["owned"], text["revoking"], text["target"],
                tuple(map(plain, of["topics"])), tuple(map(plain, of["partitions"])), text["regex"], text["rack"],
                text["client_id"], text["client_host"], text["rebalance_timeout_ms"], text["session_ends_in_ms"],
            )  # fmt: skip
        return found

    @property
    def epochs(self) -> tuple[int, int]:
        """The group epoch and the target's."""
        generation, target_epoch = self.field("generation"), self.field("target_epoch")
        assert generation is not None and target_epoch is not None
        return int(generation), int(target_epoch)

    def owners(self) -> dict[str, str]:
        """Partition -> member, as the fields of the group hash say."""
        fields: Any = self.server.hgetall(self.keys[0])
        texts = {plain(name): plain(owner) for name, owner in fields.items()}
        return {name: owner for name, owner in texts.items() if len(name.partition(":")[0]) == 32}


def of(**topics: Sequence[int]) -> str:
    """An assignment as text: partitions by the topics' names."""
    ids = sorted((TOPICS[name][0], partitions) for name, partitions in topics.items() if partitions)
    return " ".join(f"{topic_id}:{','.join(map(str, partitions))}" for topic_id, partitions in ids)
