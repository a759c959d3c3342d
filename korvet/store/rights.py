"""The rights that korvet needs as a Redis user. Each is tried before anything depends on it.

Functions run with the rights of their callers, so the commands that the Lua library calls count, too. Otherwise an
append would meet a missing right half-way. A server checks rights before it reads keys. So every command is tried on a
key that holds a text with an expiry, and most fail on its type; nothing is left over.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError, StoreUnavailable
from korvet.redis.client import Purpose, Store
from korvet.redis.link import Link
from korvet.redis.resp import Argument, pack_command
from korvet.store.keys import Namespace

_NEVER_AGAIN = 1_000
"""A number of attempts so high that the link does not load an absent library."""
_EXPIRY_MS = 60_000
_MOST_KEYS = 10_000
_DENIED = re.compile(r"NOPERM|no permissions", re.IGNORECASE)
_UNKNOWN = re.compile(r"unknown (sub)?command", re.IGNORECASE)
_WITH_SUBCOMMAND = frozenset({"CLIENT", "CLUSTER", "FUNCTION", "MEMORY", "XGROUP", "XINFO"})
_NO_CHANNELS = re.compile(r"to access (a|one of the) channel")
_NO_KEYS = re.compile(r"to access (a|one of the) key")

LOAD: Final = "+function|load"
"""The right that a user may lack if the library is loaded. A user that has it may replace every caller's functions."""

Command = tuple[str | int, ...]


class Missing(NamedTuple):
    """A missing right: the rule that grants it, empty if the server lacks the command, and the server's reason."""

    rule: str
    reason: str


def rule_of(command: Command) -> str:
    """The ACL rule that allows a command: ``+xadd``, ``+xgroup|create``."""
    words = [str(word).lower() for word in command[:2]]
    return "+" + ("|".join(words) if command[0] in _WITH_SUBCOMMAND else words[0])


def commands(key: str, *, is_cluster: bool) -> list[Command]:
    """Everything that korvet sends or its library calls, to be tried in this order.

    :param key: an unused key; it, and ``key:2``, are gone afterwards.
    """
    other = f"{key}:2"
    return [
        ("PING",),
        ("INFO", "server"),
        ("TIME",),
        ("WAIT", 0, 1),
        ("CLIENT", "SETNAME", "korvet-rights"),
        ("FUNCTION", "LIST", "LIBRARYNAME", "korvet"),
        # Refused as no library where loading is allowed.
        ("FUNCTION", "LOAD", "not a library"),
        ("FCALL", "korvet_version", 0),
        ("FCALL_RO", "korvet_version", 0),
        *([("CLUSTER", "SLOTS"), ("ASKING",)] if is_cluster else []),
        ("SET", key, "", "PX", _EXPIRY_MS),
        ("GET", key),
        ("MGET", key),
        ("EXISTS", key),
        ("TYPE", key),
        ("STRLEN", key),
        ("PTTL", key),
        ("PERSIST", other),
        ("PEXPIREAT", other, 4_102_444_800_000),
        ("XADD", key, "1-0", "i", "1"),
        ("XRANGE", key, "-", "+", "COUNT", 1),
        ("XREVRANGE", key, "+", "-", "COUNT", 1),
        ("XLEN", key),
        ("XDEL", key, "1-0"),
        ("XTRIM", key, "MAXLEN", 10),
        ("XSETID", key, "2-0"),
        ("XGROUP", "CREATE", key, "group", "$"),
        ("XGROUP", "SETID", key, "group", "$"),
        ("XGROUP", "DESTROY", key, "group"),
        ("XGROUP", "CREATECONSUMER", key, "group", "consumer"),
        ("XCLAIM", key, "group", "consumer", 0, "1-0", "JUSTID"),
        ("XPENDING", key, "group"),
        ("XINFO", "GROUPS", key),
        ("XINFO", "CONSUMERS", key, "group"),
        ("XINFO", "STREAM", key),
        ("HSET", key, "field", "1"),
        ("HSETNX", key, "field", "1"),
        ("HGET", key, "field"),
        ("HMGET", key, "field"),
        ("HGETALL", key),
        ("HVALS", key),
        ("HEXISTS", key, "field"),
        ("HLEN", key),
        ("HSCAN", key, 0),
        ("HINCRBY", key, "field", 1),
        ("HDEL", key, "field"),
        ("ZADD", key, 1, "member"),
        ("ZSCORE", key, "member"),
        ("ZMSCORE", key, "member"),
        ("ZRANGE", key, 0, 0),
        ("ZRANGEBYSCORE", key, 0, 1),
        ("ZCARD", key),
        ("ZCOUNT", key, 0, 1),
        ("ZREM", key, "member"),
        ("ZREMRANGEBYSCORE", key, 0, 1),
        ("SADD", key, "member"),
        ("SCARD", key),
        ("SISMEMBER", key, "member"),
        ("SMEMBERS", key),
        ("SREM", key, "member"),
        ("MEMORY", "USAGE", key),
        # Where it may not be set, one of the others may have made it.
        ("PEXPIRE", key, _EXPIRY_MS),
        ("RENAME", key, other),
        ("SPUBLISH", key, ""),
        ("SSUBSCRIBE", key),
        ("SUNSUBSCRIBE", key),
        ("UNLINK", key, other),
    ]


