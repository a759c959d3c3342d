"""The pages: the requests of each to the cluster, and the values for its template."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException

from korvet.cli.console import form_fields
from korvet.cli.console.archive import archive_rows, archived_topics
from korvet.cli.console.changes import GOALS
from korvet.cli.console.cluster import (
    PartitionRow,
    describe_cluster,
    lag_rows,
    offsets_per_second,
    topic_page,
    topic_rows,
    total_lag,
)
from korvet.cli.console.history import History, lag_history
from korvet.cli.console.lake import read_report, shown_age
from korvet.cli.console.paging import page_of, query
from korvet.cli.console.records import MOST_PARTITIONS, MOST_SHOWN, STARTS, Found, Wanted, find_records, one_record
from korvet.cli.console.sources import Sources
from korvet.cli.kafka.acls import KafkaRules
from korvet.cli.kafka.archived import archived_positions
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.endings import open_transactions
from korvet.cli.kafka.errors import BrokerError
from korvet.cli.kafka.group_rows import MOST_OFFSETS, group_rows
from korvet.cli.kafka.groups import existing_group, group_facts, list_groups
from korvet.cli.kafka.offsets import TopicPartition, tier_limits
from korvet.cli.kafka.reset import parse_time
from korvet.cli.kafka.topics import Setting, broker_settings, describe_settings, list_topics
from korvet.cli.kafka.transactions import describe_transaction, list_transactions
from korvet.cli.kafka.users import KafkaUsers
from korvet.cli.records.formats import shown_time
from korvet.errors import KorvetError
from korvet.security.acl import AclFilter, Operation, PatternType, Permission, ResourceType

T = TypeVar("T")
Fields = Mapping[str, str]
View = Callable[[Client, Fields, Sources], dict[str, Any]]
STATES: Final = ("", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Empty", "Dead")
ANY_PARTITION: Final = -1
_ALL_RULES: Final = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, Operation.ANY, Permission.ANY)


def _overview(client: Client, _fields: Fields, _sources: Sources) -> dict[str, Any]:
    states: dict[str, int] = {}
    for group in list_groups(client):
        states[group.state] = states.get(group.state, 0) + 1
    topics = list_topics(client)
    partitions = sum(len(topic.partitions) for topic in topics)
    return {
        "cluster": describe_cluster(client),
        "topics": len(topics),
        "partitions": partitions,
        "states": sorted(states.items()),
    }


def _topics(client: Client, fields: Fields, sources: Sources) -> dict[str, Any]:
    wanted = form_fields.text(fields, "q")
    topics = sources.listed("topics", lambda: list_topics(client), lambda topic: 1 + len(topic.partitions))
    found = [topic for topic in topics if wanted.lower() in topic.name.lower()]
    page = page_of(found, form_fields.number(fields, "page", 1))
    return {"q": wanted, "page": page, "rows": topic_rows(client, page.rows)}


def _topic(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    name = form_fields.text(fields, "name")
    shown = topic_page(client, name)
    page = page_of(shown.partitions, form_fields.number(fields, "page", 1))
    rates = offsets_per_second(
        client, {TopicPartition(name, row.partition): row.end for row in page.rows if row.end is not None}
    )
    settings, no_settings = _found_or_reason(lambda: describe_settings(client, [name])[name])
    return {
        "name": name,
        "id": shown.topic.id,
        "page": page,
        "rates": {partition.partition: rate for partition, rate in rates.items()},
        "tiers": _tiers(client, name, page.rows, settings or ()),
        "settings": settings,
        "no_settings": no_settings,
    }


def _tiers(
    client: Client, name: str, rows: Sequence[PartitionRow], settings: Sequence[Setting]
) -> dict[int, tuple[int, int]]:
    """The local start and the tier's end of partitions; empty if the topic has no remote storage."""
    if not any((one.name, one.value) == ("remote.storage.enable", "true") for one in settings):
        return {}
    limits = tier_limits(client, [TopicPartition(name, row.partition) for row in rows])
    return {partition.partition: found for partition, found in limits.items()}


