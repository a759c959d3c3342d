"""Figures of topics, groups and transactions, which one process of a namespace reads from Redis in rounds."""
