"""The command line's Kafka client: topics, groups, offsets and records over the wire."""
