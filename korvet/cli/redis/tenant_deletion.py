"""The deletion of a tenant: a sequence that anybody may repeat after a crash.

It marks the tenant as being deleted, so that front-ends let go of the namespace. Then it removes all keys of the
namespace, and last the tenant's entry. Until then the name cannot be used again. If two delete a tenant, the slower one
notices that the other has ended, and leaves a new tenant of the name alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from redis.exceptions import RedisError

from korvet.cli.redis.connections import Node, call_function, keys_of
from korvet.errors import KorvetError
from korvet.store.keys import TENANTS

GRACE_S: Final = 8.0
"""Front-ends hear of a deletion at once, and have so long to let go of the namespace."""
_MOST_PASSES: Final = 10


def count_keys(nodes: Sequence[Node], name: str) -> int:
    """The number of a namespace's keys.

    :raises KorvetError: Redis refuses to list them.
    """
    return sum(len(some) for node in nodes for some in keys_of(node, name))


def _let_go() -> None:
    time.sleep(GRACE_S)


def delete_tenant(nodes: Sequence[Node], name: str, wait: Callable[[], None] = _let_go) -> int:
    """Delete a tenant; the number of keys that were removed.

    :param wait: waits until front-ends have let go of the namespace.
    :raises KorvetError: there is no such tenant, Redis refuses something, or keys come again and again.
    """
    tenant_id = _begin(nodes, name)
    if tenant_id is None:
        raise KorvetError(f"there is no tenant {name!r}")
    wait()
    removed = 0
    for _ in range(_MOST_PASSES):
        more = sum(_remove(nodes, node, name, tenant_id) for node in nodes)
        removed += more
        if not more:
            break
    else:
        raise KorvetError(
            f"tenant {name}: something still writes keys of its namespace; stop that, and delete it again"
        )
    call_function(nodes, "korvet_tenant_forget", TENANTS.tenants, name=name, id=tenant_id)
    return removed


def _begin(nodes: Sequence[Node], name: str, tenant_id: str | None = None) -> str | None:
    """Mark a tenant, or only the one with an id, as being deleted. Returns its id; None if there is none."""
    code, found = call_function(
        nodes, "korvet_tenant_switch", TENANTS.tenants, name=name, state="deleting", id=tenant_id
    )
    return None if code else str(found.decode())


def _remove(nodes: Sequence[Node], node: Node, name: str, tenant_id: str) -> int:
    """Remove a namespace's keys from a server, as long as its tenant is there."""
    removed = 0
    for some in keys_of(node, name):
        if _begin(nodes, name, tenant_id) is None:
            break
        with node.client.pipeline(transaction=False) as pipeline:
            for key in some:
                # In a cluster one command's keys must lie in one slot.
                pipeline.unlink(key)
            try:
                removed += sum(pipeline.execute())
            except RedisError as error:
                raise KorvetError(f"Redis at {node.address} refused: {error}") from None
    return removed
