"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and InitProducerId."""

from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.script import Script, Step
from tests.oracle.scripts.steps import new_topic, offsets_body, produced
from tests.oracle.values import Plus

# Times of the six records: now, +10, +20 | +5 | +40, +41: the fourth is older than the records before it.
BATCHES: Final = (
    Batch(count=3, timestamp="$now", step_ms=10),
    Batch(timestamp=Plus(var="now", amount=5)),
    Batch(count=2, timestamp=Plus(var="now", amount=40), step_ms=1),
)
LOG: Final = (*new_topic(), *produced(*BATCHES))


def _list(timestamp: Any, *errors: str, epoch: Any = -1, expected: bool = True) -> Step:
    body = offsets_body("t", [0], timestamp, epoch)
    return Step("list_offsets", body, errors=errors if expected else None)


def _after(amount: int) -> Plus:
    return Plus(var="now", amount=amount)


def _list_script(name: str, *steps: Step, start: int = 1, log: tuple[Step, ...] = LOG) -> Script:
    versions = tuple(range(start, 12))
    return Script(f"list offsets {name}", "list_offsets", *log, *steps, versions=versions)


LIST_OFFSETS: Final = (
    _list_script(
        "of a log",
        _list(-2),
        _list(-1),
        *(_list(_after(ms)) for ms in (-1, 0, 1, 5, 15, 20, 21, 40, 41, 42)),
        *(_list(marker, expected=False) for marker in (-4, -5, -6, -7, -99)),
        Step("list_offsets", offsets_body("t", [0, 7, -1], -1), errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
        Step("list_offsets", offsets_body("t", [0, 0], -1), errors=None),
        Step("list_offsets", offsets_body("u", [0], -1), errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
    ),
    _list_script("latest time", _list(-3), start=7),
    _list_script("empty log", _list(-2), _list(-1), _list("$now"), log=new_topic()),
    _list_script("empty log latest time", _list(-3), start=7, log=new_topic()),
    _list_script(
        "leader epochs",
        _list(-1, epoch="$t_epoch"),
        _list(-1, "UNKNOWN_LEADER_EPOCH", epoch=Plus(var="t_epoch", amount=1)),
        start=4,
    ),
    _list_script(
        "read committed",
        Step("list_offsets", {**offsets_body("t", [0], -1), "isolation_level": 1}),
        start=2,
    ),
)


def _epoch(leader_epoch: Any, *errors: str, current: Any = -1, name: str = "$t", partition: int = 0) -> Step:
    asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": leader_epoch}
    body = {"replica_id": -1, "topics": [{"topic": name, "partitions": [asked]}]}
    return Step("offset_for_leader_epoch", body, errors=errors)


LEADER_EPOCH: Final = (
    Script("leader epochs", "offset_for_leader_epoch", *LOG, _epoch("$t_epoch"), _epoch("$t_epoch", current="$t_epoch"),
           _epoch(Plus(var="t_epoch", amount=1)), _epoch(-1),
           _epoch("$t_epoch", "UNKNOWN_LEADER_EPOCH", current=Plus(var="t_epoch", amount=1)),
           _epoch(0, "UNKNOWN_TOPIC_OR_PARTITION", partition=8), _epoch(0, "UNKNOWN_TOPIC_OR_PARTITION", name="$u")),
)  # fmt: skip


def _delete(offset: int, *errors: str, name: str = "$t", partition: int = 0) -> Step:
    asked = {"partition_index": partition, "offset": offset}
    body = {"timeout": 5000, "topics": [{"name": name, "partitions": [asked]}]}
    return Step("delete_records", body, errors=errors)


EARLIEST: Final = Step("list_offsets", offsets_body("t", [0], -2))

DELETE_RECORDS: Final = (
    Script(
        "delete records step by step",
        "delete_records",
        *LOG,
        *(
            step
            for offset in (1, 0, 4, -1)
            for step in (_delete(offset), EARLIEST, Step("list_offsets", offsets_body("t", [0], "$now")))
        ),
        *produced(BATCHES[0]),
        Step("list_offsets", offsets_body("t", [0], -1)),
    ),
    Script("delete records refused", "delete_records", *LOG, _delete(7, "OFFSET_OUT_OF_RANGE"),
           _delete(-2, "OFFSET_OUT_OF_RANGE"), _delete(1, "UNKNOWN_TOPIC_OR_PARTITION", name="$u"),
           _delete(1, "UNKNOWN_TOPIC_OR_PARTITION", partition=5), EARLIEST),
)  # fmt: skip


def _init(*errors: str, **body: Any) -> Step:
    """InitProducerId; if no error is expected, it waits for Kafka's first block of ids."""
    body = {"transactional_id": None, **body}
    return Step("init_producer_id", body, errors=errors, until=None if errors else ("", None))


INIT_PRODUCER_ID: Final = (
    Script("producer id for an idempotent producer", "init_producer_id", _init(), _init(transaction_timeout=60000)),
    Script("producer id with an id and epoch given", "init_producer_id",
           Step("init_producer_id", {"producer_id": 77, "producer_epoch": 3}, errors=None),
           Step("init_producer_id", {"producer_id": 77, "producer_epoch": -1}, errors=None),
           Step("init_producer_id", {"producer_id": -1, "producer_epoch": 3}, errors=None), versions=(3, 4, 5)),
    Script("producer id for an empty transactional id", "init_producer_id",
           _init("INVALID_REQUEST", transactional_id="", transaction_timeout=60000)),
)  # fmt: skip

SCRIPTS: Final = (*LIST_OFFSETS, *LEADER_EPOCH, *DELETE_RECORDS, *INIT_PRODUCER_ID)
