"""What the command line asks of a Kafka cluster, over the wire: topics, groups and offsets."""
