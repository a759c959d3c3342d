"""Fetch: ranges, limits, sessions and leader epochs.

Source: KafkaApis.handleFetchRequest, ReplicaManager.readFromLog.
"""

from typing import Any, Final

from tests.oracle.batches import Batch, encode
from tests.oracle.script import Script, Step
from tests.oracle.scripts.steps import NO_SUCH_ID, fetch_body, new_topic, produced
from tests.oracle.values import Plus

API: Final = "fetch"
BATCHES: Final = tuple(Batch(count=n, timestamp="$now", value=b"v" * 100 * n) for n in (3, 2, 1))  # ends at 3, 5, 6
AT_ONCE: Final = {"max_wait": 60_000}
"""Longer than a script waits for an answer."""
LOG: Final = (*new_topic(), *produced(*BATCHES))


def _fetch(*errors: str, top: dict[str, Any] | None = None, **partition: Any) -> Step:
    return Step(API, fetch_body([partition], **(top or {})), errors=errors)


def _one(name: str, *steps: Step, versions: tuple[int, ...] = ()) -> Script:
    return Script(f"fetch {name}", API, *LOG, *steps, versions=versions)


def _from(version: int) -> tuple[int, ...]:
    return tuple(range(version, 19))


def _bytes(size: int) -> int:
    """The bytes of a batch of one record with a value of this size."""
    return len(encode(Batch(value=bytes(size))))


READS: Final = (
    _one(
        "from each offset and within limits",
        *(_fetch(fetch_offset=offset) for offset in range(7)),
        *(_fetch("OFFSET_OUT_OF_RANGE", fetch_offset=offset) for offset in (7, -1)),
        _fetch(top={"isolation_level": 1}),
        _fetch(partition_max_bytes=1),
        _fetch(top={"max_bytes": 1}),
        _fetch(partition_max_bytes=0, top={"max_bytes": 0}),
        _fetch("UNKNOWN_TOPIC_OR_PARTITION", partition=9),
        Step(API, fetch_body([{}, {"partition": 9}]), errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
        Step(API, fetch_body([{}, {}, {"fetch_offset": 3}])),
        Step(API, fetch_body([], topics=[])),
        _fetch(fetch_offset=6, top={"max_wait": 30, "min_bytes": 1}),
    ),
    _one(
        "answers at once if there is nothing to wait for",
        *(_fetch(fetch_offset=6, top={**AT_ONCE, "min_bytes": number}) for number in (0, -1)),
        _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=7, top={**AT_ONCE, "min_bytes": 1}),
    ),
    _one(
        "below the log start",
        Step("delete_records",
             {"timeout": 5000, "topics": [{"name": "$t", "partitions": [{"partition_index": 0, "offset": 4}]}]}),
        _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=3),
        _fetch(fetch_offset=4),
    ),
    Script("fetch empty log", API, *new_topic(), _fetch(), _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=1)),
)  # fmt: skip

LIMITS: Final = (
    Script("fetch two partitions with room for one", API, *new_topic(partitions=2), *produced(BATCHES[0]),
           *produced(BATCHES[0], partition=1),
           Step(API, fetch_body([{"partition": 0}, {"partition": 1}], max_bytes=10))),
    *(
        Script(
            f"fetch bounded bytes of batches of {size}",
            API,
            *new_topic(partitions=2),
            *(step for part in (0, 0, 1, 1) for step in produced(Batch(value=bytes(size)), partition=part)),
            *(
                Step(
                    API,
                    fetch_body(
                        [{"partition": part, "partition_max_bytes": each} for part in (0, 1)], max_bytes=all_bytes
                    ),
                )
                for each, all_bytes in (
                    (1, 1 << 20),
                    (1 << 20, 1),
                    (0, 0),
                    (_bytes(size), 1 << 20),
                    (1 << 20, 3 * _bytes(size)),
                )
            ),
        )
        for size in (10, 20_000)
    ),
)  # fmt: skip

UNKNOWN: Final = (
    Script("fetch unknown topic", API,
           Step(API, fetch_body([{}], topic_id=NO_SUCH_ID, min_bytes=1, max_wait=60_000), errors=None)),
)  # fmt: skip

SESSIONS: Final = (
    _one(
        "sessions",
        *(
            Step(API, fetch_body([{}], session_id=id, session_epoch=epoch), errors=errors)
            for id, epoch, errors in (
                (123456, 1, ("FETCH_SESSION_ID_NOT_FOUND",)),
                (0, 0, ()),
                (5, 0, ()),
                (123456, -1, None),
                *((0, epoch, None) for epoch in (5, 1, -5)),
            )
        ),
        versions=_from(7),
    ),
)

EPOCHS: Final = (
    _one(
        "leader epochs",
        _fetch(current_leader_epoch="$t_epoch"),
        _fetch("UNKNOWN_LEADER_EPOCH", current_leader_epoch=Plus(var="t_epoch", amount=1)),
        versions=_from(9),
    ),
    _one(
        "last fetched epochs",
        _fetch(fetch_offset=3, last_fetched_epoch="$t_epoch", current_leader_epoch="$t_epoch"),
        _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=3, last_fetched_epoch=Plus(var="t_epoch", amount=1)),
        _fetch(fetch_offset=99, last_fetched_epoch="$t_epoch", top={**AT_ONCE, "min_bytes": 1}),
        versions=_from(12),
    ),
)

SCRIPTS: Final = (*READS, *LIMITS, *UNKNOWN, *SESSIONS, *EPOCHS)
