"""Tenants on a cluster, whose keys lie on several servers."""

from __future__ import annotations

from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.settings import ListenerSettings
from tests.support.broker import running_broker
from tests.support.tenants import connected, create_tenant, korvet, make_topic, topics_of
from tests.support.topologies import running_cluster

LISTENER = ListenerSettings(
    port=0, namespace_from=NamespaceFrom.PRINCIPAL, security=Security.SASL_PLAINTEXT, sasl=("PLAIN",)
)


def test_tenant_of_a_cluster_is_served_and_deleted_on_all_servers() -> None:
    settings = {"korvet.sasl.plain.without.tls": "true"}
    with (
        running_cluster() as cluster,
        running_broker(redis_url=cluster.url, listeners=[LISTENER], broker=settings) as broker,
    ):
        for name in ("acme", "globex"):
            create_tenant(broker, name)
        for name in ("acme", "globex"):
            with connected(broker.port, login=f"alice@{name}") as client:
                assert make_topic(client, "orders", 12) == "NONE"
                assert topics_of(client) == {"orders"}
        korvet(broker, "tenants", "delete", "acme", "--execute")
        left = dict.fromkeys(("acme", "globex"), 0)
        for node in cluster.nodes:
            with node.client() as client:
                for name in left:
                    left[name] += len(list(client.scan_iter(match=f"korvet:{{{name}:*")))
        assert left["acme"] == 0 and left["globex"] > 12
        with connected(broker.port, login="alice@globex") as client:
            assert topics_of(client) == {"orders"}
