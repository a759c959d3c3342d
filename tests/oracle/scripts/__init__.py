"""The scripts of the oracle by area. A new area is a module with SCRIPTS, named here."""

from typing import Final

from tests.oracle.script import Script
from tests.oracle.scripts import cluster, configs, fetch, groups, membership, offsets, produce, topics

SCRIPTS: Final[tuple[Script, ...]] = tuple(
    script
    for area in (cluster, produce, fetch, offsets, topics, configs, membership, groups)
    for script in area.SCRIPTS
)
