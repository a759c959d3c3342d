"""Transactions, by the protocol that first names partitions, and by that of KIP-890.

Kafka answers EndTxn before it has written the end everywhere, so scripts wait until the state shows it.
Source: TransactionCoordinator, KafkaApis, AddPartitionsToTxnManager
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.script import Script, Step
from tests.oracle.scripts.consumer_steps import join, known_topic
from tests.oracle.scripts.membership import joined
from tests.oracle.scripts.steps import NO_SUCH_ID, fetch_body, new_topic, offsets_body, produced
from tests.oracle.values import Plus

TRANSACTIONAL: Final = 0x10
ID: Final = "$w"
FENCED: Final = "PRODUCER_FENCED"
OLD_FENCED: Final = "INVALID_PRODUCER_EPOCH"
UNKNOWN_ID: Final = "INVALID_PRODUCER_ID_MAPPING"
BEFORE: Final = Plus(var="epoch", amount=-1)
AFTER: Final = Plus(var="epoch", amount=1)

READY: Final = Step("find_coordinator", version=4, body={"key_type": 1, "coordinator_keys": [ID]}, until=("", None))


def init(*errors: str, version: int | None = 5, until: bool = True, save: bool = True, **body: Any) -> Step:
    """InitProducerId; saves `pid` and `epoch`."""
    usual = {"transactional_id": ID, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    saved = {"pid": "producer_id", "epoch": "producer_epoch"} if save and not errors else {}
    waits = ("", None) if until and not errors else None
    return Step("init_producer_id", version=version, body={**usual, **body}, save=saved, until=waits, errors=errors)


def add(
    *errors: str, version: int | None = 3, name: str = "$t", partitions: tuple[int, ...] = (0,), **body: Any
) -> Step:
    """AddPartitionsToTxn as clients send it; if no error is expected, it waits for the former transaction's end."""
    usual = {"transactional_id": ID, "producer_id": "$pid", "producer_epoch": "$epoch", **body}
    named = {f"v3_and_below_{key}": value for key, value in usual.items()}
    topics = [{"name": name, "partitions": list(partitions)}]
    done = (_ADDED, "NONE") if not errors else None
    # The codes of partitions are no `error_code`, so they are not among an answer's errors.
    return Step("add_partitions_to_txn", version=version, body={**named, "v3_and_below_topics": topics}, until=done)


_ADDED: Final = "results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code"


def batched(version: int | None, *, verify: bool, partitions: tuple[int, ...] = (0,), **body: Any) -> Step:
    """AddPartitionsToTxn as brokers send it."""
    usual = {"transactional_id": ID, "producer_id": "$pid", "producer_epoch": "$epoch", "verify_only": verify}
    topics = [{"name": "$t", "partitions": list(partitions)}]
    return Step("add_partitions_to_txn", version=version, body={"transactions": [{**usual, **body, "topics": topics}]})


def send(*errors: str, version: int | None = 11, sequence: int = 0, count: int = 1, name: str = ID, **own: Any) -> Step:
    """Produce a batch of the transaction to `$t`."""
    batch = Batch(
        count=count, timestamp="$now", sequence=sequence,
        **{"attributes": TRANSACTIONAL, "producer_id": "$pid", "producer_epoch": "$epoch", **own},
    )  # fmt: skip
    data = [{"name": "$t", "topic_id": "$t_id", "partition_data": [{"index": 0, "records": [batch]}]}]
    body = {"transactional_id": name, "acks": -1, "timeout": 5000, "topic_data": data}
    return Step("produce", version=version, body=body, errors=errors)


def end(*errors: str, version: int | None = 4, commit: bool = True, save: bool = False, **body: Any) -> Step:
    """EndTxn; with `save` it has version 5, and saves the epoch of the answer."""
    usual = {"transactional_id": ID, "producer_id": "$pid", "producer_epoch": "$epoch", "committed": commit}
    saved = {"pid": "producer_id", "epoch": "producer_epoch"} if save else {}
    return Step("end_txn", version=version, body={**usual, **body}, errors=errors, save=saved)


def state(name: str) -> Step:
    """DescribeTransactions, repeated until the transaction has this state."""
    return Step(
        "describe_transactions", {"transactional_ids": [ID]}, until=("transaction_states[0].transaction_state", name)
    )


def read(level: int, offset: int = 0) -> Step:
    return Step("fetch", version=12, body=fetch_body([{"fetch_offset": offset}], isolation_level=level))


