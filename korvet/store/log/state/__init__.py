"""What a front-end knows of one partition: bytes and numbers, no calls to Redis."""
