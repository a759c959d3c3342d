"""Topics as a PySpark data source: what Spark's ``format("kafka")`` is, in Python, without a jar."""
