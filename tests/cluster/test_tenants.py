"""Tenants on a cluster, whose keys lie on several servers, and behind Sentinel, through a failover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from korvet.cli.tenant_redis_user import front_ends_line, tenant_line
from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings
from tests.cluster.test_failover import caught_up
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server
from tests.support.tenants import Client, connected, create_tenant, korvet, make_topic, topics_of
from tests.support.topologies import Cluster, running_cluster, running_sentinel, until

LISTENER = ListenerSettings(
    port=0, namespace_from=NamespaceFrom.PRINCIPAL, security=Security.SASL_PLAINTEXT, sasl=("PLAIN",)
)
SETTINGS = {"korvet.sasl.plain.without.tls": "true"}
NAMES = ("acme", "globex")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> KorvetServer:
    """What commands of an operator need, with two new tenants."""
    made = KorvetServer(tmp_path, redis_url=cluster.url)
    for node in cluster.nodes:
        cluster.ask(node, "FLUSHALL")
    korvet(made, "functions", "load")
    for name in NAMES:
        create_tenant(made, name)
    return made


def test_tenant_of_a_cluster_is_served_and_deleted_on_all_servers(cluster: Cluster, operator: KorvetServer) -> None:
    with running_broker(redis_url=cluster.url, listeners=[LISTENER], broker=SETTINGS) as broker:
        for name in NAMES:
            with connected(broker.port, login=f"alice@{name}") as client:
                assert make_topic(client, "orders", 12) == "NONE"
                assert topics_of(client) == {"orders"}
        korvet(operator, "tenants", "delete", "acme", "--execute")
        left = dict.fromkeys(NAMES, 0)
        for node in cluster.nodes:
            with node.client() as client:
                for name in left:
                    left[name] += len(list(client.scan_iter(match=f"korvet:{{{name}:*")))
        assert left["acme"] == 0 and left["globex"] > 12
        with connected(broker.port, login="alice@globex") as client:
            assert topics_of(client) == {"orders"}


def test_tenants_of_a_cluster_are_served_as_their_redis_users(
    cluster: Cluster, operator: KorvetServer, tmp_path: Path
) -> None:
    passwords = passwords_in(tmp_path)
    lines = [tenant_line(name, f"of-{name}", is_cluster=True) for name in NAMES]
    for node in cluster.nodes:
        for line in [*lines, front_ends_line("secret", is_cluster=True)]:
            cluster.ask(node, *line)
    url = cluster.url.replace("://", "://korvet:secret@")
    with running_broker(
        redis_url=url, listeners=[LISTENER], broker=SETTINGS, tenant_redis_passwords=passwords
    ) as broker:
        for name in NAMES:
            with connected(broker.port, login=f"alice@{name}") as client:
                assert make_topic(client, "orders", 12) == "NONE"
                assert topics_of(client) == {"orders"}
                for node in cluster.nodes:
                    assert str(cluster.ask(node, "CLIENT", "LIST")).count(f"user=korvet-{name} ") == 4
        assert "NOPERM" not in broker.log and "warning" not in broker.log, broker.log
    for node in cluster.nodes:
        with node.client() as client:
            # redis-py, which asks for the slots, would also tell its version. No tenant's user asks.
            refused = {(one["username"], one["object"]) for one in client.acl_log()}
            assert refused <= {("korvet", "client|setinfo")}


@contextmanager
def serving_tenants(directory: Path, redis_url: str) -> Iterator[tuple[KorvetServer, dict[str, Client]]]:
    """A broker whose tenants have Redis users of their own, and a client that is logged in for each."""
    operator = KorvetServer(directory, redis_url=redis_url)
    korvet(operator, "functions", "load")
    for name in NAMES:
        create_tenant(operator, name)
    url = redis_url.replace("://", "://korvet:secret@")
    with (
        running_broker(
            redis_url=url, listeners=[LISTENER], broker=SETTINGS, tenant_redis_passwords=passwords_in(directory)
        ) as broker,
        ExitStack() as stack,
    ):
        clients = {name: stack.enter_context(connected(broker.port, login=f"alice@{name}")) for name in NAMES}
        yield broker, clients


def test_tenants_of_a_cluster_are_served_by_a_replica_after_a_failover(tmp_path: Path) -> None:
    """No answer of a server tells the tenants' connections of it: they hear of the replica from the first store."""
    each = Counter({"korvet-acme": 4, "korvet-globex": 4, "korvet": 4})
    with running_cluster(has_replica=True) as cluster:
        first, replica = cluster.nodes[0], cluster.replica
        assert replica is not None
        for node in (*cluster.nodes, replica):
            for line in [
                *(tenant_line(name, f"of-{name}", is_cluster=True) for name in NAMES),
                front_ends_line("secret", is_cluster=True),
            ]:
                cluster.ask(node, *line)
        with serving_tenants(tmp_path, cluster.url) as (broker, clients):
            for client in clients.values():
                assert make_topic(client, "orders", 12) == "NONE"
            with caught_up(first):
                first.kill()
            until(lambda: not cluster.is_replica(replica), "the replica leads")
            for client in clients.values():
                until(partial(has_all_starts, client, "orders", 12), "all partitions are served")
            until(lambda: users_of(replica) == each, "all users are there")
            assert "NOPERM" not in broker.log and "refuses a tenant" not in broker.log, broker.log


