"""Share partitions: what share groups (KIP-932) have done with the records of each partition."""
