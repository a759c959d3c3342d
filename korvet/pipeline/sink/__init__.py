"""DataFrames to topics: the writers of ``format("korvet")``, at least once for batches, exactly once for streams."""

from korvet.pipeline.sink.writer import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
