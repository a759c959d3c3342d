"""Blocking connections to Redis for commands that examine or mend it, one to each primary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import anyio
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from korvet.errors import KorvetError
from korvet.redis.address import Address, RedisUrl, parse_redis_url
from korvet.redis.discovery import find_primary, read_slots
from korvet.redis.lone_node import has_all_slots, wanted_url
from korvet.redis.resp import Named
from korvet.store.contract import FUNCTIONS, arguments
from korvet.store.keys import Namespace

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


def call_at(nodes: Sequence[Node], command: str, function: str, *arguments: str) -> Any:
    """The reply of a function at the primary that holds its key; ``arguments`` begin with the number of keys.

    :raises KorvetError: if Redis refuses the call.
    """
    for node in nodes:
        try:
            return ask(node.client, command, function, *arguments)
        except RedisError as error:
            if not _is_elsewhere(error, nodes):
                advice = "; load the library: korvet functions load" if "not found" in str(error) else ""
                raise KorvetError(f"Redis at {node.address} refused: {error}{advice}") from None
    raise KorvetError("no primary of the cluster holds the key now; try again")


def keys_of(node: Node, name: str) -> Iterator[list[bytes]]:
    """A namespace's keys at a server, page by page; some may come twice. Its prefix holds no characters of patterns.

    :raises KorvetError: Redis refuses to list them.
    """
    cursor, at_once = b"0", 1000
    while True:
        try:
            cursor, found = ask(node.client, "SCAN", cursor, "MATCH", f"{Namespace(name).prefix}*", "COUNT", at_once)
        except RedisError as error:
            raise KorvetError(f"Redis at {node.address} refused: {error}") from None
        if found:
            yield found
        if int(cursor) == 0:
            return


def call_function(nodes: Sequence[Node], function: str, key: str | Sequence[str], /, **named: Named) -> Any:
    """The reply of a function of one key or several, with the arguments by the names of its header.

    :raises KorvetError: if Redis refuses the call.
    """
    verb = "FCALL_RO" if FUNCTIONS[function].read_only else "FCALL"
    keys = [key] if isinstance(key, str) else key
    return call_at(nodes, verb, function, str(len(keys)), *keys, *map(str, arguments(function, named)))


def _is_elsewhere(error: Exception, nodes: Sequence[Node]) -> bool:
    return len(nodes) > 1 and "MOVED" in f"{type(error).__name__} {error}".upper()


@contextmanager
def open_nodes(url_text: str) -> Iterator[list[Node]]:
    """Connections to the server, to the primary that Sentinel names, or to every primary of a cluster.

    :raises ConfigError: if the URL is wrong.
    :raises KorvetError: if a server cannot be reached; it names the server, the reason and advice.
    """
    url = parse_redis_url(url_text)
    with ExitStack() as stack:
        nodes = []
        for address in _primaries(url):
            client = _connect(url, address)
            stack.callback(client.close)
            nodes.append(Node(address, client))
        yield nodes


def refuse_lone_node(url_text: str, nodes: Sequence[Node]) -> None:
    """Raise KorvetError if the URL names one server, and that server is a node of a larger cluster."""
    url = parse_redis_url(url_text)
    if url.kind == "cluster":
        return
    for node in nodes:
        try:
            is_cluster = node.client.info("cluster").get("cluster_enabled")
        except RedisError as error:
            raise KorvetError(f"cannot see whether {node.address} is a node of a cluster: {error}") from None
        if is_cluster and not _is_whole(node):
            raise KorvetError(f"{url}: {wanted_url(url)}")


def _is_whole(node: Node) -> bool:
    """True if a cluster's node holds all slots; false without the right to query them, which any cluster needs."""
    try:
        return has_all_slots(ask(node.client, "CLUSTER SLOTS"))
    except RedisError:
        return False


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
        # Not PING, which a server that cannot write to its disk refuses.
        client.info("server")
    except (RedisError, OSError) as error:
        client.close()
        reason = str(error).rstrip(".")
        raise KorvetError(f"cannot use Redis at {address}: {reason}; does it run, and is the URL right?") from None
    return client
