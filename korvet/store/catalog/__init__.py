"""The catalog: the topics, and the configs of topics, of the cluster and of groups."""
