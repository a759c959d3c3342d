"""The logs of partitions: append, read, and everything that is asked of one."""
