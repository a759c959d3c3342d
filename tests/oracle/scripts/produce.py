"""Produce: stored batches, and refused ones with their codes. Source: KafkaApis.handleProduceRequest, UnifiedLog."""

from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.script import CLOSED, Script, Step
from tests.oracle.scripts.steps import (
    NO_SUCH_ID,
    fetch_body,
    new_topic,
    offsets_body,
    produce_body,
)
from tests.oracle.scripts.transactions import ID, READY, init
from tests.oracle.values import Plus

API: Final = "produce"
NOW: Final = "$now"
PRODUCER: Final = "$producer"
INTERNAL: Final = "__share_group_state"
"""An internal topic of Kafka's that neither broker has made."""


def _produce(records: Any, *errors: str, partition: int = 0, acks: int = -1) -> Step:
    return Step(API, produce_body({partition: records}, acks=acks), errors=errors)


def _read() -> Step:
    return Step("fetch", fetch_body([{}]))


def _idempotent(sequence: int, count: int = 1, epoch: Any = 0, producer: Any = PRODUCER, **more: Any) -> list[Batch]:
    return [Batch(count=count, timestamp=NOW, producer_id=producer, producer_epoch=epoch, sequence=sequence, **more)]


NEW_PRODUCER: Final = Step(
    "init_producer_id", {"transactional_id": None}, save={"producer": "producer_id"}, until=("", None)
)

