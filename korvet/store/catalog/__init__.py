"""The catalog: which topics there are, and what is set for them, for the cluster and for groups."""
