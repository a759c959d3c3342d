"""The oracle's scripts by area. A new area is a module with SCRIPTS, which this file lists."""

from typing import Final

from tests.oracle.script import Script
from tests.oracle.scripts import (
    acls,
    administration,
    client_metrics,
    cluster,
    commits_of_members,
    configs,
    consumer_configs,
    consumer_descriptions,
    consumer_groups,
    consumer_offsets,
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
    users,
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
        consumer_offsets,
        consumer_descriptions,
        consumer_configs,
        client_metrics,
        migration,
        administration,
        acls,
        users,
    )
    for script in area.SCRIPTS
)
