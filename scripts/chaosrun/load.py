"""The load: groups of real clients and producers, in processes of their own that write journals."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import redis
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from scripts.chaosrun import checks, groups
from scripts.chaosrun.checks import GroupState
from scripts.chaosrun.jobs import HEARTBEATS, Job
from scripts.chaosrun.journal import Acknowledged, Consumed, Event, Journals, now_us
from scripts.chaosrun.processes import Process, Program
from scripts.chaosrun.stage import Stage

TOPICS: Final = ["orders", "payments"]
PARTITIONS: Final = 6
PRODUCERS: Final = ["producer-0", "producer-1"]
RECORDS_PER_S: Final = 50.0
"""The rate of each producer."""
WITHIN_S: Final = 180.0
Protocol = Literal["classic", "consumer"]
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of four members, in so many processes. Its session timeout is the load's times `sessions`.

    `protocols`: its processes', in turn. By the consumer protocol (KIP-848) its members request the `assignor`. If
    heartbeats stay unanswered for long, librdkafka ends its session by itself and joins as a new member. Its own
    earlier requests may even fence a static member, for good. So static members have sessions that outlast every outage
    here, on a busy machine too.
    """

    name: str
    client: Literal["confluent", "aiokafka", "java", "java-4.4"]
    strategy: str = ""
    protocols: tuple[Protocol, ...] = ("classic",)
    assignor: str = "uniform"
    processes: int = 1
    is_static: bool = False
    sessions: int = 1

    def names(self, process: int) -> list[str]:
        """Client ids of the members in one of the processes."""
        each = MEMBERS // self.processes
        return [f"{self.name}-{number}" for number in range(process * each, (process + 1) * each)]

    def protocol(self, process: int) -> Protocol:
        """The protocol of the members in one of the processes."""
        return self.protocols[process % len(self.protocols)]


MEMBERS: Final = 4
GROUPS: Final = (
    Group(name="eager", client="confluent", strategy="range", processes=2),
    Group(name="cooperative", client="confluent", strategy="cooperative-sticky"),
    Group(name="static", client="confluent", strategy="roundrobin", is_static=True, sessions=10),
    Group(name="aio", client="aiokafka", strategy="roundrobin"),
    Group(name="java", client="java", strategy="cooperative-sticky"),
    Group(name="uniform", client="confluent", protocols=("consumer",), processes=2),
    Group(name="range", client="confluent", protocols=("consumer",), assignor="range", is_static=True, sessions=10),
    # The Java client 4.1.2 keeps a processor busy while it waits for its coordinator (KAFKA-20253).
    Group(name="java-uniform", client="java-4.4", protocols=("consumer",)),
    Group(name="mixed", client="confluent", strategy="range", protocols=("classic", "consumer"), processes=4),
)


class LoadError(RuntimeError):
    """The clients did not come to an expected state in time, or one of their processes ended by itself."""