def missing(command: Command, error: str) -> Missing | None:
    """The missing right in a command's error reply; None if the command failed for another reason."""
    if _UNKNOWN.search(error):
        return Missing("", f"the server has no {' '.join(map(str, command[:2]))}: {error}")
    if not _DENIED.search(error):
        return None
    if _NO_CHANNELS.search(error):
        return Missing("&korvet:*", error)
    if _NO_KEYS.search(error):
        return Missing("~korvet:*", error)
    return Missing(rule_of(command), error)


def throw_away_key(namespace: Namespace) -> str:
    """An unused key name within the namespace's rights."""
    return namespace.partition(f"rights-{secrets.token_hex(8)}", 0).log


def missing_text(lacking: Sequence[Missing]) -> str:
    """The missing rights, as rules to add, with the server's words for the first."""
    rules = list(dict.fromkeys(one.rule for one in lacking if one.rule))
    unknown = [one.reason for one in lacking if not one.rule]
    if not rules:
        return unknown[0]
    return f"the Redis user lacks {' '.join(rules)}: {next(one.reason for one in lacking if one.rule)}"


async def require(store: Store, namespace: Namespace, *, loads: bool = True) -> None:
    """Try every right, at every primary.

    :param loads: true to include the right to load the library.
    :raises KorvetError: rights are missing; the text names all of them, as ACL rules.
    :raises StoreUnavailable: a primary fails.
    """
    if found := await lacking(store, namespace, loads=loads):
        raise KorvetError(f"{store.url}: {missing_text(found)}")


async def lacking(store: Store, namespace: Namespace, *, loads: bool = True) -> list[Missing]:
    """The rights that are missing at the first primary that lacks any.

    :param loads: true to include the right to load the library.
    :raises StoreUnavailable: a primary fails.
    """
    for link, key in _places(store, namespace):
        tried = commands(key, is_cluster=store.url.kind == "cluster")
        if found := await _try_all(link, [one for one in tried if loads or rule_of(one) != LOAD]):
            return found
    return []


def _places(store: Store, namespace: Namespace) -> Iterator[tuple[Link, str]]:
    """A link to each primary, and a key that lies there."""
    left = set(store.primaries)
    for _ in range(_MOST_KEYS):
        key = throw_away_key(namespace)
        link = store.link(Purpose.COORDINATE, key)
        if link in left and link is not None:
            left.remove(link)
            yield link, key
        if not left:
            return


async def _try_all(link: Link, tried: Sequence[Command]) -> list[Missing]:
    # All in one write: nothing else is sent while the connection is a subscriber.
    replies = [_send(link, command) for command in tried]
    lacking = []
    for command, reply in zip(tried, replies, strict=True):
        try:
            await reply
        except StoreUnavailable as error:
            if not link.is_up:
                raise
            found = missing(command, str(error))
        except KorvetError as error:
            found = missing(command, str(error))
        else:
            found = None
        if found is not None:
            lacking.append(found)
    if any(one.rule == "+sunsubscribe" for one in lacking):
        link.break_off()
    return lacking


def _send(link: Link, command: Sequence[Argument]) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link.send(future, pack_command(tuple(command)), _NEVER_AGAIN)
    return future
