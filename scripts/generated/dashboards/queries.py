"""Parts of queries in PromQL that several dashboards share."""

from typing import Final

NAMESPACE: Final = {"namespace": "label_values(korvet_topics, namespace)"}
TOPIC: Final = 'namespace=~"$namespace", topic=~"$topic"'
GROUP: Final = 'namespace=~"$namespace", group=~"$group"'


def rate(metric: str) -> str:
    return f"rate({metric}[$__rate_interval])"


def quantile(part: float, metric: str, by: str = "") -> str:
    return f"histogram_quantile({part}, sum by ({by}le) ({rate(metric)}))"


def each_partition(metric: str) -> str:
    """A metric of partitions, once for each, whichever front-ends report it."""
    return f"max by (namespace, topic, partition) ({metric})"


def each_topic(query: str) -> str:
    return f"sum by (namespace, topic) ({query})"
