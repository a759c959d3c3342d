"""The checks of `korvet doctor` on one Redis server, and their findings in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import redis
from redis.exceptions import RedisError, ResponseError

from korvet.cli.redis.connections import ask
from korvet.cli.redis.rights import missing_rights
from korvet.configs.types import Kind, normal
from korvet.configs.values import BrokerValues
from korvet.errors import StoreError, StoreRefusing
from korvet.redis.address import RedisUrl
from korvet.redis.error_replies import as_exception
from korvet.redis.lone_node import has_all_slots, wanted_url
from korvet.store.catalog.topic import parse_topic
from korvet.store.keys import LOBBY, Namespace
from korvet.store.library import QUESTION, State, judge, library_version
from korvet.store.log.partitions.replicas import SILENT_S
from korvet.store.memory import RESERVED
from korvet.store.rights import missing_text, throw_away_key

OLDEST_MAJOR = 7
MIB = 1 << 20
_REMEDY = "free some with korvet topics trim (korvet topics describe shows sizes), or raise maxmemory"
_COPIES, _SYNCED = "min.insync.replicas", "korvet.acks.fsync"
_REPLICA = re.compile(r"slave\d+")


class Verdict(StrEnum):
    """How good a finding is; only MEND makes the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    MEND = "mend"


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's result: its subject, its verdict, and a sentence."""

    subject: str
    verdict: Verdict
    text: str


class Wanted(NamedTuple):
    """What the topics and cluster-wide settings of a namespace require of servers for acks=all."""

    copies: int = 1
    """The greatest min.insync.replicas."""
    whose: str = ""
    """The topic or setting that has it."""
    synced: str = ""
    """A topic or setting with korvet.acks.fsync; else empty."""


def wanted_of(clients: Iterable[redis.Redis], namespace: Namespace) -> Wanted:
    """A namespace's requirements of its servers, if one of these servers holds the catalog.

    The settings of a front-end's config file are not known here.
    """
    keys = namespace.catalog
    for client in clients:
        try:
            topics: Any = client.hgetall(keys.topics)
            everywhere: Any = client.hmget(keys.configs, _COPIES, _SYNCED)
        except RedisError:
            continue
        settings = [("all topics", dict(zip((_COPIES, _SYNCED), map(_text, everywhere), strict=True)))]
        for name, text in topics.items():
            # The catalog's hash has a field with the empty name, and entries may be damaged.
            with suppress(StoreError):
                settings += [(f"topic {name.decode()}", dict(parse_topic(name, text).configs))] if name else []
        copies, whose = max((int(configs.get(_COPIES) or 1), whose) for whose, configs in settings)
        synced = [whose for whose, configs in settings if normal(Kind.BOOLEAN, configs.get(_SYNCED) or "") == "true"]
        return Wanted(copies, whose, synced[0] if synced else "")
    return Wanted()


def examine(
    client: redis.Redis, namespace: Namespace, wanted: Wanted, url: RedisUrl | None = None
) -> Iterator[Finding]:
    """All findings about one server; ``url`` is the server's address.

    :raises RedisError: if the server does not answer at all.
    """
    info: dict[str, Any] = client.info("everything")
    settings = _settings(client)
    yield _server(info)
    yield from _writes(client, namespace)
    yield _durability(info, settings)
    yield from _acknowledged_by_disk(client, info, settings, wanted)
    yield from _memory(info, settings)
    yield from _limits(info, settings)
    yield from _cluster(client, info, url)
    yield from _replicas(info, wanted)
    yield _library(client)
    yield _rights(client, namespace, is_cluster=bool(info.get("cluster_enabled")))
    yield from _secured(client, namespace)


