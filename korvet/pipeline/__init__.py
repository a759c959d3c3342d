"""The data pipeline between topics and a lake, on Spark: topics to Delta tables (archive), back (replay), and reports.

What is here runs in Spark's driver and executors and is a plain Kafka client: it talks to brokers and
never to Redis. It takes the extra ``korvet[spark]``.
"""
