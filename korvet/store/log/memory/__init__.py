"""What a process keeps for readers, and its bounds: cached batches, bytes of answers, turns of large reads."""