def ends(level: int) -> Step:
    return Step("list_offsets", version=7, body={**offsets_body("t", [0], -1), "isolation_level": level})


PRODUCERS: Final = Step(
    "describe_producers",
    {"topics": [{"name": "$t", "partition_indexes": [0]}]},
    ignore=("topics[].partitions[].active_producers[].last_timestamp",),
)
SEEN: Final = (read(1), read(0), ends(1), ends(0))
OPEN: Final = (*new_topic(), READY, init(), add(), send())
"""A transaction of one record on partition 0."""


def script(name: str, api: str, *steps: Step, versions: tuple[int, ...] = ()) -> Script:
    return Script(f"transaction {name}", api, *steps, versions=versions)


INIT: Final = (
    script("ids", "init_producer_id", READY, init(version=None), init(version=None), state("Empty")),
    script("ids of a producer that goes on", "init_producer_id", READY, init(version=None),
           init(version=None, producer_id="$pid", producer_epoch="$epoch"),
           init(version=None, producer_id="$pid", producer_epoch=BEFORE), versions=(3, 4, 5)),
    *(
        script(
            f"ids of a producer that is fenced, v{version}",
            "init_producer_id",
            READY,
            init(),
            init(),
            init(),
            init(code, version=None, producer_id="$pid", producer_epoch=0),
            init(code, version=None, producer_id=4711, producer_epoch=0),
            versions=(version,),
        )
        for version, code in ((3, OLD_FENCED), (4, FENCED), (5, FENCED))
    ),
    script("timeouts that are none", "init_producer_id", READY,
           *(init("INVALID_TRANSACTION_TIMEOUT", version=None, transaction_timeout=ms) for ms in (0, -1, 900_001)),
           init("INVALID_REQUEST", version=None, transactional_id=""), init(version=None, transaction_timeout=900_000)),
    script("ids while one is open", "init_producer_id", *OPEN, init(version=None), state("Empty"), read(1),
           send(OLD_FENCED, producer_epoch=0, sequence=1), end(FENCED, producer_epoch=0)),
)  # fmt: skip

ADD: Final = (
    script("partitions", "add_partitions_to_txn", *new_topic(partitions=2), READY, init(),
           add(version=None, partitions=(0, 1)), add(version=None), state("Ongoing"), versions=(0, 1, 2, 3)),
    script("partitions that do not exist", "add_partitions_to_txn", *new_topic(), READY, init(),
           add("", version=None, partitions=(0, 5)), add("", version=None, name="$u"), state("Empty"),
           versions=(0, 1, 2, 3)),
    script("partitions of nobody", "add_partitions_to_txn", *new_topic(), READY, init(), init(),
           add("", version=None, producer_epoch=BEFORE), add("", version=None, producer_epoch=AFTER),
           add("", version=None, producer_id=4711), add("", version=None, transactional_id="$h"),
           add("", version=None, transactional_id=""), versions=(0, 1, 2, 3)),
    script("partitions that brokers verify", "add_partitions_to_txn", *new_topic(partitions=2), READY, init(),
           batched(None, verify=True), batched(None, verify=False), batched(None, verify=True, partitions=(0, 1)),
           batched(None, verify=True, partitions=(0, 7)), batched(None, verify=True, producer_epoch=AFTER),
           batched(None, verify=True, producer_id=4711), batched(None, verify=True, transactional_id="$h"),
           versions=(4, 5)),
)  # fmt: skip

