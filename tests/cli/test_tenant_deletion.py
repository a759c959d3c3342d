"""The deletion of a tenant while another one goes on, and after one that was cut short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from korvet.cli import run
from korvet.cli.redis.connections import Node, call_function, open_nodes
from korvet.cli.redis.tenant_deletion import delete_tenant
from korvet.store.keys import TENANTS, Namespace
from tests.support.redis import Server

KEY = f"{Namespace('acme').prefix}orders:0}}:log"


@pytest.fixture
def nodes(redis_server: Server) -> Iterator[Sequence[Node]]:
    """A connection to a server that is empty but for the library."""
    assert run(["functions", "load", "--redis", redis_server.url]) == 0
    with redis_server.client() as client:
        client.flushall()
    with open_nodes(redis_server.url) as nodes:
        yield nodes


def create(nodes: Sequence[Node], id: str) -> None:
    code, _ = call_function(
        nodes, "korvet_tenant_create", TENANTS.tenants, name="acme", id=id, limits="{}", super_users=""
    )
    assert code == 0
    nodes[0].client.set(KEY, id)


def test_deletion_leaves_a_tenant_alone_that_got_the_name_after_another_deletion(nodes: Sequence[Node]) -> None:
    def meanwhile() -> None:
        assert delete_tenant(nodes, "acme", wait=lambda: None) == 1
        create(nodes, "2")

    create(nodes, "1")
    assert delete_tenant(nodes, "acme", wait=meanwhile) == 0
    assert nodes[0].client.get(KEY) == b"2"


def test_deletion_that_was_cut_short_is_finished(nodes: Sequence[Node]) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    create(nodes, "1")
    with pytest.raises(KeyboardInterrupt):
        delete_tenant(nodes, "acme", wait=killed)
    assert delete_tenant(nodes, "acme", wait=lambda: None) == 1
    create(nodes, "2")