def has_all_starts(client: Client, topic: str, count: int) -> bool:
    """Whether each partition of a topic tells where its log begins."""
    partitions = [{"partition_index": number, "timestamp": -2} for number in range(count)]
    answer = client.ask("list_offsets", 5, replica_id=-1, isolation_level=0,
                        topics=[{"name": topic, "partitions": partitions}])  # fmt: skip
    codes = [one["error_code"] for one in answer["topics"][0]["partitions"]]
    return codes == ["NONE"] * count


def test_tenants_are_served_as_their_redis_users_after_a_failover(tmp_path: Path) -> None:
    """Redis does not replicate users, so both servers have them."""
    each = Counter({"korvet-acme": 4, "korvet-globex": 4, "korvet": 4})
    with running_sentinel() as sentinel:
        for server in (sentinel.primary, sentinel.replica):
            with server.client() as client:
                for name in NAMES:
                    client.execute_command(*tenant_line(name, f"of-{name}", is_cluster=False))
                client.execute_command(*front_ends_line("secret", is_cluster=False))
        with serving_tenants(tmp_path, sentinel.url) as (broker, clients):
            for name, client in clients.items():
                assert make_topic(client, f"before-{name}") == "NONE"
            assert users_of(sentinel.primary) == each
            sentinel.fail_over()
            until(lambda: users_of(sentinel.replica) == each, "all users are back")
            for name, client in clients.items():
                until(partial(has_made, client, "after"), "the tenant is served")
                assert {"after"} <= topics_of(client) <= {"after", f"before-{name}"}
            for name in NAMES:
                with connected(broker.port, login=f"alice@{name}") as client:
                    assert "after" in topics_of(client)
            assert users_of(sentinel.replica) == each
            with sentinel.replica.client() as client:
                assert client.acl_log() == []
            assert "NOPERM" not in broker.log and "refuses a tenant" not in broker.log, broker.log


def has_made(client: Client, topic: str) -> bool:
    """Whether a topic is there once a client has asked for it."""
    return make_topic(client, topic) in ("NONE", "TOPIC_ALREADY_EXISTS")


def users_of(server: Server) -> Counter[str]:
    """The connections of each Redis user but the default one, which is the sentinel's and the test's."""
    with server.client() as client:
        return Counter(one["user"] for one in client.client_list() if one["user"] != "default")


def passwords_in(directory: Path) -> Path:
    """A directory with the passwords of the tenants' users."""
    passwords = directory / "passwords"
    passwords.mkdir()
    for name in NAMES:
        (passwords / name).touch(0o600)
        (passwords / name).write_text(f"of-{name}")
    return passwords
