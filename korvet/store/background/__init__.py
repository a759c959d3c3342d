"""Work without a client: retention, compaction, sweeps, and records and commits that come from outside."""
