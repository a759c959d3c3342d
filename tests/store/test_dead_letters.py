"""Dead letters of share groups: their copies, and what keeps them from getting lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.store.allowance import Allowance
from korvet.store.calls import Calls, StateRoom
from korvet.store.catalog.settings import ConfigChange, Owner
from korvet.store.log.memory.room import Want
from korvet.store.log.state.partition import Partition
from korvet.store.outages import Outages
from korvet.store.shares import dead_letters
from korvet.store.shares.dead_letters import COPIES, CREATES, ENABLED, PREFIX, TOPIC, DeadLetterCopies
from korvet.store.shares.shares import Shares
from korvet.store.shares.types import Acknowledgement, AcknowledgeType, Acquirer, DeadLetters, Limits
from korvet.store.topics import create_topic
from korvet.tier import source
from korvet.wire.contents import Content, contents
from korvet.wire.dead_letters import copy_of
from korvet.wire.records import UndecodableRecords
from tests.store.logs import EVERYTHING, Front
from tests.store.sealed import seal
from tests.store.test_cold_reads import filled, reader
from tests.tier.test_blocks import Store
from tests.wire.whole import Whole, built, read

pytestmark = pytest.mark.anyio

LIMITS = Limits(lock_ms=30_000, deliveries=1, window=2000, dead_letters=True)
ME = Acquirer("me", "1")
RECORDS = [
    Whole(b"k", b"v0", (("h", b"1"), ("h", None))),
    Whole(None, None),
    Whole(b"", b"v2" * 40),
    Whole(b"k3", b"v3"),
]


class Scene:
    """A partition of four records in one batch, group ``g``, and the front-end that copies its dead letters."""

    def __init__(self, front: Front, partition: Partition) -> None:
        self.front = front
        self.partition = partition
        self.shares = Shares(front.log, Calls(front.store, Outages(front.store), StateRoom()))
        self.dead_letters = DeadLetterCopies(front.log, self.shares, front.catalog)

    async def configure(self, configs: Mapping[str, str]) -> None:
        change = ConfigChange(set=configs)
        await self.front.catalog.configure_own(Owner.GROUP, "g", change, 10, validate_only=False)

    async def make_target(self, **configs: str) -> Partition:
        named = {ENABLED: "true"} | {name.replace("_", "."): value for name, value in configs.items()}
        _, topic = await create_topic(self.front.catalog, self.front.log, "dlq.g", 1, named)
        assert topic is not None
        return self.front.log.partition(topic, 0)

    async def fail(self, *acknowledgements: tuple[int, int, int]) -> None:
        """Acquire everything, and acknowledge some of it."""
        await self.shares.acquire(self.partition, "g", ME, LIMITS, 100, reset="earliest")
        given = [Acknowledgement(*one) for one in acknowledgements]
        assert await self.shares.acknowledge(self.partition, "g", ME, given, LIMITS) == 0

    async def copies(self, target: Partition) -> list[Whole]:
        found = await self.front.read(target, 0)
        return [placed.record for placed in read(b"".join(found.records))]

    async def start(self) -> int:
        described = await self.shares.describe(self.partition, "g")
        assert described is not None
        return described.start


@pytest.fixture
async def scene(one: Front) -> Scene:
    _, topic = await create_topic(one.catalog, one.log, "source", 1, {})
    assert topic is not None
    scene = Scene(one, one.log.partition(topic, 0))
    await one.append(scene.partition, built(*RECORDS, codec=4)[1])
    await scene.shares.begin(scene.partition, "g", "cgp_1")
    await scene.configure({TOPIC: "dlq.g", COPIES: "true"})
    return scene


def _added(offset: int, message: str, deliveries: int = 1) -> tuple[tuple[str, bytes], ...]:
    texts = {
        "topic": "source", "partition": "0", "offset": str(offset), "group": "g", "delivery.count": str(deliveries),
        "message": message,
    }  # fmt: skip
    return tuple((f"__dlq.errors.{name}", text.encode()) for name, text in texts.items())


REJECTED, EXCEEDED = "Offset rejected by client.", "Offset delivery count exceeded the threshold."


async def test_failed_records_are_copied_with_what_failed_and_then_finished(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(data: bytes, wanted: range) -> Iterator[tuple[int, Content]]:
        # A batch may take seconds, and the loop is everybody's.
        assert threading.current_thread() is not threading.main_thread()
        return contents(data, wanted)

    monkeypatch.setattr(dead_letters, "contents", opened)
    target = await scene.make_target()
    await scene.fail((0, 1, AcknowledgeType.REJECT), (2, 2, AcknowledgeType.RELEASE), (3, 3, AcknowledgeType.ACCEPT))
    assert await scene.start() == 0
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    copies = await scene.copies(target)
    assert [(one.key, one.value) for one in copies] == [(one.key, one.value) for one in RECORDS[:3]]
    assert copies[0].headers == (*RECORDS[0].headers, *_added(0, REJECTED))
    assert copies[1].headers == _added(1, REJECTED)
    assert copies[2].headers == _added(2, EXCEEDED)
    assert await scene.start() == 4
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    assert len(await scene.copies(target)) == 3


async def test_copies_are_of_headers_alone_unless_the_group_wants_the_records(scene: Scene) -> None:
    await scene.configure({COPIES: "false"})
    target = await scene.make_target(korvet_storage="record")
    await scene.fail((0, 0, AcknowledgeType.REJECT))
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    (copy,) = await scene.copies(target)
    assert (copy.key, copy.value, copy.headers) == (None, None, _added(0, REJECTED))


async def test_records_wait_for_a_topic_that_takes_them(scene: Scene) -> None:
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    assert "there is no topic dlq.g" in await scene.dead_letters.copy(scene.partition, "g")
    target = await scene.make_target(**{ENABLED.replace(".", "_"): "false"})
    assert f"no {ENABLED}=true" in await scene.dead_letters.copy(scene.partition, "g")
    assert await scene.start() == 0
    await scene.front.catalog.configure(target.topic, ConfigChange(set={ENABLED: "true"}))
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    assert len(await scene.copies(target)) == 4
    assert await scene.start() == 4


async def test_missing_topic_is_created_if_the_broker_allows_it(scene: Scene) -> None:
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    catalog = scene.front.catalog
    catalog.take_static({CREATES: "true", "num.partitions": "3"})
    await scene.configure({TOPIC: "dlq.$"})
    assert "no topic can be created" in await scene.dead_letters.copy(scene.partition, "g")
    await scene.configure({TOPIC: "dlq.g"})
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    topic = catalog.topic("dlq.g")
    assert topic is not None
    assert (topic.partitions, catalog.boolean(topic, ENABLED)) == (3, True)
    assert len(await scene.copies(scene.front.log.partition(topic, 0))) == 4


async def test_topic_has_to_begin_with_the_brokers_prefix(scene: Scene) -> None:
    await scene.make_target()
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    scene.front.catalog.take_static({PREFIX: "dead."})
    assert "does not begin with dead." in await scene.dead_letters.copy(scene.partition, "g")
    scene.front.catalog.take_static({PREFIX: ""})
    assert await scene.dead_letters.copy(scene.partition, "g") == ""


async def test_record_that_is_gone_is_copied_by_its_headers(scene: Scene) -> None:
    target = await scene.make_target()
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    await scene.front.log.trim(scene.partition, 3)
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    copies = await scene.copies(target)
    assert [one.value for one in copies] == [None, None, None, b"v3"]
    assert await scene.start() == 4


async def test_records_of_more_than_one_read_are_copied(scene: Scene) -> None:
    target = await scene.make_target()
    for letter in (b"a", b"b", b"c"):
        await scene.front.append(scene.partition, built(Whole(b"k", letter * 700_000))[1])
    await scene.fail((0, 6, AcknowledgeType.REJECT))
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    found = [await scene.front.read(target, offset) for offset in (4, 5, 6)]
    values = [read(b"".join(one.records))[0].record.value for one in found]
    assert values == [letter * 700_000 for letter in (b"a", b"b", b"c")]
    assert await scene.start() == 7


async def test_group_without_the_setting_finishes_what_waits(scene: Scene) -> None:
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    await scene.configure({TOPIC: ""})
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    assert await scene.start() == 4


async def test_front_end_that_comes_next_copies_what_another_one_left(scene: Scene, other: Front) -> None:
    target = await scene.make_target()
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    await other.catalog.refresh()
    heir = Scene(other, other.known(scene.partition))
    noted: list[str] = []
    heir.shares.on_dead_letters = lambda _, group_id: noted.append(group_id)
    await heir.shares.acquire(heir.partition, "g", ME, LIMITS, 1)
    assert noted == ["g"]
    assert await heir.dead_letters.copy(heir.partition, "g") == ""
    assert len(await scene.copies(target)) == 4


async def test_letters_that_cannot_be_copied_now_are_left_for_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await scene.make_target()
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    again, lease, calls = scene.dead_letters, scene.shares.dead_letters, 0

    async def leased(partition: Partition, group_id: str, owner: str) -> Sequence[DeadLetters]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return [] if calls == 2 else await lease(partition, group_id, owner)

    async def is_called(times: int) -> bool:
        again.note(scene.partition, "g")
        for _ in range(20):
            await scene.start()
        return calls == times

    monkeypatch.setattr(scene.shares, "dead_letters", leased)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again.run)
        assert await is_called(1)
        assert await is_called(1)
        monkeypatch.setattr(dead_letters, "_AGAIN_S", 0.0)
        assert await is_called(2)
        monkeypatch.setattr(dead_letters, "_AGAIN_S", 5.0)
        assert await is_called(2)
        monkeypatch.setattr(dead_letters, "_AGAIN_S", 0.0)
        while await scene.start() < 4:
            again.note(scene.partition, "g")
        tasks.cancel_scope.cancel()
    assert len(await scene.copies(target)) == 4


async def test_letters_of_members_that_have_left_are_copied_after_an_attempt_in_vain(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_AGAIN_S", 0.5)
    target = await scene.make_target()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.dead_letters.run)
        scene.dead_letters.note(scene.partition, "g")
        with anyio.fail_after(20):
            while not scene.dead_letters._vain_at:
                await scene.start()
            await scene.fail((0, 3, AcknowledgeType.REJECT))
            while await scene.start() < 4:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert len(await scene.copies(target)) == 4


def test_damaged_batches_have_no_contents() -> None:
    _, data = built(*RECORDS)
    assert [offset for offset, _ in contents(data, range(1, 3))] == [1, 2]
    damaged = data[:61] + b"\xff" * (len(data) - 61)
    with pytest.raises(UndecodableRecords):
        list(contents(damaged, range(4)))
    batch, copy = copy_of(Content(), {"a": "b"}, 5)
    assert batch.size_bytes == len(copy)
    assert read(copy)[0].record == Whole(None, None, (("a", b"b"),), 5)


async def test_records_that_the_tier_has_no_turn_for_are_copied_later(
    scene: Scene, one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_MOST_READS", 1)
    monkeypatch.setattr(dead_letters, "_TURN_S", 0.0)
    target, store, (busy, _) = await scene.make_target(), Store(), await filled(one)
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    await seal(one, store, scene.partition, [0, 4])
    await seal(one, store, busy, [0, 48])
    async with reader(one, store):
        store.wait()
        (awaited,) = await one.log.read([Want(busy, 0, EVERYTHING)], EVERYTHING)
        assert awaited.pending is not None
        with pytest.raises(StoreUnavailable, match="the tier does not answer"):
            await scene.dead_letters.copy(scene.partition, "g")
        assert await scene.copies(target) == []
        store.open.set()
        await asyncio.wait([awaited.pending])
        assert await scene.dead_letters.copy(scene.partition, "g") == ""
        assert [copied.value for copied in await scene.copies(target)] == [record.value for record in RECORDS]


async def test_copies_wait_for_room_as_producers_do(scene: Scene) -> None:
    async def stored() -> tuple[int, int, int]:
        return 100, 0, 1

    log = scene.front.log
    allowance = log.reserve = Allowance("tenant", log.reserve, StateRoom(), stored)
    target = await scene.make_target()
    await scene.fail((0, 3, AcknowledgeType.REJECT))
    allowance.limit(100)
    await allowance._step()
    assert "as many bytes as it may have" in await scene.dead_letters.copy(scene.partition, "g")
    assert (await scene.front.read(target, 0)).records == []
    assert await scene.start() == 0
    allowance.limit(None)
    assert await scene.dead_letters.copy(scene.partition, "g") == ""
    assert len(await scene.copies(target)) == 4


async def test_copies_before_one_that_has_no_room_do_not_come_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, room = await scene.make_target(), [True, True, False, False, True, False, True]
    await scene.fail((0, 0, AcknowledgeType.REJECT), (1, 3, AcknowledgeType.RELEASE))
    with monkeypatch.context() as patch:
        patch.setattr(scene.front.log.reserve, "take", lambda _, __: room.pop(0))
        for start in (2, 2, 3):
            assert await scene.dead_letters.copy(scene.partition, "g") != ""
            assert await scene.start() == start
        assert await scene.dead_letters.copy(scene.partition, "g") == ""
    assert [one.value for one in await scene.copies(target)] == [one.value for one in RECORDS]
