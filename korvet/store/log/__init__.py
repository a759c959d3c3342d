"""The logs of partitions: append, read, and all other operations."""
