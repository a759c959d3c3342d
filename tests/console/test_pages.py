"""The console's pages in a real browser: what they show of hostile names and records, and what they change."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, Page, Route, expect

from korvet.cli import run
from korvet.cli.console import cluster
from korvet.cli.console.history import KNOWN, UNKNOWN
from korvet.cli.ground.cluster import Cluster
from korvet.cli.kafka.topics import describe_topics
from korvet.cli.kafka.users import KafkaUsers
from korvet.metrics.lags import Lags
from korvet.pipeline.report.figures import Day, Interval, Lag, Report, Unarchived
from korvet.store.keys import Namespace, placed_batch
from korvet.store.security.users import CredentialKey
from tests.api.consumers import share_beat
from tests.console.conftest import HOSTILE, WITHIN_MS, redis_url, running_console
from tests.console.test_login import ask
from tests.support.broker import KorvetServer


def unique(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


def topic_with(broker: KorvetServer, values: Sequence[bytes | None], *, key: bytes | None = None) -> str:
    name = unique("console")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(name, value, key, headers=[(HOSTILE, HOSTILE.encode())])
    assert producer.flush(60) == 0
    return name


def committed(broker: KorvetServer, group: str, topic: str, offset: int, *, epoch: int = -1) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset, "", epoch)], asynchronous=False)
    finally:
        consumer.close()


def test_overview_leads_to_topics_and_groups(console: str, page: Page) -> None:
    page.goto(f"{console}/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cluster")
    page.get_by_role("navigation").get_by_role("link", name="Topics").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    page.get_by_role("navigation").get_by_role("link", name="Transactions").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Transactional ids")


def test_filter_narrows_the_list_while_one_types(broker: KorvetServer, console: str, page: Page) -> None:
    wanted, other = topic_with(broker, []), topic_with(broker, [])
    page.goto(f"{console}/topics?q=console-")
    page.get_by_label("Name has").fill(wanted)
    expect(page.get_by_role("link", name=wanted)).to_be_visible()
    expect(page.get_by_role("link", name=other)).to_have_count(0)
    expect(page).to_have_url(f"{console}/topics?q={wanted}")


def test_page_that_cannot_refresh_itself_says_so(console: str, browser: Browser) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"{console}/topics", timeout=WITHIN_MS)
        page.route("**/topics?**", lambda route: route.fulfill(status=503, body="away"))
        page.get_by_label("Name has").fill("a")
        expect(page.locator("#stale")).to_contain_text("this page is not up to date: the console answers 503")
        page.unroute("**/topics?**")
        page.get_by_label("Name has").fill("ab")
        expect(page.locator("#stale")).to_be_hidden()
    finally:
        context.close()


def test_topic_page_has_partitions_and_settings(broker: KorvetServer, console: str, page: Page) -> None:
    name = topic_with(broker, [b"a", b"b"])
    page.goto(f"{console}/topics?q={name}")
    page.get_by_role("link", name=name).click()
    expect(page.locator("#live tbody tr")).to_have_count(1)
    expect(page.locator("#live tbody tr td").nth(3)).to_have_text("2")
    expect(page.get_by_role("cell", name="retention.ms", exact=True)).to_be_visible()


def test_rates_are_those_of_the_last_minute(broker: KorvetServer, console: str, page: Page) -> None:
    name = topic_with(broker, [])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for count, age_s in ((60, 3600), (120, -600)):
        # The newer ones are of the last minute for as long as this test may take.
        for _ in range(count):
            producer.produce(name, b"a", timestamp=int((time.time() - age_s) * 1000))
        assert producer.flush(60) == 0
    page.goto(f"{console}/topics?q={name}")
    expect(page.locator("#list tbody td")).to_have_text([name, "1", "180", "2.0", re.compile("B$")])
    page.get_by_role("link", name=name).click()
    expect(page.locator("#live tbody td").nth(5)).to_have_text("2.0")


def test_rates_of_very_many_partitions_are_not_computed(broker: KorvetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [topic_with(broker, [b"a"]) for _ in range(2)]
    monkeypatch.setattr(cluster, "MOST_RATED", 1)
    with Cluster(bootstrap=broker.bootstrap).client() as client:
        rows = cluster.topic_rows(client, describe_topics(client, names))
    assert [(row.offsets, row.per_second is None) for row in rows] == [(1, False), (1, True)]


def test_damaged_partition_has_no_rate_and_hides_no_other(broker: KorvetServer, console: str, page: Page) -> None:
    damaged, sound = (topic_with(broker, [b"x" * 20_000]) for _ in range(2))
    with broker.redis() as client:
        # A batch of this size has a key of its own.
        assert client.delete(placed_batch(Namespace().partition(damaged, 0).log, 1)) == 1
    with Cluster(bootstrap=broker.bootstrap).client() as client:
        rows = {row.name: row for row in cluster.topic_rows(client, describe_topics(client, [damaged, sound]))}
    assert (rows[damaged].per_second, rows[sound].per_second is not None) == (None, True)
    page.goto(f"{console}/topic?name={damaged}")
    expect(page.locator("#live tbody td").nth(5)).to_have_text("-")


def test_hostile_records_are_shown_and_run_nothing(broker: KorvetServer, console: str, page: Page) -> None:
    values = [HOSTILE.encode(), b'{"a":"' + b"<b>x</b>" + b'"}', b"\xff\x00\x01", None, "\u202eevil\x1b[2J".encode()]
    name = topic_with(broker, values, key=HOSTILE.encode())
    page.goto(f"{console}/records?name={name}")
    expect(page.locator("tbody tr")).to_have_count(5)
    body = page.locator("tbody")
    expect(body).to_contain_text(HOSTILE)
    expect(body).to_contain_text('"a": "<b>x</b>"')
    expect(body).to_contain_text("ff 00 01")
    expect(body).to_contain_text("\\u202eevil\\x1b[2J")
    expect(page.locator("tbody tr td:nth-child(4)").first).to_contain_text(f"{HOSTILE} = {HOSTILE}")
    assert page.locator("tbody img, tbody script, tbody b").count() == 0
    page.get_by_role("link", name="0@0").click()
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0


def test_records_are_found_by_offset_and_by_a_text(broker: KorvetServer, console: str, page: Page) -> None:
    name = topic_with(broker, [b"value-%d" % number for number in range(300)])
    page.goto(f"{console}/records?name={name}&partition=0&start=offset&at=100&count=2")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="newer").click()
    expect(page.locator("tbody tr td:nth-child(3)").first).to_have_text("value-102")
    page.get_by_label("From").select_option("start")
    page.get_by_label("Key, value or header has").fill("value-299")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr td:nth-child(3)")).to_have_text("value-299")


def test_records_are_found_by_time_and_by_their_key(broker: KorvetServer, console: str, page: Page) -> None:
    name, hours = topic_with(broker, []), (3, 2, 1)
    now = datetime.now(UTC).replace(microsecond=0)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for hour in hours:
        at = now - timedelta(hours=hour)
        producer.produce(name, b"v", f"key-{hour}", timestamp=int(at.timestamp() * 1000))
    assert producer.flush(60) == 0
    page.goto(f"{console}/records?name={name}")
    page.get_by_label("From").select_option("time")
    page.get_by_label("Offset, or time in UTC").fill(f"{now - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr td:nth-child(2)")).to_have_text(["key-2", "key-1"])
    page.get_by_label("Key, value or header has").fill("key-1")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr td:nth-child(2)")).to_have_text(["key-1"])


def test_search_goes_on_by_itself_until_it_is_stopped(broker: KorvetServer, console: str, page: Page) -> None:
    name = topic_with(broker, [b"NEEDLE", *(b"%d" % number for number in range(60_000))])
    page.goto(f"{console}/records?name={name}&q=NEEDLE")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#look")).to_contain_text("1 of 60,001 records that were read · read to the start")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    waiting: list[Route] = []
    page.route("**/records?**from=**", lambda route: waiting.append(route))
    page.goto(f"{console}/records?name={name}&q=NEEDLE")
    page.get_by_role("button", name="Stop").click()
    with page.expect_response("**/records?**from=**"):
        waiting[0].continue_()
    page.unroute("**/records?**from=**")
    expect(page.locator("#look")).to_contain_text("about 10,001 are left, older ones")
    expect(page.locator("#rows tr")).to_have_count(0)
    page.get_by_role("link", name="older").click()
    expect(page.locator("#rows tr")).to_have_count(1)


def test_lag_of_a_group_is_drawn(broker: KorvetServer, console: str, page: Page) -> None:
    group, name = f"{unique('g')}{HOSTILE}", topic_with(broker, [b"a"] * 10)
    committed(broker, group, name, 4)
    page.goto(f"{console}/groups")
    page.get_by_label("Id contains").fill(group)
    page.get_by_role("link", name=group).click()
    expect(page.locator("#lag")).to_have_text("6")
    expect(page.locator("#lag-chart canvas")).to_be_visible()
    expect(page.locator("#lag-chart[data-points]")).to_have_count(1)


def test_lag_of_the_last_hour_is_drawn(broker: KorvetServer, console: str, lags: tuple[Lags, str], page: Page) -> None:
    group, name = f"{unique('g')}{HOSTILE}", topic_with(broker, [b"a"] * 10)
    committed(broker, group, name, 4)
    now = time.time()
    # The group commits nothing in the other topic, so this visitor sees nothing of it.
    for minute, numbers in enumerate(({(group, "other"): 9}, {(group, name): 3}, {}, {(group, name): 5})):
        lags[0].note("default", numbers, now - 600 + 60 * minute)
    page.goto(f"{console}/group?{urlencode({'id': group})}")
    expect(page.locator("#lag-note")).to_have_text(KNOWN)
    told = page.request.get(f"{console}/group/lag?{urlencode({'id': group, 'history': 1})}").json()
    assert told["lags"] == [None, 3, None, 5, 6]
    assert told["times"] == sorted(told["times"])
    assert page.request.get(f"{console}/group/lag?{urlencode({'id': group})}").json()["lags"] == [6]
    fresh = unique("g")
    committed(broker, fresh, name, 4)
    page.goto(f"{console}/group?id={fresh}")
    expect(page.locator("#lag-note")).to_have_text(UNKNOWN)


def test_offsets_are_reset_after_a_look_at_the_plan(broker: KorvetServer, console: str, page: Page) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"] * 10)
    committed(broker, group, name, 4)
    page.goto(f"{console}/group?id={group}")
    page.get_by_label("Goal").select_option("to_offset")
    page.get_by_label("Offset, time in UTC, or number").fill("7")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("tbody tr td")).to_have_text([f"{name}-0", "4", "7"])
    page.get_by_role("button", name="Reset these offsets").click()
    expect(page.get_by_role("status")).to_have_text("The offsets are reset.")
    expect(page.locator("#lag")).to_have_text("3")


def test_group_is_deleted(broker: KorvetServer, console: str, page: Page) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"])
    committed(broker, group, name, 1)
    page.goto(f"{console}/group?id={group}")
    page.get_by_role("button", name="Delete this group").click()
    page.get_by_role("link", name="Back, and change nothing").click()
    page.get_by_role("button", name="Delete this group").click()
    page.get_by_role("button", name=f"Delete {group} and its offsets").click()
    expect(page.get_by_role("status")).to_have_text("The group is deleted.")
    page.goto(f"{console}/groups?q={group}")
    expect(page.get_by_role("link", name=group)).to_have_count(0)


def test_share_group_is_shown_and_reset(broker: KorvetServer, console: str) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"] * 10)

    def shown() -> str:
        return ask(console, "GET", f"/group?id={group}")[1]

    share_beat(broker.port, group, "worker", 0, name)
    text = shown()
    assert "share, simple" in text and 'id="remove-worker"' in text
    assert '<dd id="lag">-</dd>' in text
    share_beat(broker.port, group, "worker", -1)
    token = re.search(r'name="token" value="([^"]+)"', text)
    assert token is not None
    fields = {"token": token[1], "id": group, "topic": name, "goal": "to_offset", "at": "7"}
    assert f"{name}-0" in ask(console, "POST", "/group/reset", fields)[1]
    assert ask(console, "POST", "/group/reset", {**fields, "execute": "1"})[0] in (200, 303)
    assert '<dd id="lag">3</dd>' in shown()
    assert group in ask(console, "GET", f"/groups?q={group}")[1]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_shown_with_their_partitions(broker: KorvetServer, console: str, page: Page, protocol: str) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"])
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "client.id": HOSTILE, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        assert consumer.poll(WITHIN_MS / 1000) is not None
        page.goto(f"{console}/group?id={group}")
        expect(page.locator("dd").nth(1)).to_contain_text(protocol)
        partitions, members = page.locator("#live table").all()
        expect(partitions.locator("tbody tr td").first).to_have_text(f"{name}-0")
        expect(partitions.locator("tbody tr td").last).to_have_text(consumer.memberid())
        expect(members.locator("tbody td").nth(1)).to_have_text(HOSTILE)
        expect(members.locator("tbody td").nth(3)).to_have_text("1")
        consumer.commit(asynchronous=False)
        page.get_by_role("button", name="Show the plan").click()
        expect(page.locator(".note")).to_contain_text("with 1 member; offsets can be reset only while nobody consumes")
        page.goto(f"{console}/groups?q={group}")
        expect(page.locator("#list tbody td").nth(4)).to_have_text("1")
    finally:
        consumer.close()


def test_member_is_removed(broker: KorvetServer, console: str, page: Page) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"])
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": HOSTILE,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([name])
        assert consumer.poll(WITHIN_MS / 1000) is not None
        page.goto(f"{console}/group?id={group}")
        expect(page.locator("#live")).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Remove").click()
        page.get_by_role("button", name="Remove this member").click()
        expect(page.get_by_role("status")).to_contain_text("The member is removed.")
    finally:
        consumer.close()


def test_open_transaction_is_shown_with_its_partitions(broker: KorvetServer, console: str, page: Page) -> None:
    name, id = topic_with(broker, []), f"{unique('t')}{HOSTILE}"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": id})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"a")
    producer.flush(60)
    page.goto(f"{console}/transactions?{urlencode({'q': id})}")
    page.get_by_role("link", name=id).click()
    expect(page.locator("main")).to_contain_text("Ongoing")
    expect(page.get_by_role("link", name=f"{name}-0")).to_be_visible()
    page.get_by_role("button", name="Abort the transaction").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Abort the transaction of {id}?")
    page.get_by_role("button", name="Abort the transaction and fence its producer").click()
    expect(page.get_by_role("status")).to_contain_text("The transaction is aborted")
    expect(page.locator("main dd").first).to_have_text("Empty")
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(60)
    assert refused.value.args[0].fatal()
    assert committed_values(broker, name) == []


def committed_values(broker: KorvetServer, topic: str) -> list[bytes | None]:
    """The values of committed records, up to the end of the topic's only partition."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.partition.eof": True}
    consumer = Consumer(settings)
    values = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(60)) is not None and message.error() is None:
            values.append(message.value())
        error = None if message is None else message.error()
        assert error is not None and error.code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()
    return values


