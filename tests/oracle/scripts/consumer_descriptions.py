"""Groups of the consumer protocol, described and listed."""

from typing import Any, Final

from tests.oracle.script import Script, Step
from tests.oracle.scripts.consumer_steps import SETTLED_PAIR, STATIC_I, commit, described, join, known_topic, leave

DESCRIBED: Final[tuple[dict[str, Any], ...]] = (
    {"group_ids": ["$g", "$h"]},
    {"group_ids": ["$h", "$w"], "include_authorized_operations": True},
    {"group_ids": ["$h", "$h"]},
    {"group_ids": [""]},
    {"group_ids": []},
)

SCRIPTS: Final = (
    Script("describe consumer groups", "consumer_group_describe", *known_topic(3), *SETTLED_PAIR,
           join("o", group_id="$h", rack_id="r", server_assignor="range", **STATIC_I),
           *(Step("consumer_group_describe", body, errors=None) for body in DESCRIBED)),
    Script("describe classic groups as consumer groups", "consumer_group_describe", *known_topic(1),
           commit(4, version=8), described(version=None)),
    Script(
        "list consumer groups",
        "list_groups",
        *known_topic(3),
        *SETTLED_PAIR,
        described("Stable"),
        join("o", group_id="$h"),
        leave("o", group_id="$h"),
        *(
            Step("list_groups", body, errors=None)
            for body in (
                {},
                *({"states_filter": [state]} for state in ("Stable", "Empty", "stable", "Reconciling", "Dead")),
                *({"types_filter": [kind]} for kind in ("consumer", "Consumer", "classic")),
                {"states_filter": ["Empty"], "types_filter": ["consumer"]},
            )
        ),
        versions=(4, 5),
    ),
)  # fmt: skip
