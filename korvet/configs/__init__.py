"""The configs of topics and brokers: their types, their tables, and JSON Schemas as values."""