END: Final = (
    *(
        script(
            f"that is {what}",
            "end_txn",
            *OPEN,
            *SEEN,
            state("Ongoing"),
            end(version=None, commit=commit),
            state(final),
            *SEEN,
            # Again, as if the answer was lost, and with the other outcome.
            end(version=None, commit=commit),
            end("INVALID_TXN_STATE", version=None, commit=not commit),
        )
        for what, commit, final in (("committed", True, "CompleteCommit"), ("aborted", False, "CompleteAbort"))
    ),
    script("that touched nothing", "end_txn", READY, init(), end("INVALID_TXN_STATE", version=None),
           versions=(0, 1, 2, 3, 4, 5)),
    script("that touched nothing aborted", "end_txn", READY, init(), end("INVALID_TXN_STATE", version=4, commit=False),
           end(version=5, commit=False, save=True), versions=(5,)),
    *(
        script(
            f"of others, v{version}",
            "end_txn",
            *OPEN,
            end(UNKNOWN_ID, version=None, producer_id=4711),
            end(UNKNOWN_ID, version=None, transactional_id="$h"),
            end("INVALID_REQUEST", version=None, transactional_id=""),
            end(fenced, version=None, producer_epoch=AFTER),
            end(version=None),
            versions=(version,),
        )
        for version, fenced in enumerate((OLD_FENCED, OLD_FENCED, FENCED, FENCED, FENCED, FENCED))
    ),
    script("after transaction of KIP-890", "end_txn", *new_topic(), READY, init(), send(version=12, count=2),
           end(version=5, save=True), state("CompleteCommit"), send(version=12),
           end(version=5, commit=False, save=True), state("CompleteAbort"), PRODUCERS, send(version=12),
           end(version=5, save=True), state("CompleteCommit"), PRODUCERS, end(version=5, commit=False, save=True),
           send(version=12), end(version=5, save=True), state("CompleteCommit"), *SEEN, read(1, 3), read(1, 5),
           versions=(5,)),
    script("after transaction of the old flow", "end_txn", *OPEN, end(commit=False), state("CompleteAbort"), add(),
           send(sequence=1), end(), state("CompleteCommit"), *SEEN, versions=(4,)),
)  # fmt: skip

NOT_ADDED: Final = (
    (9, "INVALID_TXN_STATE"), (10, "INVALID_TXN_STATE"), (11, "TRANSACTION_ABORTABLE"),
)  # fmt: skip
PRODUCE: Final = (
    script("batches", "produce", *new_topic(), READY, init(), add(), send(version=None), send(version=None, sequence=1),
           *SEEN, versions=tuple(range(3, 14))),
    script("batches that join", "produce", *new_topic(), READY, init(), send(version=None), state("Ongoing"),
           versions=(12, 13)),
    *(
        script(f"batches that were not announced, v{version}", "produce", *new_topic(), READY, init(),
               send(code, version=None), versions=(version,))
        for version, code in NOT_ADDED
    ),
    script("batches of others", "produce", *new_topic(), READY, init(), init(),
           send(UNKNOWN_ID, version=None, name="$h"), send(OLD_FENCED, version=None, producer_epoch=BEFORE),
           send(UNKNOWN_ID, version=None, producer_id=4711), versions=(11, 12)),
    script("batches out of order", "produce", *OPEN, send("OUT_OF_ORDER_SEQUENCE_NUMBER", version=None, sequence=5),
           versions=(11,)),
    script("batches and one without", "produce", *OPEN, send("INVALID_TXN_STATE", version=None, sequence=1,
           attributes=0), versions=(11, 12)),
)  # fmt: skip


def add_offsets(*errors: str, version: int | None = 3, **body: Any) -> Step:
    usual = {"transactional_id": ID, "producer_id": "$pid", "producer_epoch": "$epoch", "group_id": "$g"}
    return Step("add_offsets_to_txn", version=version, body={**usual, **body}, errors=errors)


