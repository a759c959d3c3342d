"""A bucket of S3 keeps the rules of `test_objects`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from uuid import uuid4

import pytest

from korvet.tier.objects import Objects, TierAway, open_objects
from tests.support.object_store import ObjectStore, running_object_store
from tests.tier import test_objects as rules

pytestmark = pytest.mark.anyio

RULES: list[Callable[[Objects], Awaitable[None]]] = [
    rules.test_store_that_keeps_the_rules_passes_its_trial,
    rules.test_ranges_of_an_object_are_read,
    rules.test_objects_are_listed_by_the_begin_of_their_names,
    rules.test_put_may_be_repeated_but_replaces_nothing,
    rules.test_one_of_many_puts_at_once_wins,
    rules.test_deleted_object_is_missing_and_may_be_deleted_again,
    rules.test_prefix_has_one_owner_until_another_takes_over,
    rules.test_one_of_many_claims_wins_and_all_learn_it,
    rules.test_damaged_owner_is_no_free_prefix,
]


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running_object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def environment(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The environment of a user of the bucket."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return object_store


@pytest.mark.parametrize("rule", RULES)
async def test_bucket_keeps(rule: Callable[[Objects], Awaitable[None]], environment: ObjectStore) -> None:
    await rule(open_objects(f"s3://{environment.bucket}/{uuid4().hex}"))


async def test_bucket_that_is_not_there_or_not_reached_is_away(
    environment: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = open_objects("s3://no-such-bucket/prefix")
    for call in (absent.put("a", [b"x"]), absent.read("a", 0, 1), absent.owner("ns")):
        with pytest.raises(TierAway, match=r"^s3://no-such-bucket/prefix: there is no such bucket$"):
            await call
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    unreached = open_objects(f"s3://{environment.bucket}/prefix")
    for call in (unreached.put("a", [b"x"]), unreached.read("a", 0, 1), unreached.delete("a"), unreached.owner("ns")):
        with pytest.raises(TierAway, match=r"^s3://") as caught:
            await call
        assert "\n" not in str(caught.value)
