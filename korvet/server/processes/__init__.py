"""The processes of a broker: start, workers, supervisor, embedded Valkey, console; no bytes of a Kafka client."""
