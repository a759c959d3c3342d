"""DataFrames to topics: the writers of ``format("korvet")``, for batches at least once and for streams exactly once."""

from korvet.pipeline.sink.writer import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
