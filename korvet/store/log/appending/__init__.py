"""Batches from their check to Redis's reply, and the ends of transactions."""