def test_transaction_is_aborted_in_one_partition(broker: KorvetServer, console: str, page: Page) -> None:
    name, id = topic_with(broker, [b"before"]), unique("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": id})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"hangs")
    producer.flush(60)
    page.goto(f"{console}/topic?name={name}")
    page.get_by_role("link", name="transactions").last.click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("0@1")
    page.get_by_role("button", name="Abort").click()
    page.get_by_role("button", name="Write the marker").click()
    expect(page.get_by_role("status")).to_have_text("The transaction is aborted in this partition.")
    expect(page.locator("tbody tr")).to_have_count(0)
    assert committed_values(broker, name) == [b"before"]


def test_corrupt_entry_is_removed_after_a_question(broker: KorvetServer, page: Page) -> None:
    name = topic_with(broker, [b"before"])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (b"x" * 20_000, b"after"):
        producer.produce(name, value)
        assert producer.flush(60) == 0
    with broker.redis() as client:
        # A batch of this size has a key of its own.
        assert client.delete(placed_batch(Namespace().partition(name, 0).log, 2)) == 1
    flags = ["--bootstrap-server", broker.bootstrap, "--redis", redis_url(broker), "--allow-changes"]
    with running_console(*flags) as url:
        page.goto(f"{url}/records?name={name}&start=offset&at=1&partition=0")
        expect(page.locator(".note")).to_contain_text(f"{name}-0@1 cannot be decoded")
        page.get_by_role("button", name="Repair").click()
        page.get_by_role("button", name="Remove entry 2-0").click()
        expect(page.get_by_role("status")).to_have_text("The entry is removed.")
        expect(page.locator("tbody tr td:nth-child(3)")).to_have_text("after")


