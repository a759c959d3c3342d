"""Blocking connections to Redis for commands that look at it or mend it, one to each primary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import anyio
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from korvet.errors import KorvetError
from korvet.store.address import Address, RedisUrl, parse_redis_url
from korvet.store.topology import find_primary, read_slots

TIMEOUT_S = 5.0


class Node(NamedTuple):
    """A primary and a connection to it; replies are bytes."""

    address: Address
    client: redis.Redis


def ask(client: redis.Redis, *command: str | int | bytes) -> Any:
    """One command and its reply.

    :raises RedisError: an error reply, or a lost connection.
    """
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


@contextmanager
def open_nodes(url_text: str) -> Iterator[list[Node]]:
    """Connections to the server, to the primary that Sentinel names, or to every primary of a cluster.

    :raises ConfigError: when the URL is wrong.
    :raises KorvetError: when a server cannot be reached; it says which, why and what to look at.
    """
    url = parse_redis_url(url_text)
    with ExitStack() as stack:
        nodes = []
        for address in _primaries(url):
            client = _connect(url, address)
            stack.callback(client.close)
            nodes.append(Node(address, client))
        yield nodes


def _primaries(url: RedisUrl) -> list[Address]:
    if url.kind == "sentinel":
        return [anyio.run(find_primary, url)]
    if url.kind == "cluster":
        return sorted(anyio.run(read_slots, url, list(url.addresses)))
    return [url.addresses[0]]


def _connect(url: RedisUrl, address: Address) -> redis.Redis:
    where: dict[str, Any] = {"host": address.host, "port": address.port}
    if not address.port:
        where = {"unix_socket_path": address.host}
    client = redis.Redis(
        **where,
        **url.tls_options,
        db=url.db,
        username=url.user,
        password=url.password,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        client.ping()
    except (RedisError, OSError) as error:
        client.close()
        reason = str(error).rstrip(".")
        raise KorvetError(f"cannot use Redis at {address}: {reason}; does it run, and is the URL right?") from None
    return client
