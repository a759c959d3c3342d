"""Users, rules and quotas, by Kafka's protocol or straight in Redis."""