def _records(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    shown = {"name": form_fields.text(fields, "name"), "form": fields, "starts": STARTS}
    try:
        return {**shown, **_looked(client, fields)}
    except (HTTPException, KorvetError) as error:
        return {**shown, "wrong": form_fields.wrong_field(error)}


def _looked(client: Client, fields: Fields) -> dict[str, Any]:
    partition = form_fields.number(fields, "partition", ANY_PARTITION)
    start, at = form_fields.choice(fields, "start", STARTS), form_fields.text(fields, "at")
    toward, edges = form_fields.edges(fields, "from", MOST_PARTITIONS)
    wanted = Wanted(
        topic=form_fields.text(fields, "name"),
        partition=None if partition == ANY_PARTITION else partition,
        start=start,
        value=0 if toward else _value(start, at, fields),
        count=min(max(form_fields.number(fields, "count", 50), 1), MOST_SHOWN),
        text=form_fields.text(fields, "q"),
        first=max(0, form_fields.number(fields, "first", 0)),
        toward=toward,
        edges=edges,
    )
    found = find_records(client, wanted)
    form = {"name": wanted.topic, "partition": wanted.partition, "start": start, "at": at, "q": wanted.text}
    link = partial(query, "/records", **form, count=wanted.count, first=wanted.first or None)
    # A search continues by itself until it has found enough, and counts the records read and found.
    read = found.read + max(0, form_fields.number(fields, "read", 0))
    had = len(found.records) + max(0, form_fields.number(fields, "had", 0))
    onward = _onward(wanted, found)
    goes_on = bool(wanted.text and onward) and had < wanted.count
    return {
        "is_back": wanted.is_back,
        "found": found,
        "read": read,
        "had": had,
        "onward": link(**onward) if onward else "",
        "next_look": link(**onward, read=read, had=had) if goes_on else "",
        "older": link(**{"from": _edges("older", found.older)}) if found.older else "",
        "newer": link(**{"from": _edges("newer", found.newer)}) if found.newer else "",
    }


def _onward(wanted: Wanted, found: Found) -> dict[str, object]:
    """The fields of the next page in this one's direction; none if it was the last."""
    edges = found.older if wanted.is_back else found.newer
    if edges:
        return {"from": _edges("older" if wanted.is_back else "newer", edges)}
    return {"first": wanted.first + MOST_PARTITIONS} if found.others else {}


def _edges(toward: str, edges: Mapping[int, int]) -> str:
    return ",".join((toward, *(f"{partition}:{offset}" for partition, offset in edges.items())))


def _value(start: str, at: str, fields: Fields) -> int:
    """The offset or the time in ms that a page begins with."""
    if start == "time":
        if not at:
            raise HTTPException(400, "at names the time, as in 2026-01-31T12:00:00Z")
        return parse_time(at)
    return form_fields.number(fields, "at", 0) if start == "offset" else 0


def _record(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    name, partition = form_fields.text(fields, "name"), form_fields.number(fields, "partition", 0)
    return {"name": name, "record": one_record(client, name, partition, form_fields.number(fields, "offset", 0))}


def _groups(client: Client, fields: Fields, sources: Sources) -> dict[str, Any]:
    wanted, state = form_fields.text(fields, "q"), form_fields.choice(fields, "state", STATES)
    groups = sources.listed("groups", lambda: list_groups(client))
    found = [group for group in groups if wanted.lower() in group.group.lower() and state in ("", group.state)]
    page = page_of(found, form_fields.number(fields, "page", 1))
    rows = group_rows(client, page.rows, MOST_OFFSETS)
    return {"q": wanted, "state": state, "states": STATES, "page": page, "rows": rows}


def group(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    """A group's page."""
    id = form_fields.text(fields, "id")
    group = existing_group(client, id)
    rows = lag_rows(client, group)
    return {
        "group": group,
        "facts": group_facts(client, id),
        "members": page_of(group.members, form_fields.number(fields, "members", 1)),
        "page": page_of(rows, form_fields.number(fields, "page", 1)),
        "lag": total_lag(rows),
        "goals": GOALS.items(),
        "topics": sorted({row.partition.topic for row in rows}),
    }


def lag(client: Client, fields: Fields, sources: Sources) -> dict[str, Any]:
    """A group's lag for the chart, now or with ``history`` before, too: times in Unix seconds, lags, and a note."""
    group = existing_group(client, form_fields.text(fields, "id"))
    rows = lag_rows(client, group)
    before = History(note="")
    if "history" in fields:
        topics = {row.partition.topic for row in rows}
        before = lag_history(sources.metrics, group_facts(client, group.group), group.group, topics)
    return {"times": [*before.times, time.time()], "lags": [*before.lags, total_lag(rows)], "note": before.note}


def _transactions(client: Client, fields: Fields, sources: Sources) -> dict[str, Any]:
    wanted = form_fields.text(fields, "q")
    found = [
        one
        for one in sources.listed("transactions", lambda: list_transactions(client))
        if wanted.lower() in one.id.lower()
    ]
    return {"q": wanted, "page": page_of(found, form_fields.number(fields, "page", 1))}


def _transaction(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    transaction = describe_transaction(client, form_fields.text(fields, "id"))
    return {
        "transaction": transaction,
        "page": page_of(transaction.partitions, form_fields.number(fields, "page", 1)),
        "is_open": bool(transaction.partitions),
        "began": _time(transaction.started_ms),
    }


def _partition(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    partition = TopicPartition(form_fields.text(fields, "name"), form_fields.number(fields, "partition", 0))
    found = open_transactions(client, partition)
    rows = [(one, _time(one.last_timestamp_ms)) for one in found]
    return {"partition": partition, "page": page_of(rows, form_fields.number(fields, "page", 1))}


def _broker(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    node, wanted = form_fields.number(fields, "id", 0), form_fields.text(fields, "q")
    settings = [one for one in broker_settings(client, node) if wanted in one.name]
    return {"id": node, "q": wanted, "page": page_of(settings, form_fields.number(fields, "page", 1))}


def _security(client: Client, fields: Fields, _sources: Sources) -> dict[str, Any]:
    wanted = form_fields.text(fields, "q")
    users, no_users = _found_or_reason(KafkaUsers(client).find)
    rules, no_rules = _found_or_reason(lambda: KafkaRules(client).find([_ALL_RULES]))
    return {
        "q": wanted,
        "users": page_of([user for user in users if wanted in user.name], form_fields.number(fields, "users", 1)),
        "no_users": no_users,
        "page": page_of(
            [rule for rule in rules if wanted in rule.principal or wanted in rule.name],
            form_fields.number(fields, "page", 1),
        ),
        "no_rules": no_rules,
    }


def _found_or_reason(ask: Callable[[], Sequence[T]]) -> tuple[Sequence[T], str]:
    """A broker's answer, or nothing and why: a part of a page may be forbidden, or off."""
    try:
        return ask(), ""
    except BrokerError as error:
        if error.code is None:
            raise
        return (), str(error)


def _tenants(_client: Client, fields: Fields, sources: Sources) -> dict[str, Any]:
    from korvet.cli.tenants import read_tenants

    wanted = form_fields.text(fields, "q")
    found = [tenant for name, tenant in sorted(read_tenants(sources.redis).items()) if wanted in name]
    rows = [(one, sorted(one.limits.items()), _time(one.created_ms)) for one in found]
    return {"q": wanted, "page": page_of(rows, form_fields.number(fields, "page", 1))}


def _lake(client: Client, fields: Fields, sources: Sources) -> dict[str, Any]:
    wanted, positions = form_fields.text(fields, "q"), archived_positions(client)
    found = [topic for topic in archived_topics(positions) if wanted in topic]
    topics = page_of(found, form_fields.number(fields, "archive", 1))
    shown = {
        "q": wanted,
        "has_archive": bool(positions),
        "archive": topics,
        "archive_rows": archive_rows(client, positions, topics.rows),
        "report": None,
        "problem": "",
    }
    if sources.lake_report is None:
        return shown
    try:
        report = read_report(sources.lake_report)
    except KorvetError as error:
        return {**shown, "problem": str(error)}
    lags = [lag for lag in report.lags if wanted in lag.group or wanted in lag.topic]
    return {
        **shown,
        "report": report,
        "age": shown_age(report.age_s),
        "alarms": page_of(report.alarms, 1),
        "page": page_of([row for row in report.topics if wanted in row.topic], form_fields.number(fields, "page", 1)),
        "lags": page_of(lags, form_fields.number(fields, "lags", 1)),
    }


def _time(time_ms: int) -> str | None:
    """A time by ISO 8601; None for -1."""
    return shown_time(time_ms) if time_ms >= 0 else None


def _redis(_client: Client, _fields: Fields, sources: Sources) -> dict[str, Any]:
    from korvet.cli.doctor import examined

    return {"servers": examined(sources.redis, sources.namespace)}


PAGES: Final[tuple[tuple[str, str, View], ...]] = (
    ("/", "overview.html", _overview),
    ("/topics", "topics.html", _topics),
    ("/topic", "topic.html", _topic),
    ("/records", "records.html", _records),
    ("/record", "record.html", _record),
    ("/groups", "groups.html", _groups),
    ("/group", "group.html", group),
    ("/transactions", "transactions.html", _transactions),
    ("/transaction", "transaction.html", _transaction),
    ("/partition", "partition.html", _partition),
    ("/broker", "broker.html", _broker),
    ("/security", "security.html", _security),
    ("/lake", "lake.html", _lake),
    ("/tenants", "tenants.html", _tenants),
    ("/redis", "redis.html", _redis),
)
"""Path, template and view of each page."""
FOR_OPERATORS: Final = frozenset({"/redis", "/tenants"})
"""The pages that show more than a cluster's rules protect."""