class Load:
    """The running clients, and their journals."""

    kinds: Sequence[Group] = GROUPS

    def __init__(self, stage: Stage, directory: Path, session_timeout_ms: int, records_per_s: float) -> None:
        self.stage = stage
        self.groups = {group.name: group for group in self.kinds}
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_ms = session_timeout_ms // HEARTBEATS
        self.forgiven: list[tuple[int, int]] = []
        self.consumer_clients: set[str] = set()
        """Client ids of the members that ever spoke the consumer protocol."""
        self._records_per_s = records_per_s
        self._directory = directory
        self._journals = Journals(directory)
        self._members: dict[str, list[Process]] = {name: [] for name in self.groups}
        self._producers: list[Process] = []
        self._started = 0

    @property
    def events(self) -> list[Event]:
        """All events so far."""
        self._journals.read()
        return self._journals.events

    @property
    def clients(self) -> list[str]:
        """Client ids of all clients that should get answers."""
        running = [process for processes in (*self._members.values(), self._producers) for process in processes]
        return [name for process in running for name in process.names]

    def start(self) -> None:
        """Make the topics, let all groups become Stable, and only then produce."""
        admin = AdminClient({"bootstrap.servers": self.stage.bootstrap})
        for made in admin.create_topics(self._new_topics()).values():
            made.result(30)
        resources = [
            ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[
                ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
                for name, value in settings.items()
            ])
            for group, settings in self._group_settings().items()
        ]  # fmt: skip
        for done in admin.incremental_alter_configs(resources).values() if resources else ():
            done.result(30)
        self._start_members(admin)
        self.await_settled()
        self._producers.append(self._start("producers", self._job(PRODUCERS)))
        self.await_answered(now_us())

    def _new_topics(self) -> list[NewTopic]:
        return [NewTopic(topic, PARTITIONS, 1) for topic in TOPICS]

    def _group_settings(self) -> dict[str, dict[str, object]]:
        """The timeouts of the groups of the consumer protocol; the broker sends them to members."""
        return {
            group.name: {
                "consumer.session.timeout.ms": self.session_timeout_ms * group.sessions,
                "consumer.heartbeat.interval.ms": self.heartbeat_ms,
            }
            for group in self.groups.values()
            if "consumer" in group.protocols
        }

    def _start_members(self, admin: AdminClient) -> None:
        for group in self.groups.values():
            if group.client == "confluent":
                groups.begin(admin, group.name, TOPICS, PARTITIONS)
            for number in range(group.processes):
                self.add_members(group.name, group.names(number), group.protocol(number))

    def _job(self, names: list[str], group: Group | None = None, protocol: Protocol = "classic") -> Job:
        self._started += 1
        return Job(
            bootstrap=self.stage.bootstrap,
            journal=str(self._directory / f"{self._started}-{names[0]}.jsonl"),
            names=names,
            topics=TOPICS,
            partitions=PARTITIONS,
            group=group.name if group else "",
            protocol=protocol,
            strategy=(group.assignor if protocol == "consumer" else group.strategy) if group else "",
            is_static=group is not None and group.is_static,
            session_timeout_ms=self.session_timeout_ms * group.sessions if group else 0,
            records_per_s=self._records_per_s,
        )

    def _start(self, program: Program, job: Job) -> Process:
        return Process(program, job, self._directory / f"{self._started}-{job.names[0]}.txt")

    def add_members(self, group: str, names: list[str], protocol: Protocol | None = None) -> Process:
        """One more process of members of a group; by the group's first protocol unless another is said."""
        chosen = self.groups[group]
        spoken = protocol or chosen.protocols[0]
        if spoken == "consumer":
            self.consumer_clients.update(names)
        process = self._start(chosen.client, self._job(names, chosen, spoken))
        self._members[group].append(process)
        return process

    def take_away(self, group: str, process: Process, *, crash: bool) -> None:
        """End a process of members: they leave, or die without leaving."""
        self._members[group].remove(process)
        if crash:
            process.kill()
        else:
            process.ask_to_leave()
            process.await_end()

    def processes(self, group: str) -> list[Process]:
        return list(self._members[group])

    def states(self) -> dict[str, GroupState]:
        """Each group as Redis shows it."""
        with self.stage.redis() as client:
            return groups.all_described(client, self.groups)

    def await_settled(self) -> dict[str, GroupState]:
        """Wait until each group is Stable with exactly the members that run, and return the groups then."""
        states: dict[str, GroupState] = {}

        def settled() -> bool:
            nonlocal states
            states = self.states()
            return all(self._is_settled(name, states[name]) for name in self.groups if self._members[name])

        self.until(settled, lambda: f"groups did not settle: {self._unsettled(states)}")
        return states

    def _unsettled(self, states: Mapping[str, GroupState]) -> str:
        return "; ".join(
            f"{name} is {state.state} with {sorted(state.members.values())}"
            for name, state in states.items()
            if not self._is_settled(name, state)
        )

    def is_settled(self, group: str) -> bool:
        """True if the group is Stable with exactly the running members."""
        return self._is_settled(group, self.states()[group])

    def _is_settled(self, group: str, state: GroupState) -> bool:
        return state.state == "Stable" and sorted(state.members.values()) == self.members(group)

    def members(self, group: str) -> list[str]:
        """Client ids of the members that run."""
        return sorted(name for process in self._members[group] for name in process.names)

    def is_answered(self, within_ms: int) -> bool:
        """True if every client got an answer in the last ``within_ms``."""
        return not checks.unanswered(self.events, self.clients, now_us() - within_ms * 1000)

    def await_answered(self, since_us: int) -> float:
        """Wait until every client was answered after that time; returns the seconds until the last one was."""
        waiting: set[str] = set()

        def answered() -> bool:
            nonlocal waiting
            waiting = checks.unanswered(self.events, self.clients, since_us)
            return not waiting

        self.until(answered, lambda: f"not answered: {sorted(waiting)}")
        return checks.answered_after(self.events, self.clients, since_us)

    def await_delivered(self) -> dict[str, int]:
        """Wait until each group has seen every record acknowledged so far; returns the numbers of unseen ones if that
        fails."""
        owed = [event for event in self.events if isinstance(event, Acknowledged)]
        missing: dict[str, int] = {}

        def delivered() -> bool:
            nonlocal missing
            seen = [event for event in self.events if isinstance(event, Consumed)]
            missing = checks.undelivered([*owed, *seen], self.groups, self.forgiven)
            return not missing

        try:
            self.until(delivered, lambda: "", poll_s=0.5)
        except LoadError:
            return missing
        return {}

    def judged(self, _since_us: int, _outages: checks.Times | None) -> dict[str, list[str]]:
        """The facts that contradict each claim, once all groups have seen what is owed so far.

        :param _since_us: the begin of the fault.
        :param _outages: of Redis, if nothing else happened.
        """
        missing = self.await_delivered()
        events = list(self.events)
        return {
            "commits": [
                *checks.lost_commits(events, self.states(), self.forgiven),
                *checks.forgotten_positions(events, self.forgiven),
            ],
            "owners": [
                *checks.shared_partitions(events),
                *([] if self.forgiven else checks.overlapping_owners(events, self.consumer_clients)),
            ],
            "delivery": [f"{group} has not seen {count} records" for group, count in missing.items()],
            "order": [
                *checks.disordered(events, self.forgiven),
                *([] if self.forgiven else checks.repeated(events)),
            ],
            "clients": checks.gave_up(events),
        }

    def until(self, condition: Callable[[], bool], what: Callable[[], str], poll_s: float = POLL_S) -> None:
        """Poll a condition. Raises LoadError if it takes too long (with `what`), or if a process ended."""
        deadline = time.monotonic() + WITHIN_S
        while not holds(condition):
            self._expect_running()
            if time.monotonic() > deadline:
                raise LoadError(what())
            time.sleep(poll_s)

    def _expect_running(self) -> None:
        for process in (*self._producers, *(each for every in self._members.values() for each in every)):
            if not process.is_running:
                raise LoadError(f"{process.names} ended by itself:\n{process.last_words()}")

    def stop(self) -> None:
        """Let the producers finish, and then all members leave."""
        for processes in (self._producers, [process for every in self._members.values() for process in every]):
            for process in processes:
                process.ask_to_leave()
            for process in processes:
                if process.await_end() != 0:
                    raise LoadError(f"{process.names} did not end well:\n{process.last_words()}")
        self._producers.clear()
        for every in self._members.values():
            every.clear()

    def kill(self) -> None:
        """End all processes that still run."""
        for process in (*self._producers, *(each for every in self._members.values() for each in every)):
            process.kill()


def holds(condition: Callable[[], bool]) -> bool:
    """True if a condition holds; none does while Redis does not answer."""
    try:
        return condition()
    except redis.RedisError:
        return False
