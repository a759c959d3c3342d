"""The partitions of a namespace and their keys in Redis; neither reads nor appends of records."""
