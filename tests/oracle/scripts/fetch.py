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
    return Step(api=API, body=fetch_body([partition], **(top or {})), errors=errors)


def _one(name: str, *steps: Step, versions: tuple[int, ...] = ()) -> Script:
    return Script(name=f"fetch {name}", api=API, steps=(*LOG, *steps), versions=versions)


def _from(version: int) -> tuple[int, ...]:
    return tuple(range(version, 19))


def _bytes(size: int) -> int:
    """The bytes of a batch of one record with a value of this size."""
    return len(encode(Batch(value=bytes(size))))


OFFSETS: Final = (
    _one("from each offset", *(_fetch(fetch_offset=offset) for offset in range(7))),
    _one("beyond the end", _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=7)),
    _one("negative offset", _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=-1)),
    _one("read committed", _fetch(top={"isolation_level": 1})),
    _one(
        "below the log start",
        Step(
            api="delete_records",
            body={"timeout": 5000, "topics": [{"name": "$t", "partitions": [{"partition_index": 0, "offset": 4}]}]},
        ),
        _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=3),
        _fetch(fetch_offset=4),
    ),
    Script(
        name="fetch empty log", api=API, steps=(*new_topic(), _fetch(), _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=1))
    ),
    _one("waits and finds nothing", _fetch(fetch_offset=6, top={"max_wait": 30, "min_bytes": 1})),
    _one(
        "answers at once if there is nothing to wait for",
        *(_fetch(fetch_offset=6, top={**AT_ONCE, "min_bytes": number}) for number in (0, -1)),
        _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=7, top={**AT_ONCE, "min_bytes": 1}),
    ),
    _one("a partition several times", Step(api=API, body=fetch_body([{}, {}, {"fetch_offset": 3}]))),
)

LIMITS: Final = (
    _one("partition limit below the first batch", _fetch(partition_max_bytes=1)),
    _one("request limit below the first batch", _fetch(top={"max_bytes": 1})),
    _one("no bytes at all", _fetch(partition_max_bytes=0, top={"max_bytes": 0})),
    Script(
        name="fetch two partitions with room for one",
        api=API,
        steps=(
            *new_topic(partitions=2),
            *produced(BATCHES[0]),
            *produced(BATCHES[0], partition=1),
            Step(api=API, body=fetch_body([{"partition": 0}, {"partition": 1}], max_bytes=10)),
        ),
    ),
    *(
        Script(
            name=f"fetch bounded bytes of batches of {size}",
            api=API,
            steps=(
                *new_topic(partitions=2),
                *(step for part in (0, 0, 1, 1) for step in produced(Batch(value=bytes(size)), partition=part)),
                *(
                    Step(
                        api=API,
                        body=fetch_body(
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
            ),
        )
        for size in (10, 20_000)
    ),
)

UNKNOWN: Final = (
    Script(
        name="fetch unknown topic",
        api=API,
        steps=(Step(api=API, body=fetch_body([{}], topic_id=NO_SUCH_ID, min_bytes=1, max_wait=60_000), errors=None),),
    ),
    _one("no such partition", _fetch("UNKNOWN_TOPIC_OR_PARTITION", partition=9)),
    _one(
        "a partition and one that does not exist",
        Step(api=API, body=fetch_body([{}, {"partition": 9}]), errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
    ),
    _one("no topics", Step(api=API, body=fetch_body([], topics=[]))),
)

SESSIONS: Final = (
    _one(
        "foreign session",
        Step(
            api=API, body=fetch_body([{}], session_id=123456, session_epoch=1), errors=("FETCH_SESSION_ID_NOT_FOUND",)
        ),
        versions=_from(7),
    ),
    _one("new session", Step(api=API, body=fetch_body([{}], session_epoch=0)), versions=_from(7)),
    _one(
        "closing a foreign session",
        Step(api=API, body=fetch_body([{}], session_id=123456, session_epoch=-1), errors=None),
        versions=_from(7),
    ),
    _one(
        "epoch without a session",
        *(Step(api=API, body=fetch_body([{}], session_epoch=epoch), errors=None) for epoch in (5, 1, -5)),
        versions=_from(7),
    ),
    _one(
        "new session in place of a foreign one",
        Step(api=API, body=fetch_body([{}], session_id=5, session_epoch=0)),
        versions=_from(7),
    ),
)

EPOCHS: Final = (
    _one("current leader epoch", _fetch(current_leader_epoch="$t_epoch"), versions=_from(9)),
    _one(
        "leader epoch of the future",
        _fetch("UNKNOWN_LEADER_EPOCH", current_leader_epoch=Plus(var="t_epoch", amount=1)),
        versions=_from(9),
    ),
    _one(
        "last fetched epoch agrees",
        _fetch(fetch_offset=3, last_fetched_epoch="$t_epoch", current_leader_epoch="$t_epoch"),
        versions=_from(12),
    ),
    _one(
        "last fetched epoch of the future",
        _fetch("OFFSET_OUT_OF_RANGE", fetch_offset=3, last_fetched_epoch=Plus(var="t_epoch", amount=1)),
        versions=_from(12),
    ),
    _one(
        "beyond the end of the last fetched epoch",
        _fetch(fetch_offset=99, last_fetched_epoch="$t_epoch", top={**AT_ONCE, "min_bytes": 1}),
        versions=_from(12),
    ),
)

SCRIPTS: Final = (*OFFSETS, *LIMITS, *UNKNOWN, *SESSIONS, *EPOCHS)
