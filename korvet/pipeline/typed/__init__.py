"""Typed tables: the values of a topic with a JSON Schema in columns, and what does not fit as dead letters.

`columns` says which columns a schema gives, `split` makes rows of a batch of records. A typed table is created with
`TABLE_PROPERTIES` and appended to with ``mergeSchema``.
"""

from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.split import Split, split
from korvet.pipeline.typed.table import TABLE_PROPERTIES

__all__ = ["TABLE_PROPERTIES", "Split", "columns", "split"]
