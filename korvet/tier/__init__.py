"""The tier: sealed segments of partitions in object storage. `segment` and `manifest` are pure, without I/O."""
