"""Where Spark looks for data sources: modules named ``pyspark_…`` with a ``DefaultSource``."""

from korvet.pipeline.source import KorvetDataSource as DefaultSource

__all__ = ["DefaultSource"]
