"""Decisions about the lake, as functions of values: proofs, batches, losses, and the right to write.

Nothing here knows Spark, a client or a file. `korvet.pipeline.lake` and `korvet.pipeline.archive` do what is decided.
"""
