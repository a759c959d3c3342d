"""Kafka's wire format without I/O: frames, messages and record batch headers."""
