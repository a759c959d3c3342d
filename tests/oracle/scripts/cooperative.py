"""The protocol that a group of several members selects, as when clients move from eager to cooperative rebalancing.

Source: ClassicGroup.selectProtocol, ClassicGroupMember.vote; KIP-429
"""

from typing import Any, Final

from tests.oracle.script import Receive, Script, Step
from tests.oracle.scripts.membership import in_state
from tests.oracle.scripts.rebalances import beat, join, joining, named, received, settled, sync
from tests.oracle.values import Packed


def subscription(generation: bytes = b"\xff\xff\xff\xff") -> Packed:
    """A ConsumerProtocolSubscription of version 2 to $t by an owner of partition 0."""
    owned = b"\0\0\0\1"
    return Packed(pieces=(b"\0\2\0\0\0\1", "$t", b"\xff\xff\xff\xff", owned, "$t", b"\0\0\0\1\0\0\0\0", generation))


def speaks(*names: str) -> dict[str, Any]:
    """The protocols of a member's join, in the order of its preference."""
    return {"protocols": tuple({"name": name, "metadata": subscription()} for name in names)}


def votes(name: str, first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> Script:
    """Three members join one group, and the answer to its leader names the protocol."""
    steps: tuple[Step | Receive, ...] = (
        *settled("m", **speaks("range", "sticky"))[:2],
        sync("m", assigned=("m",)),
        *joining("n", **second),
        *joining("o", **third),
        beat("m", until="REBALANCE_IN_PROGRESS"),
        join("m", **first),
        received("n"),
        received("o"),
    )
    return Script(f"cooperative {name}", "join_group", *steps, versions=(9,))


VOTES: Final = (
    votes("votes two to one", speaks("range", "sticky"), speaks("sticky", "range"), speaks("sticky", "range")),
    votes(
        "votes only for what all support",
        speaks("range", "sticky"),
        speaks("cooperative-sticky", "sticky", "range"),
        speaks("cooperative-sticky", "sticky", "range"),
    ),
    votes(
        "votes for the one protocol that all support",
        speaks("range", "cooperative-sticky"),
        speaks("sticky", "range"),
        speaks("cooperative-sticky", "range"),
    ),
)

MOVES: Final = (
    Script("cooperative after the last eager member is gone", "join_group", *settled("m", **speaks("range")),
           *joining("n", **speaks("cooperative-sticky", "range")), beat("m", until="REBALANCE_IN_PROGRESS"),
           join("m", **speaks("range")), received("n"), sync("n", later=True), sync("m", assigned=("m", "n")),
           received("n"), join("m", later=True, **speaks("cooperative-sticky", "range")),
           beat("n", until="REBALANCE_IN_PROGRESS"), join("n", **speaks("cooperative-sticky")), received("m"),
           sync("n", "INCONSISTENT_GROUP_PROTOCOL"), sync("n", later=True, protocol_name="cooperative-sticky"),
           sync("m", assigned=("m", "n"), protocol_name="cooperative-sticky"), received("n"), in_state("Stable"),
           versions=(9,)),
    Script("cooperative member that was assigned joins again at once", "join_group",
           named("m", **speaks("cooperative-sticky")), join("m", **speaks("cooperative-sticky")),
           *joining("n", **speaks("cooperative-sticky")), beat("m", until="REBALANCE_IN_PROGRESS"),
           join("m", **speaks("cooperative-sticky")), received("n"),
           sync("n", later=True, protocol_name="cooperative-sticky"),
           sync("m", assigned=("m",), protocol_name="cooperative-sticky"), received("n"),
           join("n", later=True, protocols=({"name": "cooperative-sticky", "metadata": subscription(b"\0\0\0\2")},)),
           beat("m", until="REBALANCE_IN_PROGRESS"), join("m", **speaks("cooperative-sticky")), received("n"),
           versions=(9,)),
)  # fmt: skip

SCRIPTS: Final = (*VOTES, *MOVES)