PLAIN: Final = (
    Script("produce one batch after another", API, *new_topic(), _produce([Batch(count=3, timestamp=NOW, step_ms=5)]),
           _produce([Batch(count=2, timestamp=NOW, key=b"key")], acks=1),
           _produce([Batch(timestamp=NOW, value=bytes(20_000))]), _read()),
    Script("produce without acknowledgement", API, *new_topic(),
           Step(API, produce_body({0: [Batch(timestamp=NOW)]}, acks=0), silent=True, errors=None),
           Step("list_offsets", offsets_body("t", [0], -1), until=("topics[0].partitions[0].offset", 1))),
    Script("produce without acknowledgement to no topic", API,
           Step(API, produce_body({0: [Batch(timestamp=NOW)]}, topic_id=NO_SUCH_ID, acks=0), silent=True, errors=None),
           versions=(3, 8, 9, 12)),
    Script(
        "produce without acknowledgement what is refused",
        API,
        *new_topic(),
        *(
            _produce(records, CLOSED, acks=0)
            for records in (
                [Batch(timestamp=NOW, damage="crc")],
                bytes(100),
                _idempotent(0, producer=4000, attributes=0x10),
            )
        ),
    ),
    Script(
        "produce to two partitions of which one refuses",
        API,
        *new_topic(partitions=2),
        *(
            Step(API, produce_body({0: [Batch(timestamp=NOW)], 1: records}), errors=None)
            for records in (
                [Batch(timestamp=NOW, damage="crc")],
                bytes(100),
                _idempotent(0, producer=4000, attributes=0x10),
                [Batch(timestamp=NOW)],
            )
        ),
        Step("fetch", fetch_body([{}, {"partition": 1}])),
    ),
    Script(
        "produce to two partitions and one that does not exist",
        API,
        *new_topic(partitions=2),
        Step(API, produce_body({i: [Batch(count=i + 1, timestamp=NOW)] for i in range(3)}),
             errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
        Step("list_offsets", offsets_body("t", [0, 1], -1)),
    ),
    Script("produce gzip", API, *new_topic(), _produce([Batch(count=50, timestamp=NOW, attributes=1)]), _read()),
    Script("produce to a topic that stamps", API, *new_topic(message_timestamp_type="LogAppendTime"),
           _produce([Batch(count=2, timestamp=1000)]),
           Step("fetch", fetch_body([{}]), ignore=("responses[].partitions[].records[].max_time",))),
    Script("produce old timestamp", API, *new_topic(), _produce([Batch(timestamp=1000)])),
    Script("produce a batch that says that its time is the broker's", API, *new_topic(),
           _produce([Batch(timestamp=1000, attributes=8)]), _read()),
    Script("produce no timestamp", API, *new_topic(), _produce([Batch(timestamp=-1)]), _read()),
    Script("produce nothing", API, Step(API, {"acks": 1, "timeout": 1000, "topic_data": []}), *new_topic(),
           Step(API, produce_body({}))),
)  # fmt: skip

UNKNOWN: Final = (
    Script("produce unknown topic", API,
           Step(API, produce_body({0: [Batch(timestamp=NOW)]}, topic_id=NO_SUCH_ID), errors=None)),
    Script("produce illegal topic name", API,
           Step(API, produce_body({0: [Batch(timestamp=NOW)]}, name="bad name", topic_id=NO_SUCH_ID), errors=None),
           versions=(3, 8, 9, 12)),
    Script("produce negative partition", API, *new_topic(),
           _produce([Batch(timestamp=NOW)], "UNKNOWN_TOPIC_OR_PARTITION", partition=-1)),
    Script("produce invalid acks", API, *new_topic(),
           *(_produce([Batch(timestamp=NOW)], "INVALID_REQUIRED_ACKS", acks=acks) for acks in (5, 2, -2)),
           _produce([Batch(timestamp=NOW, damage="crc")], "INVALID_REQUIRED_ACKS", acks=2),
           Step(API, produce_body({0: [Batch(timestamp=NOW, damage="magic")]}, acks=2), errors=None)),
)  # fmt: skip

REFUSED: Final = (
    Script("produce refused batches", API, *new_topic(),
           _produce([Batch(timestamp=NOW, damage="crc")], "CORRUPT_MESSAGE"),
           _produce([Batch(timestamp=NOW, damage="base_offset")], "INVALID_RECORD"),
           _produce([Batch(timestamp=NOW, damage="truncated")], "INVALID_RECORD"),
           _produce([Batch(timestamp=NOW, damage="length")], "CORRUPT_MESSAGE"),
           _produce([Batch(count=2, timestamp=NOW, damage="count")], "INVALID_RECORD"),
           _produce([Batch(count=0, timestamp=NOW, attributes=1)], "INVALID_RECORD"),
           _produce([Batch(timestamp=NOW, producer_id=5, producer_epoch=0)], "INVALID_RECORD"),
           _produce([Batch(timestamp=Plus(var="now", amount=86_400_000), count=2)], "INVALID_TIMESTAMP"),
           _produce([Batch(timestamp=NOW, attributes=0x20)], "INVALID_RECORD"), _read()),
    Script("produce too large", API, *new_topic(max_message_bytes="300"),
           *(_produce([Batch(timestamp=NOW, value=bytes(size))], "MESSAGE_TOO_LARGE") for size in (400, 40_000)),
           _read()),
    # Depending on the version, Kafka closes the connection or answers; the script compares the code and expects none.
    Script(
        "produce doubtful batches",
        API,
        *new_topic(),
        *(
            Step(API, produce_body({0: records}), errors=None)
            for records in (
                [Batch(timestamp=NOW, damage="magic")],
                [Batch(timestamp=NOW), Batch(timestamp=NOW)],
                b"",
                b"\0\1\2",
                _idempotent(0, producer=4000, attributes=0x10),
            )
        ),
        _read(),
    ),
)  # fmt: skip

ZSTD: Final = (
    Script("produce zstd before it was allowed", API, *new_topic(),
           _produce([Batch(timestamp=NOW, attributes=4)], "UNSUPPORTED_COMPRESSION_TYPE"), _read(),
           versions=(3, 4, 5, 6)),
    Script("produce undecodable zstd", API, *new_topic(),
           _produce([Batch(timestamp=NOW, attributes=4)], "UNKNOWN_SERVER_ERROR"), _read(), versions=(7, 9, 13)),
)  # fmt: skip

IDEMPOTENT: Final = (
    Script("produce in sequence, a duplicate and a gap", API, *new_topic(), NEW_PRODUCER, _produce(_idempotent(0, 3)),
           _produce(_idempotent(3, 2)), _produce(_idempotent(0, 3)), _produce(_idempotent(3, 2)),
           _produce(_idempotent(9), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
           _produce(_idempotent(4), "OUT_OF_ORDER_SEQUENCE_NUMBER"), _produce(_idempotent(5)), _read()),
    Script("produce duplicate older than five batches", API, *new_topic(), NEW_PRODUCER,
           *(_produce(_idempotent(i)) for i in range(7)), _produce(_idempotent(0), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
           _produce(_idempotent(2)), _produce(_idempotent(6)), versions=(3, 9, 13)),
    Script("produce epochs", API, *new_topic(), NEW_PRODUCER, _produce(_idempotent(0, epoch=1)),
           _produce(_idempotent(1, epoch=0), "INVALID_PRODUCER_EPOCH"),
           _produce(_idempotent(1, epoch=2), "OUT_OF_ORDER_SEQUENCE_NUMBER"), _produce(_idempotent(0, epoch=2)),
           _produce(_idempotent(1, epoch=2))),
    Script("produce first sequence not zero", API, *new_topic(), NEW_PRODUCER, _produce(_idempotent(7)),
           _produce(_idempotent(8)), _read(), versions=(3, 9, 13)),
    Script("produce sequence wraps", API, *new_topic(), NEW_PRODUCER, _produce(_idempotent(2**31 - 2, 3)),
           _produce(_idempotent(1)), _read(), versions=(9,)),
    Script(
        "produce to an internal topic",
        API,
        Step(
            "create_topics",
            version=7,
            body={
                "topics": [{"name": INTERNAL, "num_partitions": 1, "replication_factor": 1, "configs": []}],
                "timeout": 10_000,
            },
            errors=None,
        ),
        Step("metadata", version=12, body={"topics": [{"name": INTERNAL}], "allow_auto_topic_creation": False},
             save={"i_id": "topics[0].topic_id"}, until=("", None)),
        Step(API, produce_body({0: [Batch(timestamp=NOW)]}, INTERNAL, "$i_id"), errors=("INVALID_TOPIC_EXCEPTION",)),
        *new_topic(),
        READY,
        init(),
        Step(
            "add_partitions_to_txn",
            version=3,
            body={
                "v3_and_below_transactional_id": ID,
                "v3_and_below_producer_id": "$pid",
                "v3_and_below_producer_epoch": "$epoch",
                "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in (INTERNAL, "$t")],
            },
        ),
        Step("describe_producers",
             {"topics": [{"name": name, "partition_indexes": [0]} for name in ("bad name", "", INTERNAL)]},
             errors=("INVALID_TOPIC_EXCEPTION",)),
        Step("delete_topics", version=5, body={"topic_names": [INTERNAL], "timeout": 10_000}),
        versions=(9, 13),
    ),
    Script(
        "produce duplicate topics in one request",
        API,
        *new_topic(),
        Step(
            API,
            {
                "acks": -1,
                "timeout": 5000,
                "topic_data": [
                    {
                        "name": "$t",
                        "topic_id": "$t_id",
                        "partition_data": [{"index": 0, "records": [Batch(timestamp=NOW)]}],
                    }
                ]
                * 2,
            },
            errors=None,
        ),
        Step("fetch", fetch_body([{}])),
        versions=(9, 12, 13),
    ),
)  # fmt: skip

SCRIPTS: Final = (*PLAIN, *UNKNOWN, *REFUSED, *ZSTD, *IDEMPOTENT)
