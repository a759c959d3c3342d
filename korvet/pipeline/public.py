"""The names that `korvet.pipeline` offers; docs/spark.md lists them."""

from __future__ import annotations

from korvet.pipeline.archive import ArchiveConfig, ArchiveProgress, ArchiveResult, TopicResult
from korvet.pipeline.archive import archive as archive_topics
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.iceberg import IcebergConfig, IcebergResult, TablePublished
from korvet.pipeline.iceberg import publish as publish_iceberg
from korvet.pipeline.lake.log_store import keep_one_writer
from korvet.pipeline.lake.maintain import MaintainConfig, MaintainResult, TableMaintained
from korvet.pipeline.lake.maintain import maintain as maintain_lake
from korvet.pipeline.query_log import QueryLog
from korvet.pipeline.replay import ReplayConfig, ReplayProgress, ReplayResult
from korvet.pipeline.replay.run import replay as replay_topic
from korvet.pipeline.report import Report, ReportConfig, html_page
from korvet.pipeline.report import report as make_report
from korvet.pipeline.report import save as save_report
from korvet.pipeline.retype import RetypeConfig, RetypeResult
from korvet.pipeline.retype import retype as retype_topic
from korvet.pipeline.session import make_session
from korvet.pipeline.source import KorvetDataSource
from korvet.pipeline.status import StatusConfig, TableStatus, lake_status

__all__ = [
    "ArchiveConfig",
    "ArchiveProgress",
    "ArchiveResult",
    "BrokerUnreachable",
    "IcebergConfig",
    "IcebergResult",
    "KorvetDataSource",
    "MaintainConfig",
    "MaintainResult",
    "PipelineError",
    "QueryLog",
    "ReplayConfig",
    "ReplayProgress",
    "ReplayResult",
    "Report",
    "ReportConfig",
    "RetypeConfig",
    "RetypeResult",
    "StatusConfig",
    "TableMaintained",
    "TablePublished",
    "TableStatus",
    "TopicResult",
    "UnknownTopic",
    "archive_topics",
    "html_page",
    "keep_one_writer",
    "lake_status",
    "maintain_lake",
    "make_report",
    "make_session",
    "publish_iceberg",
    "replay_topic",
    "retype_topic",
    "save_report",
]
