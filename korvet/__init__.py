"""Korvet: a Kafka-protocol broker whose state lives in Redis Functions."""

__version__ = "0.7.0"
