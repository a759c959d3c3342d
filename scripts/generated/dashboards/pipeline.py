"""The dashboard of the archive: incoming records, records in the lake, and the rest."""

from typing import Final

from scripts.generated.dashboards.dashboard import Dashboard, Panel
from scripts.generated.dashboards.queries import NAMESPACE, TOPIC, each_partition, each_topic, rate

_MISSING: Final = each_partition(f"korvet_archive_lag{{{TOPIC}}}")
_ARCHIVED: Final = f"and {_MISSING}"
_END: Final = f"korvet_partition_end_offset{{{TOPIC}}}"
_COMING: Final = each_topic(f"{each_partition(rate(_END))} {_ARCHIVED}")
_KEPT: Final = f"{each_partition(_END)} - {each_partition(f'korvet_partition_start_offset{{{TOPIC}}}')}"
_PROVEN: Final = f'korvet_group_offset{{group="korvet.archive", {TOPIC}}}'
_FETCHED: Final = 'korvet_response_bytes_total{api="Fetch"}'
_LEGEND: Final = "{{namespace}} {{topic}}"

PIPELINE: Final = Dashboard(
    name="pipeline",
    title="Korvet: pipeline",
    variables={**NAMESPACE, "topic": 'label_values(korvet_archive_lag{namespace=~"$namespace"}, topic)'},
    rows=[
        [
            Panel(
                title="Topics in the archive", is_stat=True,
                queries=[(f"count({each_topic(_MISSING)})", "topics")],
            ),
            Panel(
                title="Records that the archive lacks", is_stat=True,
                queries=[(f"sum({_MISSING})", "records")],
            ),
            Panel(
                title="Bytes of archived topics in Redis", is_stat=True, unit="bytes",
                queries=[(f"sum({each_partition(f'korvet_partition_size_bytes{{{TOPIC}}}')} {_ARCHIVED})", "bytes")],
            ),
        ],
        [
            Panel(
                title="Records that come, of archived topics",
                queries=[(f"topk(10, {_COMING})", _LEGEND)], unit="rowsps",
            ),
            Panel(
                title="Records that are archived",
                text="By the offsets that the archive commits once they are in the lake.",
                queries=[(f"topk(10, {each_topic(each_partition(rate(_PROVEN)))})", _LEGEND)], unit="rowsps",
            ),
        ],
        [
            Panel(
                title="Records that the archive lacks, the ten furthest behind",
                queries=[(f"topk(10, {each_topic(_MISSING)})", _LEGEND)],
            ),
            Panel(
                title="Delay of the archive",
                text="The time in which as many records come as it lacks, at the rate of now.",
                queries=[(f"topk(10, {each_topic(_MISSING)} / ({_COMING} > 0))", _LEGEND)], unit="s",
            ),
        ],
        [
            Panel(
                title="Records in Redis that the archive holds too",
                text="With korvet.retention=archived these are the ones that retention may remove.",
                queries=[(f"topk(10, {each_topic(f'{_KEPT} - {_MISSING}')})", _LEGEND)],
            ),
            Panel(
                title="Bytes that readers take",
                text="Of all readers, the pipeline among them.",
                queries=[(f"sum by (instance) ({rate(_FETCHED)})", "{{instance}}")], unit="Bps",
            ),
        ],
    ],
)  # fmt: skip
