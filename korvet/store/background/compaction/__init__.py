"""Compaction: the last record of each key stays. `run` does it, for one partition at a time."""
