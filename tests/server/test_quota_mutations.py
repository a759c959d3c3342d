"""The quota of partitions that clients make and delete.

A wait is compared with the throttle time that the broker told, and only from below: a loaded machine takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.quotas import Client, client, limit
from tests.api.raw import ask, create_topics, unique
from tests.server.quotas import CLOCKS_S, WINDOWS, limited
from tests.support.broker import running_broker
from tests.support.ported import kafka
from tests.support.waiting import until


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_broker(broker=WINDOWS) as broker:
        yield broker.port


def topics(count: int = 2, partitions: int = 30) -> list[dict[str, Any]]:
    return [{"name": unique(), "num_partitions": partitions} for _ in range(count)]


def mutated(one: Client, api: str, version: int, field: str, **asked: Any) -> tuple[int, list[str]]:
    """The throttle time in ms, and the codes."""
    answer = one.ask(api, version, **asked)
    return answer["throttle_time"], sorted(result["error_code"] for result in answer[field])


def creation(asked: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    filled = [{"replication_factor": 1, "assignments": [], "configs": [], **one} for one in asked]
    return {"topics": filled, "timeout": 10_000, "validate_only": False, **values}


@kafka("ControllerMutationQuotaTest.testStrictCreateTopicsRequest")
def test_topics_beyond_the_quota_are_refused_until_it_fills(port: int) -> None:
    name = limited(port, controller_mutation_rate=0.2)
    with client(port, name) as one:
        asked = topics(partitions=3)
        throttle_ms, found = mutated(one, "create_topics", 6, "topics", **creation(asked))
        assert found == ["NONE", "THROTTLING_QUOTA_EXCEEDED"]
        # 3 of 2 are used.
        assert 0 < throttle_ms <= 5_000
        retry = creation(asked[1:])
        until(lambda: mutated(one, "create_topics", 6, "topics", **retry) == (0, ["NONE"]), "it never fills")


@kafka("ControllerMutationQuotaTest.testPermissiveCreateTopicsRequest")
def test_clients_that_do_not_know_the_code_get_all_topics_and_wait(port: int) -> None:
    name = limited(port, controller_mutation_rate=20)
    with client(port, name) as one:
        began = time.monotonic()
        throttle_ms, found = mutated(one, "create_topics", 5, "topics", **creation(topics(partitions=110)))
        assert found == ["NONE", "NONE"] and 0 < throttle_ms <= 1_000
        one.ask("api_versions", 0)
        assert time.monotonic() - began >= throttle_ms / 1000 - CLOCKS_S


@kafka(
    "ControllerMutationQuotaTest.testUnboundedCreateTopicsRequest",
    "ControllerMutationQuotaTest.testUnboundedCreatePartitionsRequest",
    "ControllerMutationQuotaTest.testUnboundedDeleteTopicsRequest",
    "ControllerMutationQuotaTest.testSetUnsetQuota",
)
def test_clients_without_a_quota_change_what_they_like(port: int) -> None:
    name = limited(port, controller_mutation_rate=1)
    limit(port, {"client_id": name}, controller_mutation_rate=None)
    with client(port, name) as one:
        asked = topics()
        assert mutated(one, "create_topics", 6, "topics", **creation(asked)) == (0, ["NONE"] * 2)
        more = [{"name": one["name"], "count": 60, "assignments": None} for one in asked]
        grown = mutated(one, "create_partitions", 3, "results", topics=more, timeout=10_000, validate_only=False)
        assert grown == (0, ["NONE"] * 2)
        names = [one["name"] for one in asked]
        assert mutated(one, "delete_topics", 5, "responses", topic_names=names, timeout=10_000) == (0, ["NONE"] * 2)


@kafka(
    "ControllerMutationQuotaTest.testStrictDeleteTopicsRequest",
    "ControllerMutationQuotaTest.testPermissiveDeleteTopicsRequest",
)
@pytest.mark.parametrize(("version", "codes"), [(5, ["NONE", "THROTTLING_QUOTA_EXCEEDED"]), (4, ["NONE", "NONE"])])
def test_deletions_count_by_partitions(port: int, version: int, codes: list[str]) -> None:
    asked = topics()
    assert {one["error_code"] for one in create_topics(port, *asked)} == {"NONE"}
    with client(port, limited(port, controller_mutation_rate=2)) as one:
        names = [topic["name"] for topic in asked]
        throttle_ms, found = mutated(one, "delete_topics", version, "responses", topic_names=names, timeout=10_000)
        assert found == codes
        assert 0 < throttle_ms <= (5_000 if version == 5 else 20_000)


@kafka(
    "ControllerMutationQuotaTest.testStrictCreatePartitionsRequest",
    "ControllerMutationQuotaTest.testPermissiveCreatePartitionsRequest",
)
@pytest.mark.parametrize(("version", "codes"), [(3, ["NONE", "THROTTLING_QUOTA_EXCEEDED"]), (2, ["NONE", "NONE"])])
def test_added_partitions_count(port: int, version: int, codes: list[str]) -> None:
    asked = topics(partitions=1)
    assert {one["error_code"] for one in create_topics(port, *asked)} == {"NONE"}
    more = [{"name": topic["name"], "count": 31, "assignments": None} for topic in asked]
    with client(port, limited(port, controller_mutation_rate=2)) as one:
        asked_for = {"topics": more, "timeout": 10_000, "validate_only": False}
        throttle_ms, found = mutated(one, "create_partitions", version, "results", **asked_for)
        assert found == codes
        assert 0 < throttle_ms <= (5_000 if version == 3 else 20_000)


def test_topics_beyond_the_quota_are_not_created_by_requests_for_their_metadata(port: int) -> None:
    """Attack: many topics without a CreateTopics."""
    name = limited(port, controller_mutation_rate=0.001)
    asked, auto = topics(1, partitions=25), unique("auto")

    def code() -> str:
        return str(one.ask("metadata", 12, topics=[{"topic_id": None, "name": auto}])["topics"][0]["error_code"])

    with client(port, name) as one:
        assert mutated(one, "create_topics", 6, "topics", **creation(asked)) == (0, ["NONE"])
        assert code() == "UNKNOWN_TOPIC_OR_PARTITION"
        # Another client's request tells that it is not there, and creates nothing either.
        unseen = ask(port, "metadata", 12, topics=[{"topic_id": None, "name": auto}], allow_auto_topic_creation=False)
        assert unseen["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        limit(port, {"client_id": name}, controller_mutation_rate=None)
        until(lambda: code() == "NONE", "it is not created without a quota")


def test_debt_of_months_is_answered_as_the_longest_time_that_there_is(port: int) -> None:
    name = limited(port, controller_mutation_rate=1e-9)
    with client(port, name) as one:
        asked = creation(topics(partitions=110), validate_only=True)
        throttle_ms, found = mutated(one, "create_topics", 5, "topics", **asked)
    assert (throttle_ms, found) == (2**31 - 1, ["NONE", "NONE"])
