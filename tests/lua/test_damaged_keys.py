"""Keys of groups and transactional ids that somebody deleted, cut or replaced by hand: the next calls heal them.

A key of another type is named by the error. It is healed as a deleted one once the operator has deleted it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.consumer import ConsumerGroup, of
from tests.lua.group import NONE, UNKNOWN_MEMBER_ID, Group, plain
from tests.lua.test_group_redis_groups import READER, find, note
from tests.lua.transaction import Transactional

GROUP_KEYS = range(5)
"""Of group, members, sessions, static and offsets."""
SESSION_S = 10


def _delete(server: redis.Redis, key: str) -> None:
    server.delete(key)


def _cut(server: redis.Redis, key: str) -> None:
    """Remove half of a key, at least one element."""
    if server.type(key) == b"zset":
        server.zremrangebyrank(key, 0, 0)
    elif server.type(key) == b"hash" and not key.endswith(":group"):
        server.hdel(key, *list(server.hkeys(key))[:1])


HURTS: dict[str, Callable[[redis.Redis, str], None]] = {"deleted": _delete, "cut": _cut}
hurt_by = pytest.mark.parametrize("hurt", HURTS.values(), ids=HURTS)
MEANWHILE: dict[str, Callable[[Group], None]] = {
    "at once": lambda _: None,
    "in an outage": lambda group: group.outage(5),
    "before the clock went back": lambda group: group.pass_time(-3600),
}
"""Operators touch keys while korvet is down, and a backup may come from a machine with another clock."""
meanwhile = pytest.mark.parametrize("passes", MEANWHILE.values(), ids=MEANWHILE)


def _rejoin(group: Group, members: list[str]) -> None:
    """Members do what clients do: they beat, and join again when they are told to, until both are in one generation."""
    ids: list[str] = list(members)
    for _ in range(4 * SESSION_S):
        if group.state == "Stable" and all(group.heartbeat(id, group.generation) == NONE for id in ids):
            assert group.describe().member_ids == set(ids)
            return
        for at, id in enumerate(ids):
            if group.heartbeat(id, -1) == UNKNOWN_MEMBER_ID:
                ids[at] = id = group.known(session_s=SESSION_S)
            joined = group.join(id, session_s=SESSION_S, rebalance_s=SESSION_S)
            if joined.is_leader:
                group.assign(joined)
        answers = [group.wait(id) for id in ids if group.state == "CompletingRebalance"]
        for answer in answers:
            if answer.is_leader:
                group.assign(answer)
        group.pass_time(1)
    pytest.fail(f"the group is {group.describe()}")


@meanwhile
@hurt_by
@pytest.mark.parametrize("key", GROUP_KEYS)
def test_classic_group_is_stable_again(
    group: Group, key: int, hurt: Callable[[redis.Redis, str], None], passes: Callable[[Group], None]
) -> None:
    members = group.stable(2, session_s=SESSION_S)
    assert group.commit({"t:0": "5 -1 aa "}, members[0], 2) == NONE
    hurt(group.server, group.keys[key])
    passes(group)
    _rejoin(group, members)
    assert group.fetch("t:0") == {"t:0": "" if key == GROUP_KEYS[-1] else "5 -1 aa "}


FIELDS = (
    "id", "locator", "state", "state_since", "generation", "protocol_type", "protocol", "leader", "protocols",
    "rebalance_timeout", "session_timeout", "attempt", "joined", "synced", "assigned", "next_due", "retention",
    "metadata_bytes", "clock", "size",
)  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_classic_group_is_stable_again_without_a_field(group: Group, field: str) -> None:
    members = group.stable(2, session_s=SESSION_S)
    group.server.hdel(group.keys[0], field)
    _rejoin(group, members)


EMPTY_FIELDS = ("id", "locator", "state", "state_since", "generation", "retention", "expires_at", "clock", "size")


@pytest.mark.parametrize("field", EMPTY_FIELDS)
def test_empty_group_takes_commits_and_members_without_a_field(group: Group, field: str) -> None:
    assert group.commit({"t:0": "5 -1 aa "}) == NONE
    assert group.server.hdel(group.keys[0], field)
    assert group.commit({"t:0": "6 -1 aa "}) == NONE
    assert group.fetch("t:0") == {"t:0": "6 -1 aa "}
    group.server.hdel(group.keys[0], field)
    _rejoin(group, ["a", "b"])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_error_names_the_member_whose_record_was_cut_and_the_group_goes_on_without_it(
    group: Group, consumers: ConsumerGroup, protocol: str
) -> None:
    if protocol == "classic":
        members = group.stable(2, session_s=SESSION_S)
        cut = members[1]
    else:
        consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
        epochs = {id: consumers.enter(id, "foo").epoch for id in "ab"}
        cut = "b"
    key = group.keys[1]
    record: Any = group.server.hget(key, cut)
    group.server.hset(key, cut, record[:-3] if protocol == "consumer" else record[:30])
    with pytest.raises(redis.ResponseError, match=f"field {cut} of {key} cannot be read"):
        group.join(cut) if protocol == "classic" else consumers.enter(cut, "foo")
    group.server.hdel(key, cut)
    _rejoin(group, members) if protocol == "classic" else _settle(consumers, epochs)


@hurt_by
@pytest.mark.parametrize("key", GROUP_KEYS)
def test_dead_member_of_a_damaged_group_leaves_it(
    group: Group, key: int, hurt: Callable[[redis.Redis, str], None]
) -> None:
    """The administrator can delete the group then."""
    group.stable(2, session_s=SESSION_S)
    hurt(group.server, group.keys[key])
    for _ in range(8):
        group.heartbeat("nobody", 1)
        group.pass_time(SESSION_S)
    assert group.state in ("Empty", "Dead")
    group.delete()
    assert group.exists() == []


@meanwhile
@hurt_by
@pytest.mark.parametrize("key", GROUP_KEYS)
def test_consumer_group_assigns_all_again(
    consumers: ConsumerGroup, key: int, hurt: Callable[[redis.Redis, str], None], passes: Callable[[Group], None]
) -> None:
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    epochs = {id: consumers.enter(id, "foo").epoch for id in "ab"}
    hurt(consumers.server, consumers.keys[key])
    passes(consumers)
    _settle(consumers, epochs)


@meanwhile
@hurt_by
@pytest.mark.parametrize("key", GROUP_KEYS)
def test_newcomer_gets_all_of_a_damaged_consumer_group_whose_members_died(
    consumers: ConsumerGroup, key: int, hurt: Callable[[redis.Redis, str], None], passes: Callable[[Group], None]
) -> None:
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    for id in "ab":
        consumers.enter(id, "foo")
    hurt(consumers.server, consumers.keys[key])
    passes(consumers)
    consumers.targets = {"new": of(foo=[0, 1])}
    epoch = consumers.enter("new", "foo").epoch
    for _ in range(4):
        consumers.pass_time(consumers.session_s - 1)
        epoch = consumers.beat("new", epoch).epoch
    assert list(consumers.owners().values()) == ["new", "new"]


CONSUMER_FIELDS = (
    "type", "target_epoch", "settled", "consumers", "assignor", "catalog_version", "policy", "state", "state_since",
    "generation", "next_due", "retention", "topics", "size",
)  # fmt: skip


@pytest.mark.parametrize("field", CONSUMER_FIELDS)
def test_consumer_group_assigns_all_again_without_a_field(consumers: ConsumerGroup, field: str) -> None:
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    epochs = {id: consumers.enter(id, "foo").epoch for id in "ab"}
    assert consumers.server.hdel(consumers.keys[0], field)
    _settle(consumers, epochs)


@pytest.mark.parametrize("of_whom", ["nobody", "a renamed member"])
def test_session_without_a_member_ends_in_a_consumer_group(consumers: ConsumerGroup, of_whom: str) -> None:
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    epochs = {id: consumers.enter(id, "foo").epoch for id in "ab"}
    if of_whom == "nobody":
        consumers.server.zadd(consumers.keys[2], {"nobody": 0})
    else:
        consumers.server.hset(consumers.keys[1], "c", consumers.server.hget(consumers.keys[1], "b") or b"")
        consumers.server.hdel(consumers.keys[1], "b")
    consumers.pass_time(consumers.session_s + 1)
    _settle(consumers, epochs)


def _settle(consumers: ConsumerGroup, epochs: dict[str, int]) -> None:
    """Members do what clients do, until each owns its target."""
    owned: dict[str, str | None] = {}
    for _ in range(12):
        for id in "ab":
            beat = consumers.beat(id, epochs[id])
            if beat.code != NONE:
                beat = consumers.enter(id, "foo")
            epochs[id], owned[id] = beat.epoch, beat.assignment if beat.assignment is not None else owned.get(id)
            consumers.beat(id, epochs[id], "foo", rebalance_s=5, owned=owned[id] or "")
        consumers.pass_time(1)
    assert consumers.owners() == {one.replace(" ", ""): id for id, one in consumers.targets.items()}


def test_static_member_keeps_its_place_when_the_one_before_it_expires(group: Group) -> None:
    """The table of instances was lost, so the instance joined as a new member beside its former one."""
    former = group.join(instance="i", session_s=SESSION_S)
    group.assign(former)
    group.server.delete(group.keys[3])
    assert group.heartbeat(former.member, 1, "i") == UNKNOWN_MEMBER_ID
    member = group.join(instance="i", session_s=3 * SESSION_S).member
    group.pass_time(2 * SESSION_S)
    assert group.heartbeat(member, group.generation, "i") == NONE
    assert group.describe().member_ids == {member}


@pytest.mark.parametrize("key", GROUP_KEYS)
def test_error_names_a_groups_key_of_another_type(group: Group, key: int) -> None:
    (member,) = group.stable(session_s=SESSION_S)
    group.server.delete(group.keys[key])
    group.server.set(group.keys[key], "text")
    named = f"WRONGTYPE Operation against {group.keys[key]}, which holds the wrong kind of value"
    with pytest.raises(redis.ResponseError, match=named):
        group.heartbeat(member, 1)
        group.join(instance="i")
        group.fetch("t:0")


@pytest.mark.parametrize("key", [0, 1], ids=["id", "deadlines"])
def test_transactional_id_goes_on(app: Transactional, key: int) -> None:
    producer, _ = app.begun()
    app.server.delete(app.keys[key])
    if key == 0:
        assert app.end(producer).code != NONE
    # The sweep of what partitions hold open tends the id.
    app.expire()
    app.pass_time(60)
    if key == 1:
        assert app.due() == ["app"]
        decision = app.expire()
        assert decision is not None
        app.complete(decision.ordinal)
    assert app.init().code == NONE


@pytest.mark.parametrize("field", ["state", "producer_id", "producer_epoch", "timeout_ms", "updated_ms"])
def test_transactional_id_without_a_field_begins_anew(app: Transactional, field: str) -> None:
    producer, _ = app.begun()
    app.server.hdel(app.keys[0], field)
    assert app.end(producer).code != NONE
    assert app.init().code == NONE
    assert app.describe()["partitions"] == []


@pytest.mark.parametrize("key", [0, 1], ids=["id", "deadlines"])
def test_error_names_a_transactions_key_of_another_type(app: Transactional, key: int) -> None:
    app.begun()
    app.server.delete(app.keys[key])
    app.server.set(app.keys[key], "text")
    with pytest.raises(redis.ResponseError, match=f"WRONGTYPE Operation against {app.keys[key]}, which"):
        app.init()


def test_reader_is_noted_anew(group: Group) -> None:
    note(group, "g", "t:0")
    group.server.set(READER, "text")
    with pytest.raises(redis.ResponseError, match=f"WRONGTYPE Operation against {READER}, which"):
        find(group, "t:0")
    group.server.delete(READER)
    note(group, "g", "t:0")
    assert find(group, "t:0") == ["g"]


SECURITY = "korvet:{default:@security}:"
TENANTS = "korvet:{@tenants}:"
CONNECTIONS = "korvet:{default:@connections}:"
CATALOG = tuple(f"korvet:{{default:@catalog}}:{name}" for name in ("meta", "topics", "configs"))
CREDENTIAL = "4096 c2FsdA== a2V5 a2V5"
CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "korvet_users_read": ((f"{SECURITY}users",), ("0",)),
    "korvet_users_alter": ((f"{SECURITY}users",), ("SCRAM-SHA-256:a", CREDENTIAL)),
    "korvet_acls_read": ((f"{SECURITY}acls",), ("0",)),
    "korvet_acls_add": ((f"{SECURITY}acls",), ('[2,3,"t","User:a","*",3,3]',)),
    "korvet_quotas_read": ((f"{SECURITY}quotas",), ("0",)),
    "korvet_quotas_alter": ((f"{SECURITY}quotas",), ("user=a producer_byte_rate", "1")),
    "korvet_security_secret": ((f"{SECURITY}secret",), ("c2VjcmV0",)),
    "korvet_tenants_read": ((f"{TENANTS}tenants",), ("0",)),
    "korvet_tenant_create": ((f"{TENANTS}tenants",), ("acme", "id", "{}", "")),
    "korvet_frontend_renew": ((CATALOG[0].replace("meta", "frontends"),), ("a:1", "3000")),
    "korvet_connections_count": (
        (f"{CONNECTIONS}leases", f"{CONNECTIONS}connections:ip:10.0.0.1"), ("front-end", "1000", "3"),
    ),
    "korvet_catalog_read": (CATALOG, ("-1",)),
    "korvet_topic_create": (CATALOG, ("t", "a" * 32, "1", "{}")),
    "korvet_producer_id": (CATALOG, ()),
    "korvet_group_admit": (("korvet:{default:@catalog}:groups:00",), ("g", "10")),
}  # fmt: skip
"""Calls beside groups, logs and transactional ids, with their keys and arguments."""
OF_ANOTHER_TYPE = [
    (name, at)
    for name, (keys, _) in CALLS.items()
    for at in range(1 if name == "korvet_producer_id" else len(keys))  # it reads its first key alone
]


@pytest.mark.parametrize(("function", "at"), OF_ANOTHER_TYPE)
def test_error_names_a_key_of_another_type_beside_groups(server: redis.Redis, function: str, at: int) -> None:
    """The next call works when the key is deleted, as the log says."""
    keys, args = CALLS[function]
    server.lpush(keys[at], "an element")
    with pytest.raises(redis.ResponseError, match=f"{plain(keys[at])}, which holds the wrong kind of value"):
        server.fcall(function, len(keys), *keys, *args)
    assert server.keys() == [keys[at].encode()]
    server.delete(keys[at])
    server.fcall(function, len(keys), *keys, *args)


def test_bucket_of_another_type_is_a_full_one(server: redis.Redis) -> None:
    key = "korvet:{default:@quota:00}:user=a"
    server.lpush(key, "an element")
    assert server.fcall("korvet_quotas_use", 1, key, 1, 1, 10) == [0, [b"9.000000"]]


def test_deleted_connections_are_counted_again(server: redis.Redis) -> None:
    keys, (_, lease_ms, _) = CALLS["korvet_connections_count"]
    for deleted in keys:
        for name in ("a", "b"):
            server.fcall("korvet_connections_count", 2, *keys, name, lease_ms, 3)
        server.delete(deleted)
        had_leases = [server.fcall("korvet_connections_count", 2, *keys, name, lease_ms, 3)[1] for name in ("a", "b")]
        assert had_leases == [deleted != keys[0]] * 2
        assert server.fcall("korvet_connections_count", 2, *keys, "a", lease_ms, 3) == [0, 1, [3]]


LOST, RETRY = -10, -5
TOPIC = '{"id":"%s","partitions":2,"configs":{}}' % ("a" * 32)


def catalog(server: redis.Redis, function: str, *args: str | int) -> Any:
    return server.fcall(f"korvet_{function}", len(CATALOG), *CATALOG, *args)


@pytest.mark.parametrize("hurt", ["deleted", "without its mark"])
@pytest.mark.parametrize("key", ["topics", "configs"])
def test_catalog_takes_no_change_until_what_was_deleted_is_back(server: redis.Redis, key: str, hurt: str) -> None:
    """Or the next topic would be the only one."""
    lost = CATALOG[1 if key == "topics" else 2]
    catalog(server, "topic_create", "t", "a" * 32, 2, "{}")
    catalog(server, "catalog_configure", '{"set": {"num.partitions": "7"}}')
    _, version, _, *before = catalog(server, "catalog_read", -1)
    server.delete(lost) if hurt == "deleted" else server.hdel(lost, "")
    assert catalog(server, "catalog_read", version)[:2] == [LOST, version]
    for function, args in {
        "topic_create": ("u", "b" * 32, 1, "{}"),
        "topic_configure": ("t", "a" * 32, "{}"),
        "catalog_configure": ('{"set": {"a": "b"}}',),
    }.items():
        with pytest.raises(redis.ResponseError, match=f"{plain(lost)}.* was deleted"):
            catalog(server, function, *args)
    fields = before[0] if key == "topics" else before[1]
    assert catalog(server, "catalog_restore", version - 1, key, "true", *fields) == [RETRY, 0]
    assert catalog(server, "catalog_restore", version, key, "false", *fields)[0] == 0
    assert catalog(server, "catalog_read", -1)[0] == LOST
    assert catalog(server, "catalog_restore", version, key, "true")[0] == 0
    assert catalog(server, "catalog_restore", version, key, "true") == [RETRY, 0]
    assert catalog(server, "catalog_read", version) == [0, version + 1, b"", *before]


@pytest.mark.parametrize("cut", ["{", "[1", "", "7"])
def test_error_names_the_entry_of_a_topic_that_cannot_be_read_until_it_is_entered_again(
    server: redis.Redis, cut: str
) -> None:
    catalog(server, "topic_create", "t", "a" * 32, 2, "{}")
    server.hset(CATALOG[1], "t", cut)
    calls: dict[str, tuple[str | int, ...]] = {
        "topic_grow": ("t", "a" * 32, 3), "topic_delete": ("t", "a" * 32, "begin")
    }  # fmt: skip
    for function, args in calls.items():
        with pytest.raises(redis.ResponseError, match=f"field t of {CATALOG[1]} cannot be read"):
            catalog(server, function, *args)
    assert catalog(server, "catalog_restore", -1, "topics", "true", "t", TOPIC) == [0, 1]
    assert catalog(server, "catalog_restore", -1, "topics", "true", "t", TOPIC.replace("2", "5")) == [0, 0]
    assert catalog(server, "topic_grow", "t", "a" * 32, 3)[0] == 0


def test_catalog_without_meta_goes_on_with_its_topics(server: redis.Redis) -> None:
    catalog(server, "catalog_init", "cluster")
    catalog(server, "topic_create", "t", "a" * 32, 2, "{}")
    server.delete(CATALOG[0])
    assert catalog(server, "catalog_init", "cluster") == [0, b"cluster"]
    assert catalog(server, "catalog_read", -1)[3][0] == b"t"