def hold(*errors: str, version: int | None = None, partition: tuple[str, int] = ("$t", 0), **body: Any) -> Step:
    """TxnOffsetCommit of offset 7; it waits for the group's coordinator."""
    topic, index = partition
    topic_id = "$t_id" if topic == "$t" else NO_SUCH_ID
    part = {"partition_index": index, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": "m"}
    usual = {
        "transactional_id": ID, "group_id": "$g", "producer_id": "$pid", "producer_epoch": "$epoch",
        "generation_id": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": topic, "topic_id": topic_id, "partitions": [part]}],
    }  # fmt: skip
    done = None if errors else ("", None)
    return Step("txn_offset_commit", version=version, body={**usual, **body}, errors=errors, until=done)


def offsets(*errors: str, stable: bool) -> Step:
    topics = [{"name": "$t", "partition_indexes": [0, 1]}]
    body = {"groups": [{"group_id": "$g", "topics": topics}], "require_stable": stable}
    return Step("offset_fetch", version=8, body=body, errors=errors)


GROUP: Final = Step("find_coordinator", version=4, body={"key_type": 0, "coordinator_keys": ["$g"]},
                    until=("", None))  # fmt: skip
NO_OFFSETS: Final = Step(
    "offset_fetch", version=8, until=("", None),
    body={"groups": [{"group_id": "$g", "topics": [{"name": "$t", "partition_indexes": [0]}]}]})  # fmt: skip
GROUP_READY: Final = (GROUP, NO_OFFSETS)

MEMBERS: Final = {
    "a classic group": joined(),
    "a consumer group": (join("m", save={"generation": "member_epoch"}, ignore=("member_epoch",)),),
}
OFFSETS: Final = (
    script("offsets", "add_offsets_to_txn", READY, init(), add_offsets(version=None), add_offsets(version=None),
           add_offsets(UNKNOWN_ID, version=None, producer_id=4711),
           add_offsets("INVALID_REQUEST", version=None, transactional_id="")),
    *(
        script(f"offsets of a fenced one, v{version}", "add_offsets_to_txn", READY, init(),
               add_offsets(code, version=None, producer_epoch=AFTER), versions=(version,))
        for version, code in ((1, OLD_FENCED), (2, FENCED), (4, FENCED))
    ),
    *(
        script(
            f"offsets that are {what}",
            "txn_offset_commit",
            *new_topic(partitions=2),
            READY,
            *GROUP_READY,
            init(),
            add_offsets(),
            hold(),
            offsets(stable=False),
            offsets("UNSTABLE_OFFSET_COMMIT", stable=True),
            end(commit=commit),
            state(final),
            offsets(stable=True),
        )
        for what, commit, final in (("committed", True, "CompleteCommit"), ("aborted", False, "CompleteAbort"))
    ),
    *(
        script(
            f"offsets of nowhere, v{versions[0]}",
            "txn_offset_commit",
            *new_topic(),
            READY,
            *GROUP_READY,
            init(),
            add_offsets(),
            hold(unknown, partition=("$u", 0)),
            hold("UNKNOWN_TOPIC_OR_PARTITION", partition=("$t", 9)),
            hold("INVALID_GROUP_ID", group_id=""),
            hold(UNKNOWN_ID, producer_id=4711),
            hold(OLD_FENCED, producer_epoch=AFTER),
            versions=versions,
        )
        for unknown, versions in (("UNKNOWN_TOPIC_OR_PARTITION", (0, 1, 2, 3, 4, 5)), ("UNKNOWN_TOPIC_ID", (6,)))
    ),
    *(
        script(
            f"offsets of members that are none, v{versions[0]}",
            "txn_offset_commit",
            *new_topic(),
            READY,
            *GROUP_READY,
            init(),
            add_offsets(),
            hold(code, generation_id=3, member_id="m"),
            versions=versions,
        )
        for code, versions in (("ILLEGAL_GENERATION", (3, 4, 5)), ("GROUP_ID_NOT_FOUND", (6,)))
    ),
    *(
        script(
            f"offsets of a member in {what}, v{version}",
            "txn_offset_commit",
            *known_topic(1),
            *MEMBERS[what],
            READY,
            init(),
            add_offsets(),
            hold("UNKNOWN_MEMBER_ID", generation_id=1, member_id="nobody"),
            hold(code, generation_id=9, member_id=member),
            hold(generation_id="$generation", member_id=member),
            versions=(version,),
        )
        for what, member, code, version in (
            ("a classic group", "$m", "ILLEGAL_GENERATION", 5),
            ("a classic group", "$m", "ILLEGAL_GENERATION", 6),
            ("a consumer group", "m", "ILLEGAL_GENERATION", 5),
            ("a consumer group", "m", "STALE_MEMBER_EPOCH", 6),
        )
    ),
    *(
        script(f"offsets that were not announced, v{version}", "txn_offset_commit", *new_topic(), READY, *GROUP_READY,
               init(), hold(code), versions=(version,))
        for version, code in ((3, "INVALID_TXN_STATE"), (4, "TRANSACTION_ABORTABLE"))
    ),
    script("offsets that join", "txn_offset_commit", *new_topic(partitions=2), READY, *GROUP_READY, init(), hold(),
           end(version=5, save=True), state("CompleteCommit"), offsets(stable=True), versions=(5, 6)),
)  # fmt: skip


def listed(**filters: Any) -> Step:
    usual: Mapping[str, Any] = {"producer_id_filters": ["$pid"], "duration_filter": -1}
    return Step("list_transactions", {**usual, **filters}, errors=None)


DESCRIBE: Final = (
    script("list", "list_transactions", *OPEN, listed(), listed(state_filters=["Ongoing"]),
           listed(state_filters=["Empty", "Nonsense"]), end(), state("CompleteCommit"), listed()),
    script("list by duration", "list_transactions", *OPEN, listed(duration_filter=0), listed(duration_filter=3_600_000),
           versions=(1, 2)),
    script("list by pattern", "list_transactions", *OPEN, listed(transactional_id_pattern="oracle-w-.*"),
           listed(transactional_id_pattern="oracle"), listed(transactional_id_pattern="("),
           listed(transactional_id_pattern=""), versions=(2,)),
    script("described", "describe_transactions", *OPEN, state("Ongoing"),
           Step("describe_transactions", {"transactional_ids": ["$h", ""]}, errors=None)),
    script("producers", "describe_producers", *OPEN,
           *produced(Batch(timestamp=1000, producer_id=4711, producer_epoch=2, sequence=0)),
           Step("describe_producers", {"topics": [{"name": "$t", "partition_indexes": [0, 7]}]},
                errors=("UNKNOWN_TOPIC_OR_PARTITION",))),
)  # fmt: skip


def marked(*errors: str, partitions: tuple[int, ...] = (0,), **values: Any) -> Step:
    """WriteTxnMarkers; unless `values` say otherwise it aborts the open transaction."""
    usual = {"producer_id": "$pid", "producer_epoch": "$epoch", "transaction_result": False, "coordinator_epoch": 0}
    topics = [{"name": "$t", "partition_indexes": list(partitions)}]
    return Step("write_txn_markers", {"markers": [{**usual, **values, "topics": topics}]}, errors=errors)


MARKERS: Final = (
    script("markers of an administrator", "write_txn_markers", *new_topic(), READY, init(), init(), add(), send(),
           marked("INVALID_PRODUCER_EPOCH", producer_epoch=BEFORE), *SEEN, marked(), *SEEN,
           marked("UNKNOWN_TOPIC_OR_PARTITION", partitions=(7,)), end(), state("CompleteCommit")),
    script("a commit of an administrator", "write_txn_markers", *OPEN, marked(transaction_result=True), *SEEN),
    script("markers of a transaction of version 2", "write_txn_markers", *OPEN,
           marked("INVALID_PRODUCER_EPOCH", transaction_version=2), marked(transaction_version=2, producer_epoch=AFTER),
           *SEEN, marked(transaction_version=2, producer_epoch=AFTER),
           marked("INVALID_PRODUCER_EPOCH", transaction_version=2), versions=(2,)),
)  # fmt: skip


def remade(name: str, version: int, *steps: Step, commit: bool = True) -> Script:
    """A transaction of a topic that is deleted and made again before its end."""
    delete = Step("delete_topics", version=5, body={"topic_names": ["$t"], "timeout": 10_000})
    asked = {"topics": [{"name": "$t"}], "allow_auto_topic_creation": False}
    gone = Step(
        "metadata", version=12, body=asked, errors=None, until=("topics[0].error_code", "UNKNOWN_TOPIC_OR_PARTITION")
    )
    opens = (*new_topic(), READY, init(), *([add()] if version < 12 else []), send(version=version))
    ending = (end(version=4 if version < 12 else 5, commit=commit), state(f"Complete{'Commit' if commit else 'Abort'}"))
    return script(
        f"of a topic made again {name} {version}",
        "end_txn",
        *(*opens, delete, gone, *new_topic(), *steps, *ending, *SEEN, PRODUCERS, DESCRIBED),
        versions=(4 if version < 12 else 5,),
    )


DESCRIBED: Final = Step("describe_transactions", {"transactional_ids": [ID]})

REMADE: Final = (
    *(
        remade(f"{'commit' if commit else 'abort'}", version, commit=commit)
        for version in (11, 12)
        for commit in (True, False)
    ),
    *(
        remade(f"that is written to {commit}", 11, send(sequence=1), *SEEN[:2], commit=commit)
        for commit in (True, False)
    ),
    remade("that is added", 11, add(), send(sequence=0), *SEEN[:2]),
    remade("that is written to", 12, send("OUT_OF_ORDER_SEQUENCE_NUMBER", version=12, sequence=1), *SEEN[:2]),
    remade("that is begun", 12, send(version=12, sequence=0), *SEEN[:2], commit=False),
)

SCRIPTS: Final = (*INIT, *ADD, *END, *PRODUCE, *OFFSETS, *DESCRIBE, *MARKERS, *REMADE)
