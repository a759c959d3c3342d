"""Deadlines in a group: sessions, rebalances, syncs and handed out ids expire, and living members learn of it.

Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat, expirePendingSync, completeClassicGroupJoin
"""

from typing import Final

from tests.oracle.scripts.membership import in_state
from tests.oracle.scripts.rebalances import (
    OTHER_RANGE,
    SHORT_MS,
    beat,
    gathered,
    join,
    leave,
    named,
    received,
    script,
    settled,
    sync,
)

SCRIPTS: Final = (
    script("when a session ends", *settled("m", "n"),
           join("n", later=True, protocols=(OTHER_RANGE,), session_timeout=SHORT_MS),
           beat("m", until="REBALANCE_IN_PROGRESS"), join("m"), received("n"), sync("n", later=True),
           sync("m", assigned=("m", "n")), received("n"), beat("m", until="REBALANCE_IN_PROGRESS"),
           beat("n", "UNKNOWN_MEMBER_ID"), join("n", "UNKNOWN_MEMBER_ID"), join("m")),
    script("when the only session ends", *settled("m", session_timeout=SHORT_MS), in_state("Empty"),
           beat("m", "UNKNOWN_MEMBER_ID")),
    script("without who does not join in time", *settled("m", "n", rebalance_timeout=SHORT_MS),
           join("n", later=True, protocols=(OTHER_RANGE,), rebalance_timeout=SHORT_MS),
           beat("m", until="REBALANCE_IN_PROGRESS"), received("n", save="generation"), beat("m", "UNKNOWN_MEMBER_ID"),
           sync("n", assigned=("n",))),
    script("when a follower does not sync in time", *gathered("m", "n", rebalance_timeout=SHORT_MS),
           sync("m", assigned=("m", "n")), beat("n"), beat("m", until="REBALANCE_IN_PROGRESS"),
           sync("n", "UNKNOWN_MEMBER_ID"), join("m")),
    script("when the leader does not sync in time", *gathered("m", "n", rebalance_timeout=SHORT_MS),
           sync("n", later=True), received("n", "REBALANCE_IN_PROGRESS"), sync("m", "UNKNOWN_MEMBER_ID"), join("n")),
    script("when an id that was handed out is not used in time", *settled("m"), named("n", session_timeout=SHORT_MS),
           join("m", later=True), received("m"), join("n", "UNKNOWN_MEMBER_ID"),
           leave("n", errors=("UNKNOWN_MEMBER_ID",))),
)  # fmt: skip
