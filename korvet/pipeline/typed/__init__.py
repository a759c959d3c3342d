"""Typed tables: a topic's values in the columns of its schema, and values that do not fit as dead letters.

`table_type` gives a schema's columns, and `JsonVerdicts` the verdicts on a batch of records. `typed_rows` and
`dead_letters` split it by them. The archive creates a typed table with `TABLE_PROPERTIES`, and appends with
``mergeSchema``. If a column's type has to change, it replaces the table's rows by the `widened` ones.
"""

from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.split import JsonVerdicts, dead_letters, judged, table_type, typed_rows, widened
from korvet.pipeline.typed.table import DEAD_LETTER, TABLE_PROPERTIES, UNREADABLE

__all__ = [
    "DEAD_LETTER",
    "TABLE_PROPERTIES",
    "UNREADABLE",
    "JsonVerdicts",
    "columns",
    "dead_letters",
    "judged",
    "table_type",
    "typed_rows",
    "widened",
]
