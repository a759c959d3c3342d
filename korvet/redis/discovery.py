"""Discovery of Sentinel's primary, and of the owners of a cluster's slots, through redis-py.

Discovery is rare, and importing redis-py is a tenth of a front-end's start. So callers import this module on use.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from korvet.errors import StoreError, StoreUnavailable
from korvet.redis.address import Address, RedisUrl

_TIMEOUT_S = 2.0


async def find_primary(url: RedisUrl) -> Address:
    """The address that the sentinels name for the service.

    :raises StoreUnavailable: no sentinel answers, or none knows the service.
    """
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        list(url.addresses),
        sentinel_kwargs={
            "socket_timeout": _TIMEOUT_S,
            "socket_connect_timeout": _TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "username": url.sentinel_user,
            "password": url.sentinel_password,
            **url.tls_options,
        },
    )
    found: list[Address] = []
    problems: list[str] = []

    async def ask(client: Redis) -> None:
        try:
            masters: Any = await client.sentinel_masters()
            known = masters.get(url.service)
            if known is not None and sentinels.check_master_state(known, url.service):
                found.append(Address(str(known["ip"]), int(known["port"])))
                tasks.cancel_scope.cancel()
            else:
                problems.append("a sentinel knows no such service" if known is None else "a sentinel sees it down")
        except (RedisError, OSError) as error:
            problems.append(str(error))
        finally:
            await _close(client)

    # All are queried at once, because one that is away may use up the whole timeout.
    async with anyio.create_task_group() as tasks:
        for client in sentinels.sentinels:
            tasks.start_soon(ask, client)
    if not found:
        reasons = "; ".join(sorted(set(problems)))
        raise StoreUnavailable(f"no sentinel names a primary for {url.service!r}: {reasons}")
    return found[0]


async def read_slots(url: RedisUrl, addresses: list[Address]) -> dict[Address, list[tuple[int, int]]]:
    """The primaries and their slot ranges (first and last), by the first server that answers.

    :raises StoreUnavailable: no server answers, or the server is not a cluster.
    :raises StoreError: a server refuses this user, or the password cannot be read.
    """
    problem: Exception | None = None
    user, password = (None, None, *url.login)[-2:]
    for address in addresses:
        client = Redis(
            host=address.host,
            port=address.port,
            username=user,
            password=password,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            **url.tls_options,
        )
        try:
            ranges = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            return _primaries(ranges, address)
        except (AuthenticationError, NoPermissionError) as error:
            raise StoreError(_denied(error)) from None
        except (RedisError, OSError) as error:
            problem = error
        finally:
            await _close(client)
    raise StoreUnavailable(f"no cluster node answers: {problem}")


async def _close(client: Redis) -> None:
    """Close a client's connection, even in a cancelled task, which would otherwise leave the socket open."""
    with anyio.CancelScope(shield=True), suppress(RedisError, OSError):
        await client.aclose()


def _denied(error: RedisError) -> str:
    """The server's error, with the code that redis-py removes."""
    text = str(error)
    if text.startswith(("WRONGPASS", "NOAUTH", "NOPERM")):
        return text
    if isinstance(error, NoPermissionError):
        return f"NOPERM {text}"
    return f"{'WRONGPASS' if 'invalid username-password' in text else 'NOAUTH'} {text}"


def _primaries(ranges: list[Any], answering: Address) -> dict[Address, list[tuple[int, int]]]:
    """The owners of slots, from CLUSTER SLOTS: a list of ``[first, last, [host, port, …], replicas…]``."""
    owners: dict[Address, list[tuple[int, int]]] = {}
    for first, last, primary, *_replicas in ranges:
        host, port = primary[:2]
        owners.setdefault(Address(_text(host) or answering.host, int(port)), []).append((int(first), int(last)))
    if not owners:
        raise StoreUnavailable("the cluster has no slots assigned")
    return owners


def _text(value: str | bytes | None) -> str:
    """The text of a reply; empty for null, which a cluster node sends if it does not know its own host."""
    return value.decode() if isinstance(value, bytes) else value or ""
