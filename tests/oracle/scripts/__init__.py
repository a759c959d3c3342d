"""The scripts of the oracle by area. A new area is a module with SCRIPTS, named here."""

from typing import Final

from tests.oracle.script import Script
from tests.oracle.scripts import (
    cluster,
    commits_of_members,
    configs,
    consumer_groups,
    cooperative,
    deadlines,
    fetch,
    groups,
    log_dirs,
    membership,
    migration,
    offsets,
    produce,
    rebalances,
    static,
    topics,
    transactions,
)

SCRIPTS: Final[tuple[Script, ...]] = tuple(
    script
    for area in (
        cluster,
        produce,
        fetch,
        offsets,
        topics,
        configs,
        membership,
        groups,
        log_dirs,
        rebalances,
        deadlines,
        static,
        cooperative,
        commits_of_members,
        transactions,
        consumer_groups,
        migration,
    )
    for script in area.SCRIPTS
)
