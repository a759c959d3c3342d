"""A short model of Kafka's classic group; `test_group_model` holds the library to it.

It follows Kafka's rules (GroupMetadataManager and ClassicGroup of 4.1). A call first does the due
work, and then its own, all at one instant. Kafka leaves some choices to its hash maps or to rounding. The model leaves
these choices open, and `tests.lua.group_checks` takes them from the library, within bounds. Times are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NON_EMPTY_GROUP,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Protocols,
)

DEAD, EMPTY, PREPARING, COMPLETING, STABLE = "Dead", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
SHORTEST_SESSION = 6000


@dataclass(frozen=True, kw_only=True)
class Join:
    """A JoinGroup; `member` is '' for a new one."""

    member: str = ""
    instance: str = ""
    protocols: Protocols = ()
    protocol_type: str = "consumer"
    session: int = 10_000
    rebalance: int = 60_000
    version: int = 9


@dataclass
class Member:
    """A member: `joined` while it waits for the end of a rebalance, `synced` after it asked for its assignment."""

    instance: str
    protocols: Protocols
    session: int
    rebalance: int
    ends: int
    joined: bool = False
    synced: bool = False
    assignment: bytes = b""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.protocols]

    def metadata(self, protocol: str) -> bytes:
        return dict(self.protocols).get(protocol, b"")


@dataclass
class Delay:
    """The wait for more members of a group that was Empty."""

    now: int
    remaining: int
    more: bool = False


@dataclass
class Model:
    """One group. `leader` is None if any member that joined may lead."""

    now: int
    delay: int
    max_size: int
    state: str = DEAD
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    candidates: list[str] = field(default_factory=list)
    """The members that joined the last generation: one of them led it."""
    pending: dict[str, int] = field(default_factory=dict)
    """Ids that were handed out and have yet to join, and the times at which the group forgets them."""
    offsets: dict[str, str] = field(default_factory=dict)
    initial: Delay | None = None
    join_deadline: int | None = None
    sync_deadline: int | None = None
    expires_at: int | None = None
    longest: int = 0
    """The longest rebalance timeout; the library may also count members that left since the last generation."""
    shortest: int = SHORTEST_SESSION
    outages: tuple[tuple[int, int], ...] = ()
    resumed: int = 0
    """The end of the last outage that the deadlines count already."""

    # ------------------------------------------------------------------ time

    def prolonged(self, deadline: int, timeout: int) -> int:
        """The first outage since a deadline was set gives the whole timeout, and a further one its own length."""
        resumed = self.resumed
        for begin, end in self.outages:
            if end <= self.resumed:
                continue
            was_set = deadline - timeout
            if deadline > begin and was_set < end:
                deadline = end + timeout if was_set > resumed else deadline + end - begin
            resumed = end
        return deadline

    def advance(self) -> None:
        """Do the due work: sessions first, then the rebalance or the sync."""
        if self.expires_at is not None and self.expires_at <= self.now:
            self.bury()
        if self.state == DEAD:
            return
        lost = [id for id, one in self.members.items() if self.prolonged(one.ends, one.session) <= self.now]
        late = [id for id, ends in self.pending.items() if self.prolonged(ends, self.shortest) <= self.now]
        for id in lost:
            self.remove(id)
        for id in late:
            del self.pending[id]
        if lost:
            self.rebalance_without()
        # Unlike a leave, this also ends the wait for more members.
        if (lost or late) and self.state == PREPARING and self.is_gathered:
            self.complete()
        self.settle()

    def is_over(self, deadline: int | None) -> bool:
        """Whether a rebalance or sync is over; a first rebalance waits for no member in particular."""
        if deadline is None:
            return False
        return (deadline if self.initial else self.prolonged(deadline, self.longest)) <= self.now

    def settle(self) -> None:
        if self.is_over(self.join_deadline):
            self.end_join()
        elif self.is_over(self.sync_deadline):
            for id in [id for id, one in self.members.items() if not one.synced]:
                self.remove(id)
            self.rebalance_without()

    def end_join(self) -> None:
        wait = self.initial
        if wait and wait.more and wait.remaining:
            self.initial = Delay(min(self.delay, wait.remaining), max(wait.remaining - wait.now, 0))
            self.join_deadline = self.now + self.initial.now
        else:
            self.complete()

    # ------------------------------------------------------------------ rebalances

    @property
    def is_gathered(self) -> bool:
        return not self.pending and all(one.joined for one in self.members.values())

    def prepare(self) -> None:
        if self.state == COMPLETING:
            for one in self.members.values():
                one.assignment = b""
        is_initial = self.state == EMPTY
        self.state, self.sync_deadline, self.expires_at = PREPARING, None, None
        for one in self.members.values():
            one.joined = False
        self.longest = max([self.longest, *(one.rebalance for one in self.members.values())])
        if is_initial:
            self.initial = Delay(self.delay, max(self.longest - self.delay, 0))
        self.join_deadline = self.now + (self.delay if is_initial else self.longest)

    def take_part(self, id: str) -> None:
        if self.state != PREPARING:
            self.prepare()
        self.members[id].joined = True
        self.complete_if_gathered()

    def complete_if_gathered(self) -> None:
        if self.state == PREPARING and not self.initial and self.is_gathered:
            self.complete()

    def rebalance_without(self) -> None:
        if self.state in (COMPLETING, STABLE):
            self.prepare()
            self.complete_if_gathered()

    def complete(self) -> None:
        for id in [id for id, one in self.members.items() if not one.joined and not one.instance]:
            self.remove(id)
        joined = [id for id, one in self.members.items() if one.joined]
        self.initial = None
        if self.members and not joined:
            self.join_deadline = self.now + self.longest
            return
        self.generation += 1
        self.join_deadline = None
        if not self.members:
            self.state, self.protocol, self.leader, self.longest = EMPTY, "", None, 0
            self.expires_at = -1  # to be adopted
            return
        if self.leader not in joined:
            self.leader = joined[0] if len(joined) == 1 else None
        self.state, self.candidates = COMPLETING, joined
        self.longest = max(one.rebalance for one in self.members.values())
        self.shortest = min(one.session for one in self.members.values())
        self.sync_deadline = self.now + self.longest
        self.protocol = self.chosen()
        for one in self.members.values():
            one.joined, one.synced, one.ends = False, False, self.now + one.session

    def chosen(self) -> str:
        """The protocol with the most votes; '' if several have as many and no known leader chooses."""
        names = [set(one.names) for one in self.members.values()]
        common = set.intersection(*names)
        votes: dict[str, int] = {}
        for one in self.members.values():
            vote = next(name for name in one.names if name in common)
            votes[vote] = votes.get(vote, 0) + 1
        best = [name for name, count in votes.items() if count == max(votes.values())]
        if len(best) > 1 and self.leader:
            best = [name for name in self.members[self.leader].names if name in best]
        return best[0] if len(best) == 1 or self.leader else ""

    # ------------------------------------------------------------------ members

    def remove(self, id: str) -> None:
        del self.members[id]
        if self.leader == id:
            self.leader = None

    def holder(self, instance: str) -> str | None:
        return next((id for id, one in self.members.items() if instance and one.instance == instance), None)

    def refusal(self, id: str, instance: str) -> int:
        holder = self.holder(instance)
        if instance and holder and holder != id:
            return FENCED_INSTANCE_ID
        return NONE if id in self.members and (holder or not instance) else UNKNOWN_MEMBER_ID

    def bury(self) -> None:
        """There is no group any more."""
        fresh = Model(self.now, self.delay, self.max_size, outages=self.outages)
        self.__dict__.update(fresh.__dict__)

    def found(self) -> None:
        self.state, self.expires_at = EMPTY, -1  # to be adopted

    def renew(self, id: str) -> None:
        self.members[id].ends = self.now + self.members[id].session

    # ------------------------------------------------------------------ JoinGroup

    def accepts(self, id: str) -> bool:
        if self.state in (DEAD, EMPTY):
            return True
        if self.state == PREPARING:
            joined = [other for other, one in self.members.items() if one.joined]
            return id in joined or len(joined) < self.max_size
        return id in self.members or len(self.members) < self.max_size

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state in (DEAD, EMPTY):
            return bool(protocol_type and protocols)
        common = [name for name, _ in protocols if all(name in one.names for one in self.members.values())]
        return protocol_type == self.protocol_type and bool(common)

    def join(self, asked: Join, minted: str) -> tuple[int, str]:
        """The code, and the former id of a static member that came back without a rebalance."""
        self.advance()
        code, kept = self._join(asked, minted)
        self.settle()
        return code, kept

    def _join(self, asked: Join, minted: str) -> tuple[int, str]:
        id = asked.member
        if id and self.state == DEAD:
            return UNKNOWN_MEMBER_ID, ""
        if not self.accepts(id):
            if id in self.members:
                self.remove(id)
            self.pending.pop(id, None)
            return GROUP_MAX_SIZE_REACHED, ""
        if not self.supports(asked.protocol_type, asked.protocols):
            return INCONSISTENT_GROUP_PROTOCOL, ""
        if not id:
            return self._join_new(asked, minted)
        if id in self.pending and not asked.instance:
            self.add(asked, id)
            return NONE, ""
        return self.refusal(id, asked.instance) or self._join_again(asked), ""

    def _join_new(self, asked: Join, minted: str) -> tuple[int, str]:
        if self.state == DEAD:
            self.found()
        former = self.holder(asked.instance)
        if former:
            return NONE, self.replace(asked, former, minted)
        if not asked.instance and asked.version >= 4:
            self.pending[minted] = self.now + asked.session
            return MEMBER_ID_REQUIRED, ""
        self.add(asked, minted)
        return NONE, ""

    def add(self, asked: Join, id: str) -> None:
        self.pending.pop(id, None)
        if not self.members:
            self.protocol_type = asked.protocol_type
        if self.initial:
            self.initial.more = True
        ends = self.now + asked.session
        self.members[id] = Member(asked.instance, asked.protocols, asked.session, asked.rebalance, ends)
        self.longest = max(self.longest, asked.rebalance)
        self.take_part(id)

    def replace(self, asked: Join, former: str, id: str) -> str:
        """A static member comes back under a new id; a rebalance begins only if the group's protocol changes."""
        one, leads = self.members[former], self.leader == former
        votes_the_same = one.names == [name for name, _ in asked.protocols]
        leader = self.leader
        del self.members[former]
        self.members[id] = Member(
            one.instance,
            asked.protocols,
            asked.session,
            asked.rebalance,
            self.now + asked.session,
            synced=one.synced,
            assignment=one.assignment,
        )
        self.longest = max(self.longest, asked.rebalance)
        self.leader = id if leads else self.leader
        if self.state == STABLE and (votes_the_same or self.chosen() == self.protocol):
            return leader or ""
        self.take_part(id)
        return ""

    def _join_again(self, asked: Join) -> int:
        one = self.members[asked.member]
        answers = self.state == COMPLETING or (self.state == STABLE and self.leader != asked.member)
        if not (answers and list(one.protocols) == list(asked.protocols)):
            one.protocols, one.session, one.rebalance = asked.protocols, asked.session, asked.rebalance
            self.longest = max(self.longest, asked.rebalance)
            self.renew(asked.member)
            self.take_part(asked.member)
        else:
            self.renew(asked.member)
        return NONE

    def wait(self, id: str, instance: str) -> int:
        """A parked join asks again."""
        self.advance()
        code = self.refusal(id, instance)
        if not code:
            self.renew(id)
            if self.state == PREPARING and not self.members[id].joined:
                self.take_part(id)
        self.settle()
        return code

    # ------------------------------------------------------------------ the other calls

    def sync(
        self,
        id: str,
        instance: str,
        generation: int,
        named: tuple[str, str] | None = None,
        assignments: Mapping[str, bytes] | None = None,
    ) -> int:
        """`assignments` is None if a parked sync asks again, which assigns nothing."""
        self.advance()
        code = self.refusal(id, instance)
        if code or generation != self.generation:
            return code or ILLEGAL_GENERATION
        if named and named != (self.protocol_type, self.protocol or named[1]):
            return INCONSISTENT_GROUP_PROTOCOL
        if self.state == PREPARING:
            return REBALANCE_IN_PROGRESS
        self.members[id].synced = True
        self.renew(id)
        if self.state == COMPLETING and self.leader == id and assignments is not None:
            self.state = STABLE
            for other, one in self.members.items():
                one.assignment = assignments.get(other, b"")
        if all(one.synced for one in self.members.values()):
            self.sync_deadline = None
        return NONE

    def heartbeat(self, id: str, instance: str, generation: int) -> int:
        self.advance()
        code = self.refusal(id, instance)
        if code or generation != self.generation:
            return code or ILLEGAL_GENERATION
        self.renew(id)
        return REBALANCE_IN_PROGRESS if self.state == PREPARING else NONE

    def leave(self, members: Iterable[tuple[str, str]]) -> list[int]:
        self.advance()
        codes = [self._leave(id, instance) for id, instance in members]
        if NONE in codes:
            self.rebalance_without()
            self.complete_if_gathered()
        return codes

    def _leave(self, id: str, instance: str) -> int:
        if id in self.pending:
            del self.pending[id]
            return NONE
        id = id or self.holder(instance) or ""
        code = self.refusal(id, instance)
        if not code:
            self.remove(id)
        return code

    def commit(self, id: str, instance: str, generation: int, version: int, offsets: Mapping[str, str]) -> int:
        self.advance()
        code = self._commit_refusal(id, instance, generation, version)
        if code:
            return code
        if self.state == DEAD:
            if not offsets:
                return NONE
            self.found()
        elif id in self.members:
            self.renew(id)
        self.offsets.update(offsets)
        return NONE

    def _commit_refusal(self, id: str, instance: str, generation: int, version: int) -> int:
        if self.state == DEAD:
            late = GROUP_ID_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
            return late if generation >= 0 else NONE
        if generation < 0 and self.state == EMPTY:
            return NONE
        if generation < 0 and not id and not instance:
            return UNKNOWN_MEMBER_ID
        code = self.refusal(id, instance)
        if code or generation != self.generation:
            return code or ILLEGAL_GENERATION
        return REBALANCE_IN_PROGRESS if self.state == COMPLETING else NONE

    def delete_offsets(self, topic: str, partition: str) -> tuple[int, list[int]]:
        self.advance()
        if self.state == DEAD:
            return GROUP_ID_NOT_FOUND, []
        if self.state != EMPTY and self.protocol_type != "consumer":
            return NON_EMPTY_GROUP, []
        if self.state != EMPTY and (not self.protocol or self.is_subscribed(topic)):
            return NONE, [GROUP_SUBSCRIBED_TO_TOPIC]
        self.offsets.pop(partition, None)
        return NONE, [NONE]

    def is_subscribed(self, topic: str) -> bool:
        return any(topic.encode() in one.metadata(self.protocol)[6:] for one in self.members.values())

    def delete(self) -> int:
        self.advance()
        if self.state == DEAD:
            return GROUP_ID_NOT_FOUND
        if self.state != EMPTY:
            return NON_EMPTY_GROUP
        self.bury()
        return NONE
