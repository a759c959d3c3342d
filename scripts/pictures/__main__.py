"""Write every picture of the design page into docs/images."""

from pathlib import Path
from typing import Final

from scripts.pictures.sequence import Actor, Message, Note, Picture

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"

PRODUCE: Final = Picture(
    title="A produce",
    actors=(
        Actor(name="Producer", detail="any Kafka client"),
        Actor(name="Front-end", detail="keeps no state"),
        Actor(name="Redis", detail="the partition's keys", keeps_state=True),
        Actor(name="Other front-ends", detail="with readers that wait"),
    ),
    steps=(
        Message(0, 1, "Produce: a batch"),
        Note(1, ("judges the batch's header and CRC,", "sends before anything else may run")),
        Message(1, 2, "FCALL korvet_log_append"),
        Note(2, ("one atomic call:", "topic id and sequences are checked,", "the batch is added, the end moves")),
        Message(2, 3, "SPUBLISH epoch, new end"),
        Message(2, 1, "code, base offset", True),
        Message(1, 0, "base offset", True),
    ),
)

FETCH: Final = Picture(
    title="A fetch that waits",
    actors=(
        Actor(name="Consumer", detail="any Kafka client"),
        Actor(name="Front-end", detail="keeps no state"),
        Actor(name="Redis", detail="the partition's keys", keeps_state=True),
        Actor(name="Another front-end", detail="serves a producer"),
    ),
    steps=(
        Message(0, 1, "Fetch at the log's end"),
        Message(1, 2, "SSUBSCRIBE the log's channel"),
        Message(2, 1, "subscribed", True),
        Message(1, 2, "XRANGE, HMGET: one pipeline"),
        Message(2, 1, "nothing yet", True),
        Note(1, ("waits for the channel,", "at most max_wait_ms")),
        Message(3, 2, "FCALL korvet_log_append"),
        Message(2, 1, "message: epoch, new end"),
        Message(1, 2, "XRANGE, HMGET"),
        Message(2, 1, "the new entries", True),
        Message(1, 0, "records", True),
    ),
)

REBALANCE: Final = Picture(
    title="A rebalance of a classic group",
    column=196,
    actors=(
        Actor(name="Member A", detail="leads the group"),
        Actor(name="Front-end 1", detail="keeps no state"),
        Actor(name="Redis", detail="the group's keys", keeps_state=True),
        Actor(name="Front-end 2", detail="keeps no state"),
        Actor(name="Member B", detail="is new"),
    ),
    steps=(
        Message(4, 3, "JoinGroup"),
        Message(3, 2, "korvet_group_join"),
        Note(2, ("PreparingRebalance,", "with a deadline as data")),
        Message(2, 3, "parked, wait_ms", True),
        Message(0, 1, "Heartbeat"),
        Message(1, 2, "korvet_group_heartbeat"),
        Message(2, 1, "REBALANCE_IN_PROGRESS", True),
        Message(1, 0, "REBALANCE_IN_PROGRESS", True),
        Message(0, 1, "JoinGroup"),
        Message(1, 2, "korvet_group_join"),
        Note(2, ("everybody is there:", "the generation begins")),
        Message(2, 1, "generation, all members", True),
        Message(1, 0, "generation, all members", True),
        Message(2, 3, "SPUBLISH: the group moved"),
        Message(3, 2, "korvet_group_await"),
        Message(2, 3, "generation", True),
        Message(3, 4, "generation", True),
        Message(4, 3, "SyncGroup (parked likewise)"),
        Message(0, 1, "SyncGroup: assignments"),
        Message(1, 2, "korvet_group_sync"),
        Note(2, ("Stable",)),
        Message(2, 1, "A's partitions", True),
        Message(1, 0, "A's partitions", True),
        Message(2, 3, "SPUBLISH: the group moved"),
        Message(3, 2, "korvet_group_await_sync"),
        Message(2, 3, "B's partitions", True),
        Message(3, 4, "B's partitions", True),
    ),
)

TRANSACTION: Final = Picture(
    title="A transaction",
    column=204,
    actors=(
        Actor(name="Producer", detail="transactional"),
        Actor(name="Front-end", detail="keeps no state"),
        Actor(name="Redis: the id", detail="decides", keeps_state=True),
        Actor(name="Redis: a partition", detail="is a member", keeps_state=True),
        Actor(name="Redis: a group", detail="is a member", keeps_state=True),
    ),
    steps=(
        Message(0, 1, "InitProducerId"),
        Message(1, 2, "korvet_txn_init"),
        Message(2, 1, "producer id, epoch", True),
        Message(1, 0, "producer id, epoch", True),
        Message(0, 1, "Produce"),
        Message(1, 3, "korvet_log_append_transactional"),
        Message(3, 1, "VERIFY: nothing open here", True),
        Message(1, 2, "korvet_txn_add: partition"),
        Message(2, 1, "ordinal", True),
        Message(1, 3, "korvet_log_append_transactional, with the ordinal"),
        Message(3, 1, "base offset", True),
        Message(1, 0, "base offset", True),
        Message(0, 1, "TxnOffsetCommit"),
        Message(1, 2, "korvet_txn_add: group"),
        Message(1, 4, "korvet_group_txn_commit: offsets are held"),
        Message(1, 0, "no error", True),
        Message(0, 1, "EndTxn: commit"),
        Message(1, 2, "korvet_txn_end"),
        Message(2, 1, "CHECK: ask the members", True),
        Message(1, 3, "korvet_log_check: is your history the same?"),
        Message(1, 4, "korvet_group_txn_check: and yours?"),
        Message(1, 2, "korvet_txn_end: they agree"),
        Note(2, ("the decision is kept:", "from here on anybody", "may carry it out")),
        Message(1, 3, "korvet_log_mark: a control batch"),
        Message(1, 4, "korvet_group_txn_end: offsets are committed"),
        Message(1, 2, "korvet_txn_complete"),
        Message(1, 0, "no error", True),
    ),
)

RECORD: Final = Picture(
    title="One record's way, in microseconds at the median",
    actors=(
        Actor(name="Producer", detail="sends one record"),
        Actor(name="Front-end", detail="keeps no state"),
        Actor(name="Redis", detail="the partition's keys", keeps_state=True),
        Actor(name="Consumer", detail="its Fetch waits"),
    ),
    steps=(
        Message(0, 1, "Produce: 56"),
        Note(1, ("86: header, CRC, call,", "the loop's next round")),
        Message(1, 2, "FCALL korvet_log_append"),
        Note(2, ("114 with both ways,", "47 of it the append")),
        Message(2, 1, "code, base offset", True),
        Note(1, ("45 until the acknowledgement leaves",)),
        Message(1, 0, "base offset: 77", True),
        Note(1, ("158 from the reply until", "the waiting Fetch is answered")),
        Message(1, 3, "the record, out of memory: 56", True),
    ),
)

PICTURES: Final = {
    "produce.svg": PRODUCE,
    "fetch.svg": FETCH,
    "rebalance.svg": REBALANCE,
    "transaction.svg": TRANSACTION,
    "record.svg": RECORD,
}


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (IMAGES / name).write_text(picture.svg())
