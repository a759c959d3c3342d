"""Topics into Delta tables, exactly once: `archive`."""

from korvet.pipeline.archive.config import ArchiveConfig as ArchiveConfig
from korvet.pipeline.archive.config import ArchiveProgress as ArchiveProgress
from korvet.pipeline.archive.config import ArchiveResult as ArchiveResult
from korvet.pipeline.archive.config import TopicResult as TopicResult
from korvet.pipeline.archive.run import archive as archive
