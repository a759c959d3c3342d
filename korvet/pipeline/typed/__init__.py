"""Typed tables: a topic's values in the columns of its JSON Schema, and values that do not fit as dead letters.

`columns` gives a schema's columns, `split` makes rows of a batch of records. The archive creates a typed table with
`TABLE_PROPERTIES`, and appends with ``mergeSchema``.
"""

from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.split import Split, split
from korvet.pipeline.typed.table import TABLE_PROPERTIES

__all__ = ["TABLE_PROPERTIES", "Split", "columns", "split"]