def _settings(client: redis.Redis) -> dict[str, str]:
    """The server's own settings; empty if CONFIG is not allowed (as at most hosted services)."""
    try:
        found: dict[Any, Any] = client.config_get(
            "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save",
            "maxmemory", "maxmemory-policy", "maxmemory-clients",
            "proto-max-bulk-len", "client-query-buffer-limit", "client-output-buffer-limit",
        )  # fmt: skip
    except RedisError:
        return {}
    return {_text(name): _text(value) for name, value in found.items()}


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _server(info: dict[str, Any]) -> Finding:
    valkey = info.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
    role = info.get("role", "master")
    if int(str(info["redis_version"]).split(".")[0]) < OLDEST_MAJOR:
        return Finding(
            "server", Verdict.MEND, f"{name} has no functions; korvet needs Redis 7.0 or Valkey 7.2 or newer"
        )
    if role != "master":
        return Finding("server", Verdict.MEND, f"{name} is a replica and takes no writes; name its primary")
    replicas = info.get("connected_slaves", 0)
    return Finding(
        "server", Verdict.OK, f"{name}, primary with {replicas or 'no'} replica{'s' if replicas != 1 else ''}"
    )


def _durability(info: dict[str, Any], settings: dict[str, str]) -> Finding:
    subject = "durability"
    if not info.get("aof_enabled"):
        return _snapshots_only(subject, settings)
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("aof_last_bgrewrite_status", "ok") != "ok":
        return Finding(
            subject, Verdict.MEND, "the append-only file could not be written last time: see the server's log"
        )
    match settings.get("appendfsync"):
        case "always":
            return Finding(subject, Verdict.OK, "append-only file, synced before each answer: a crash loses nothing")
        case "no":
            return Finding(
                subject,
                Verdict.NOTE,
                "append-only file that the operating system syncs: a crash of the machine may lose half a minute "
                "(appendfsync everysec: about two seconds)",
            )
        case "everysec":
            return Finding(
                subject,
                Verdict.OK,
                "append-only file, synced every second: a crash of the machine may lose about the last two seconds, "
                "a crash of the server alone next to nothing",
            )
    return Finding(subject, Verdict.NOTE, "append-only file; this user may not see how often the server syncs it")


def _snapshots_only(subject: str, settings: dict[str, str]) -> Finding:
    remedy = "set appendonly yes to lose about two seconds at most"
    if not settings:
        return Finding(
            subject, Verdict.NOTE, f"no append-only file: a crash loses all since the last snapshot; {remedy}"
        )
    rules = settings.get("save", "")
    if not rules:
        text = f"no append-only file and no snapshots: a crash or restart loses every topic and group; {remedy}"
        return Finding(subject, Verdict.MEND, text)
    text = f"snapshots only (save {rules}): a crash loses acknowledged records, all since the last snapshot; {remedy}"
    return Finding(subject, Verdict.MEND, text)


def _acknowledged_by_disk(
    client: redis.Redis, info: dict[str, Any], settings: dict[str, str], wanted: Wanted
) -> Iterator[Finding]:
    if not wanted.synced:
        return
    problem = ""
    try:
        ask(client, "WAITAOF", 0, 0, 1)
    except ResponseError as error:
        problem = f"WAITAOF fails ({error}): it needs Redis 7.2 or Valkey, and a user's right +waitaof"
    appendfsync = settings.get("appendfsync")
    if not problem and not info.get("aof_enabled"):
        problem = "there is no append-only file: set appendonly yes"
    elif not problem and appendfsync == "no":
        problem = "with appendfsync no the server reports no flush: set it to everysec or always"
    text = f"korvet.acks.fsync of {wanted.synced}"
    if problem:
        yield Finding("acks.fsync", Verdict.MEND, f"{text} refuses producers with acks=all, and commits: {problem}")
    elif settings.get("no-appendfsync-on-rewrite") == "yes":
        problem = "while the server saves or rewrites, nothing is flushed: set no-appendfsync-on-rewrite no"
        yield Finding("acks.fsync", Verdict.MEND, f"{text} promises too much: {problem}")
    elif appendfsync == "always":
        yield Finding("acks.fsync", Verdict.OK, f"{text}: each answer waits for the disk")
    elif appendfsync == "everysec":
        yield Finding("acks.fsync", Verdict.OK, f"{text}: each answer waits for the flush of the next second or two")
    else:
        unknown = "this user may not see appendfsync, so front-ends wait as long as with everysec, a second or two"
        yield Finding("acks.fsync", Verdict.NOTE, f"{text}: {unknown}")


