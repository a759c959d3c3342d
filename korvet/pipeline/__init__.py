"""The data pipeline between topics and a lake, on Spark: topics to Delta tables (archive), back (replay), and reports.

The package runs in Spark's driver and executors. It is a plain Kafka client: it talks to brokers and never to Redis.
It needs the extra ``korvet[spark]``.
"""