def test_broker_page_has_its_settings(console: str, page: Page) -> None:
    page.goto(f"{console}/")
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Settings of broker")
    page.get_by_label("Name has").fill("log.retention.ms")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("cell", name="log.retention.ms", exact=True)).to_be_visible()


def test_long_lists_have_pages(broker: KorvetServer, console: str, page: Page) -> None:
    prefix = unique("many")
    names = [f"{prefix}-{number:03}" for number in range(101)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(60)
    page.goto(f"{console}/topics?q={prefix}")
    expect(page.locator("#list tbody tr")).to_have_count(100)
    page.get_by_role("link", name="next").click()
    expect(page.locator("#list tbody tr")).to_have_count(1)
    for future in admin.delete_topics(names).values():
        future.result(60)


@pytest.mark.parametrize(("scheme", "colour"), [("light", r"255, 255, 255"), ("dark", r"13, 17, 23")])
def test_pages_follow_the_systems_colours(console: str, browser: Browser, scheme: str, colour: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    try:
        page = context.new_page()
        page.goto(f"{console}/topics", timeout=WITHIN_MS)
        expect(page.locator("body")).to_have_css("background-color", re.compile(colour))
    finally:
        context.close()


def test_security_page_has_users_and_says_why_there_are_no_rules(
    broker: KorvetServer, console: str, page: Page
) -> None:
    user = f"{unique('u')}<b>"
    with Cluster(bootstrap=broker.bootstrap).client() as client:
        KafkaUsers(client).add(CredentialKey("SCRAM-SHA-256", user), secrets.token_hex(8), 4096)
    page.goto(f"{console}/security")
    page.get_by_label("User, principal or resource has").fill(user)
    expect(page.get_by_role("cell", name=user)).to_be_visible()
    expect(page.locator("#list")).to_contain_text("SECURITY_DISABLED")


def test_redis_and_its_tenants_and_the_lake_are_shown(broker: KorvetServer, page: Page, tmp_path: Path) -> None:
    file, flags = tmp_path / "report.json", ["--bootstrap-server", broker.bootstrap, "--redis", redis_url(broker)]
    with running_console(*flags, "--lake-report", str(file)) as url:
        page.goto(f"{url}/redis")
        expect(page.locator("tbody tr").first).to_contain_text("ok")
        expect(page.locator("main")).to_contain_text("library")
        tenant = f"t{secrets.token_hex(4)}"
        at = ["--redis", redis_url(broker)]
        assert run(["tenants", "create", tenant, "topics=10", *at]) == 0
        try:
            assert run(["tenants", "suspend", tenant, *at]) == 0
            page.get_by_role("link", name="Tenants").click()
            page.get_by_label("Name has").fill(tenant)
            expect(page.locator("#list tbody tr")).to_have_count(1)
            expect(page.locator("#list tbody tr")).to_contain_text("suspended")
            expect(page.locator("#list tbody tr")).to_contain_text("topics 10")
        finally:
            assert run(["tenants", "delete", tenant, "--execute", *at]) == 0
        file.write_text(json.dumps(lake_report().to_json()))
        page.get_by_role("link", name="Lake").click()
        expect(page.locator("#report tbody tr td")).to_have_text([HOSTILE, "7", "30", "3.0 KiB", "3", "2026-01-31"])
        expect(page.locator(".note").first).to_contain_text("days old; does its timer still run?")
        expect(page.locator(".note").last).to_contain_text("its archive seems to have stopped; 1,000 offsets wait")
        expect(page.locator("main")).to_contain_text("sink")
        file.unlink()
        page.reload()
        expect(page.locator(".note")).to_contain_text("cannot read the lake's report")


def test_offsets_that_wait_for_the_archive_are_shown_without_a_report(
    broker: KorvetServer, console: str, page: Page
) -> None:
    name = topic_with(broker, [b"a"] * 10)
    committed(broker, "korvet.archive", name, 4, epoch=0)
    page.goto(f"{console}/lake?q={name}")
    expect(page.locator("#archive tbody tr td")).to_have_text([name, "1", "6"])
    expect(page.locator("#report")).to_have_count(0)
    # Retention does not know either whose history an offset without an epoch is of.
    committed(broker, "korvet.archive", name, 4)
    page.reload()
    expect(page.get_by_role("heading", level=2)).to_have_text("The archive now")
    expect(page.get_by_role("link", name=name)).to_have_count(0)


def lake_report() -> Report:
    """A report of one topic with a hostile name."""
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    return Report(
        made_at=now,
        since=now,
        until=now,
        interval_s=60.0,
        lags=(Lag(group="sink", topic=HOSTILE, partition=0, committed=1, end=6),),
        intervals=(Interval(topic=HOSTILE, start=now, records=7, bytes=70),),
        days=tuple(
            Day(topic=HOSTILE, date=date(2026, 1, day), records=15, bytes=1536, files=files)
            for day, files in ((30, 1), (31, 2))
        ),
        unarchived=(Unarchived(topic=HOSTILE, offsets=1000),),
    )
