"""Redis and Valkey: connections, Sentinel, clusters, wake-ups. It knows nothing of Kafka."""
