"""Reads of records; no writes."""