def _memory(info: dict[str, Any], settings: dict[str, str]) -> Iterator[Finding]:
    limit = int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", settings.get("maxmemory-policy", "")))
    if policy != "noeviction":
        text = f"maxmemory-policy is {policy}: a full server would throw topics away; set it to noeviction"
        yield Finding("eviction", Verdict.MEND, text)
    else:
        yield Finding("eviction", Verdict.OK, "noeviction: a full server refuses producers and throws nothing away")
    if not limit:
        text = f"{used // MIB} MiB used, no limit: set maxmemory, or the machine may kill the server for want of memory"
        yield Finding("memory", Verdict.NOTE, text)
        return
    full = used / limit
    text = f"{used // MIB} of {limit // MIB} MiB used"
    if full > 1 - RESERVED:
        yield Finding("memory", Verdict.NOTE, f"{text}: producers have to wait; {_REMEDY}")
    elif full > 0.9 - RESERVED:
        yield Finding("memory", Verdict.NOTE, f"{text}: producers are refused soon; {_REMEDY}")
    else:
        yield Finding("memory", Verdict.OK, text)


def _limits(info: dict[str, Any], settings: dict[str, str]) -> Iterator[Finding]:
    """The server's limits that break connections which all clients of a front-end share."""
    subject, found = "limits", False
    largest = BrokerValues({}).integer("socket.request.max.bytes")
    for name in ("proto-max-bulk-len", "client-query-buffer-limit"):
        most = int(settings.get(name, largest))
        if most < largest:
            found = True
            is_low = most < 2 * MIB
            text = f"{name} is {most >> 10} KiB: larger batches are refused, whatever max.message.bytes says; raise it"
            yield Finding(subject, Verdict.MEND if is_low else Verdict.NOTE, text)
    if settings.get("maxmemory-clients", "0") not in ("0", "0%"):
        found = True
        text = (
            f"maxmemory-clients is {settings['maxmemory-clients']}: beyond it the server closes the largest "
            "connections, which are those of front-ends; set it to 0"
        )
        yield Finding(subject, Verdict.NOTE, text)
    kind, *words = settings.get("client-output-buffer-limit", "normal 0 0 0").partition(" slave ")[0].split()
    if kind == "normal" and any(word != "0" for word in words):
        found = True
        text = (
            f"client-output-buffer-limit normal is {' '.join(words)}: a large answer breaks the connection that all "
            "readers of a front-end share; set it to 0 0 0"
        )
        yield Finding(subject, Verdict.NOTE, text)
    connected, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and connected > 0.9 * most:
        found = True
        text = f"{connected} of maxclients {most} connections are there: front-ends are soon refused; raise it"
        yield Finding(subject, Verdict.NOTE, text)
    if settings and not found:
        yield Finding(subject, Verdict.OK, "no limit of the server cuts off front-ends")


def _writes(client: redis.Redis, namespace: Namespace) -> Iterator[Finding]:
    key = throw_away_key(namespace)
    try:
        ask(client, "SET", key, "", "PX", 1000)
        ask(client, "UNLINK", key)
    except ResponseError as error:
        refusal = as_exception(str(error))
        # Other findings report a replica, a full memory, a missing right or another node's slot.
        if isinstance(refusal, StoreRefusing):
            text = f"the server refuses them, so producers, commits and changes fail: {refusal}"
            yield Finding("writes", Verdict.MEND, text)
    else:
        yield Finding("writes", Verdict.OK, "taken")


