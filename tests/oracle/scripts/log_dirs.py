"""DescribeLogDirs: the partitions in its answer, and their sizes, which are the bytes of the batches as sent."""

from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.script import Script, Step
from tests.oracle.scripts.steps import new_topic, produced


def _described(*topics: tuple[str, list[int]]) -> Step:
    body: dict[str, Any] = {"topics": [{"topic": f"${name}", "partitions": indexes} for name, indexes in topics]}
    return Step("describe_log_dirs", body)


SCRIPTS: Final = (
    Script("describe log dirs", "describe_log_dirs", *new_topic(partitions=3), _described(("t", [0, 1, 2])),
           *produced(Batch(value=b"first"), Batch(count=5, value=b"x" * 1000)),
           *produced(Batch(value=b"x" * 50_000), partition=2), _described(("t", [2, 0])), _described(("t", [1, 1])),
           Step("describe_log_dirs", {"topics": None})),
    Script("describe log dirs of what there is not", "describe_log_dirs", *new_topic(), _described(("t", [7, -1])),
           _described(("u", [0]), ("t", [0])), _described(("t", [])), Step("describe_log_dirs", {"topics": []})),
)  # fmt: skip
