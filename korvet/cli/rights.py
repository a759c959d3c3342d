"""What korvet does to Redis, each tried for real on keys that are deleted again.

A right that is missing would otherwise be found half-way through an append. Functions run with the rights of who calls
them, so what the Lua library calls is tried here too.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import redis
from redis.exceptions import RedisError

from korvet.cli.redis import ask
from korvet.store.keys import Namespace

_DENIALS = ("no permissions", "noperm", "unknown command", "unknown subcommand", "replica")
_WITH_SUBCOMMAND = ("FUNCTION", "CLIENT", "XGROUP")

Command = tuple[str | int, ...]


def denied_commands(client: redis.Redis, namespace: Namespace) -> list[str]:
    """Commands that this user may not use on the namespace's keys and channels, or that the server does not have.

    :returns: one line for each, with the server's own reason; empty when all is well.
    """
    log, meta, producers = namespace.partition(f"doctor-{secrets.token_hex(8)}", 0)
    keys = (log, meta, producers, f"{log}:1", f"{log}:2")
    denied = []
    try:
        for command in _commands(*keys):
            reason = _denial(client, command)
            if reason is not None:
                denied.append(f"{_name(command)}: {reason}")
    finally:
        _denial(client, ("UNLINK", *keys))
    return denied + _denied_subscription(client, log)


def tried_names() -> set[str]:
    """Names of the commands that `denied_commands` tries."""
    return {str(command[0]) for command in _commands("l", "m", "p", "a", "b")} | {"SSUBSCRIBE", "SUNSUBSCRIBE"}


def _name(command: Command) -> str:
    return " ".join(map(str, command[: 2 if command[0] in _WITH_SUBCOMMAND else 1]))


def _denial(client: redis.Redis, command: Command) -> str | None:
    """Why a command may not be used; that it fails for another reason (a MOVED, an odd state) is no denial."""
    try:
        ask(client, *command)
    except RedisError as error:
        if _is_denial(error):
            return str(error)
    return None


def _is_denial(error: RedisError) -> bool:
    return any(sign in str(error).lower() for sign in _DENIALS)


def _denied_subscription(client: redis.Redis, channel: str) -> list[str]:
    subscriber = client.pubsub()  # type: ignore[no-untyped-call]
    try:
        subscriber.ssubscribe(channel)
        subscriber.get_sharded_message(timeout=1.0)
        subscriber.sunsubscribe(channel)
    except RedisError as error:
        return [f"SSUBSCRIBE: {error}"] if _is_denial(error) else []
    finally:
        subscriber.close()
    return []


def _commands(log: str, meta: str, producers: str, placed: str, renamed: str) -> Sequence[Command]:
    return [
        ("PING",),
        ("INFO", "server"),
        ("TIME",),
        ("CLIENT", "SETNAME", "korvet-doctor"),
        ("FUNCTION", "LIST", "LIBRARYNAME", "korvet"),
        # Refused as no library where loading is allowed.
        ("FUNCTION", "LOAD", "not a library"),
        ("FCALL", "korvet_version", 0),
        ("FCALL_RO", "korvet_version", 0),
        ("SET", placed, "batch", "PX", 60_000),
        ("GET", placed),
        ("MGET", placed),
        ("EXISTS", placed),
        ("STRLEN", placed),
        ("RENAME", placed, renamed),
        ("PERSIST", renamed),
        ("PEXPIREAT", renamed, 4_102_444_800_000),
        ("XADD", log, "1-0", "i", "1"),
        ("XRANGE", log, "-", "+", "COUNT", 1),
        ("XREVRANGE", log, "+", "-", "COUNT", 1),
        ("XLEN", log),
        ("XGROUP", "CREATE", log, "group", "$"),
        ("XGROUP", "DESTROY", log, "group"),
        ("XTRIM", log, "MAXLEN", 10),
        ("XDEL", log, "1-0"),
        ("HSET", meta, "end", "1"),
        ("HSETNX", meta, "end", "1"),
        ("HGET", meta, "end"),
        ("HMGET", meta, "end"),
        ("HGETALL", meta),
        ("HEXISTS", meta, "end"),
        ("HLEN", meta),
        ("HSCAN", meta, 0),
        ("HINCRBY", meta, "end", 1),
        ("HDEL", meta, "end"),
        ("ZADD", producers, 1, "member"),
        ("ZSCORE", producers, "member"),
        ("ZRANGE", producers, 0, 0),
        ("ZRANGEBYSCORE", producers, 0, 1),
        ("ZCARD", producers),
        ("ZREM", producers, "member"),
        ("SADD", producers, "group"),
        ("SMEMBERS", producers),
        ("SREM", producers, "group"),
        ("SPUBLISH", log, "1 1"),
        ("DEL", meta),
        ("UNLINK", renamed),
    ]
