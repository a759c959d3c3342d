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
            Panel("Topics in the archive", (f"count({each_topic(_MISSING)})", "topics"), is_stat=True),
            Panel("Records that the archive lacks", (f"sum({_MISSING})", "records"), is_stat=True),
            Panel("Bytes of archived topics in Redis",
                  (f"sum({each_partition(f'korvet_partition_size_bytes{{{TOPIC}}}')} {_ARCHIVED})", "bytes"),
                  is_stat=True, unit="bytes"),
        ],
        [
            Panel("Records that come, of archived topics", (f"topk(10, {_COMING})", _LEGEND), unit="rowsps"),
            Panel("Records that are archived", (f"topk(10, {each_topic(each_partition(rate(_PROVEN)))})", _LEGEND),
                  text="By the offsets that the archive commits once they are in the lake.", unit="rowsps"),
        ],
        [
            Panel("Records that the archive lacks, the ten furthest behind",
                  (f"topk(10, {each_topic(_MISSING)})", _LEGEND)),
            Panel("Delay of the archive", (f"topk(10, {each_topic(_MISSING)} / ({_COMING} > 0))", _LEGEND),
                  text="The time in which as many records come as it lacks, at the rate of now.", unit="s"),
        ],
        [
            Panel("Records in Redis that the archive holds too",
                  (f"topk(10, {each_topic(f'{_KEPT} - {_MISSING}')})", _LEGEND),
                  text="With korvet.retention=archived these are the ones that retention may remove."),
            Panel("Bytes that readers take", (f"sum by (instance) ({rate(_FETCHED)})", "{{instance}}"),
                  text="Of all readers, the pipeline among them.", unit="Bps"),
        ],
    ],
)  # fmt: skip
