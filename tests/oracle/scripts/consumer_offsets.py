"""Offsets of groups of the consumer protocol."""

from typing import Final

from tests.oracle.scripts import transactions
from tests.oracle.scripts.consumer_steps import (
    SETTLED_PAIR,
    commit,
    delete,
    described,
    fetch,
    forget,
    join,
    leave,
    script,
    seen,
)
from tests.oracle.scripts.membership import NOBODY
from tests.oracle.scripts.steps import new_topic

SCRIPTS: Final = (
    script("offsets", *new_topic("u"), *SETTLED_PAIR, commit(1, "UNKNOWN_MEMBER_ID"),
           commit(2, "UNKNOWN_MEMBER_ID", member=NOBODY, epoch=2), commit(3, "STALE_MEMBER_EPOCH", member="m", epoch=1),
           commit(4, "STALE_MEMBER_EPOCH", member="m", epoch=3), commit(5, "STALE_MEMBER_EPOCH", member="m"),
           commit(6, "UNSUPPORTED_VERSION", member="m", epoch=2, version=8),
           commit(7, "UNSUPPORTED_VERSION", member="m", epoch=2, version=2), fetch(), commit(8, member="m", epoch=2),
           commit(9, member="n", epoch=2), commit(3, member="n", epoch=2, name="$u"), fetch(),
           fetch(member="m", epoch=2), fetch("STALE_MEMBER_EPOCH", member="m", epoch=1),
           fetch("STALE_MEMBER_EPOCH", member="m", epoch=3), fetch("UNKNOWN_MEMBER_ID", member=NOBODY, epoch=2),
           fetch("UNKNOWN_MEMBER_ID", member="", epoch=2), fetch(version=8), fetch(version=7),
           forget("$t", "GROUP_SUBSCRIBED_TO_TOPIC"), forget("$u"), delete("NON_EMPTY_GROUP"), leave("m"), leave("n"),
           commit(10, "UNKNOWN_MEMBER_ID", member="m", epoch=2), commit(11), fetch(), commit(12, version=8),
           fetch("UNKNOWN_MEMBER_ID", member="m", epoch=2), forget("$t"), delete(), delete("GROUP_ID_NOT_FOUND"),
           described(), *seen(), versions=(1,)),
    script(
        "offsets in a transaction",
        transactions.READY,
        *transactions.GROUP_READY,
        transactions.init(),
        transactions.add_offsets(),
        join("m"),
        *(
            transactions.hold(*errors, version=4, member_id=member, generation_id=epoch)
            for member, epoch, errors in (
                ("m", 7, ("ILLEGAL_GENERATION",)),
                (NOBODY, 1, ("UNKNOWN_MEMBER_ID",)),
                ("m", 1, ()),
                ("", -1, ()),
            )
        ),
        fetch(),
        transactions.offsets("UNSTABLE_OFFSET_COMMIT", stable=True),
        transactions.end(version=3),
        transactions.state("CompleteCommit"),
        fetch(),
        versions=(1,),
    ),
)  # fmt: skip
