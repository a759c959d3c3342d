"""The files that spark-submit takes: each is a verb of ``korvet pipeline`` on the cluster's session."""
