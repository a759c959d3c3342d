"""One suite of scenarios, run by every Kafka client that korvet promises to serve."""