def _cluster(client: redis.Redis, info: dict[str, Any], url: RedisUrl | None) -> Iterator[Finding]:
    if not info.get("cluster_enabled"):
        return
    try:
        if url is not None and url.kind != "cluster" and not has_all_slots(ask(client, "CLUSTER SLOTS")):
            yield Finding("cluster", Verdict.MEND, wanted_url(url))
            return
        lines = ask(client, "CLUSTER", "INFO").decode().splitlines()
    except RedisError as error:
        yield Finding("cluster", Verdict.NOTE, f"a cluster node; it does not report the cluster's state: {error}")
        return
    state = dict(line.split(":", 1) for line in lines if ":" in line).get("cluster_state", "unknown")
    verdict = Verdict.OK if state == "ok" else Verdict.MEND
    yield Finding("cluster", verdict, f"a cluster node; the cluster's state is {state}")


def _replicas(info: dict[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if wanted.copies == 1:
        return
    replicas = [of for name, of in info.items() if _REPLICA.fullmatch(name) and isinstance(of, dict)]
    in_sync = sum(of.get("state") == "online" and int(of.get("lag", 0)) <= SILENT_S for of in replicas)
    text = f"{in_sync or 'none'} in sync, and min.insync.replicas={wanted.copies} of {wanted.whose}"
    if in_sync + 1 >= wanted.copies:
        yield Finding("replicas", Verdict.OK, f"{text} counts the primary too: batches of acks=all have copies")
    else:
        yield Finding(
            "replicas",
            Verdict.MEND,
            f"{text} asks for {wanted.copies - 1}: producers with acks=all are refused; add replicas, or lower "
            "the setting",
        )


def _library(client: redis.Redis) -> Finding:
    subject = "library"
    try:
        found = judge(ask(client, *QUESTION))
    except RedisError as error:
        return Finding(subject, Verdict.MEND, f"functions cannot be listed: {error}")
    own = library_version()
    match found.state:
        case State.CURRENT:
            return Finding(subject, Verdict.OK, f"version {own} is loaded")
        case State.NEWER:
            text = f"version {found.version} is loaded and this korvet has {own}: install the newer korvet here"
            return Finding(subject, Verdict.MEND, text)
        case State.ABSENT:
            text = f"not loaded; 'korvet serve' and 'korvet functions load' load version {own}"
            return Finding(subject, Verdict.NOTE, text)
    text = f"version {found.version} ({found.state}); 'korvet serve' and 'korvet functions load' bring version {own}"
    return Finding(subject, Verdict.NOTE, text)


def _rights(client: redis.Redis, namespace: Namespace, *, is_cluster: bool) -> Finding:
    lacking = missing_rights(client, namespace, is_cluster=is_cluster)
    if not lacking:
        return Finding("rights", Verdict.OK, "every command and channel that korvet uses works")
    if not missing_rights(client, LOBBY, is_cluster=is_cluster):
        text = (
            "every right of front-ends that reach tenants as their own Redis users (tenant-redis-passwords); this user "
            f"reaches no key of namespace {namespace.name}"
        )
        return Finding("rights", Verdict.OK, text)
    return Finding("rights", Verdict.MEND, missing_text(lacking))


def _secured(client: redis.Redis, namespace: Namespace) -> Iterator[Finding]:
    """The numbers of passwords and access rules, if this server holds them."""
    try:
        # Each hash has one more field, of its version.
        keys = (namespace.security.users, namespace.security.acls)
        passwords, rules = (max(int(ask(client, "HLEN", key)) - 1, 0) for key in keys)
    except RedisError:
        return
    summary = f"{passwords or 'no'} password{_s(passwords)} of users, {rules or 'no'} access rule{_s(rules)}"
    if not passwords:
        summary += "; a listener with SCRAM or PLAIN lets nobody in before: korvet users add"
    yield Finding("security", Verdict.OK, summary)


def _s(number: int) -> str:
    return "" if number == 1 else "s"
