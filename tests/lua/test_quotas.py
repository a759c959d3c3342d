"""Quotas in Redis: changes are whole, bounded and told; buckets add up what all front-ends let through."""

from __future__ import annotations

import pytest
import redis

from korvet.store.keys import Namespace

KEY = "korvet:{default:@security}:quotas"
BUCKETS = ["korvet:{default:@quota:03}:a", "korvet:{default:@quota:03}:b"]
INVALID_REQUEST, POLICY_VIOLATION = 42, 44
ALICE, EVERYBODY = "user=alice producer_byte_rate", "user=<default> client-id=<default> request_percentage"


def alter_all(server: redis.Redis, changes: dict[str, str]) -> int:
    (code,) = server.fcall("korvet_quotas_alter", 1, KEY, *(text for change in changes.items() for text in change))
    return int(code)


def read(server: redis.Redis, known: int = -1) -> tuple[int, dict[str, str]]:
    _, version, flat = server.fcall_ro("korvet_quotas_read", 1, KEY, known)
    texts = [text.decode() for text in flat]
    return version, {field: text for field, text in zip(texts[::2], texts[1::2], strict=True) if field}


def use(server: redis.Redis, *uses: tuple[float, float, float]) -> list[float]:
    """Take from the buckets: amount, rate and capacity of each."""
    figures = [figure for one in uses for figure in one]
    _, levels = server.fcall("korvet_quotas_use", len(uses), *BUCKETS[: len(uses)], *figures)
    return [float(level) for level in levels]


def test_quotas_are_set_changed_and_deleted(server: redis.Redis) -> None:
    assert read(server) == (0, {})
    assert alter_all(server, {ALICE: "1024", EVERYBODY: "0.5"}) == 0
    version, found = read(server)
    assert found == {ALICE: "1024", EVERYBODY: "0.5"}
    assert read(server, known=version) == (version, {})
    assert alter_all(server, {ALICE: "2048", EVERYBODY: "", "ip=1.1.1.1 connection_creation_rate": "3"}) == 0
    assert read(server) == (version + 1, {ALICE: "2048", "ip=1.1.1.1 connection_creation_rate": "3"})


def test_a_change_that_changes_nothing_is_not_announced(server: redis.Redis) -> None:
    alter_all(server, {ALICE: "1024"})
    version, _ = read(server)
    assert alter_all(server, {ALICE: "1024", EVERYBODY: ""}) == 0
    assert read(server)[0] == version


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("", "1"), ("", ""), ("producer_byte_rate", "1"), ("user=alice", "1"), ("user=alice x", "1"),
        ("moon=alice producer_byte_rate", "1"), ("user= producer_byte_rate", "1"),
        ("ip=1.1.1.1 producer_byte_rate", "1"), ("user=a connection_creation_rate", "1"),
        ("client-id=a user=b producer_byte_rate", "1"), ("user=a user=b producer_byte_rate", "1"),
        (ALICE, "x"), (ALICE, "0"), (ALICE, "-1"), (ALICE, "inf"), (ALICE, "nan"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_quota_is_refused_with_all_others_of_its_call(
    server: redis.Redis, field: str, text: str
) -> None:
    assert alter_all(server, {EVERYBODY: "1", field: text}) == INVALID_REQUEST
    assert not server.exists(KEY)


def test_no_call_makes_more_quotas_or_longer_ones_than_the_bound(server: redis.Redis) -> None:
    assert alter_all(server, {f"user={'x' * 2048} producer_byte_rate": "1"}) == POLICY_VIOLATION
    for part in range(10):
        assert alter_all(server, {f"user={part}-{number} producer_byte_rate": "1" for number in range(1000)}) == 0
    assert alter_all(server, {ALICE: "1"}) == POLICY_VIOLATION
    assert alter_all(server, {ALICE: "1", "user=0-0 producer_byte_rate": ""}) == 0
    assert len(read(server)[1]) == 10_000


def test_buckets_add_up_what_all_front_ends_report(server: redis.Redis) -> None:
    # A rate of a millionth lets nothing flow in while the test runs.
    assert use(server, (30, 1e-6, 100), (1, 1e-6, 5)) == [70, 4]
    assert use(server, (90, 1e-6, 100), (0, 1e-6, 5)) == pytest.approx([-20, 4], abs=0.01)


def test_a_bucket_lives_until_it_is_full(server: redis.Redis) -> None:
    assert use(server, (0, 10, 100)) == [100]
    assert not server.exists(BUCKETS[0])
    use(server, (150, 10, 100))
    assert 14_000 < server.pttl(BUCKETS[0]) <= 15_000
    use(server, (1e15, 1, 100))
    assert server.pttl(BUCKETS[0]) <= 30 * 86_400_000


def test_a_bucket_fills_by_the_servers_clock(server: redis.Redis) -> None:
    now_ms = int(server.time()[0]) * 1000
    server.set(BUCKETS[0], f"-100.000000 {now_ms - 20_000}")
    (level,) = use(server, (0, 10, 1000))
    assert 100 <= level < 1000
    server.set(BUCKETS[0], f"-100.000000 {now_ms + 3_600_000}")
    assert use(server, (0, 10, 1000)) == [-100]


def test_lowered_capacity_counts_at_once_and_a_broken_bucket_is_a_full_one(server: redis.Redis) -> None:
    use(server, (1, 1e-6, 1000))
    assert use(server, (0, 1e-6, 10)) == [10]
    server.set(BUCKETS[0], "anything")
    assert use(server, (1, 1e-6, 10)) == [9]


@pytest.mark.parametrize(
    "figures", [("x", "1", "1"), ("-1", "1", "1"), ("inf", "1", "1"), ("1", "0", "1"), ("1", "1", "nan")]
)
def test_figures_that_are_none_change_nothing(server: redis.Redis, figures: tuple[str, ...]) -> None:
    with pytest.raises(redis.ResponseError, match="no number of its kind"):
        server.fcall("korvet_quotas_use", 2, *BUCKETS, "1", "1", "1", *figures)
    with pytest.raises(redis.ResponseError, match="three arguments for each key"):
        server.fcall("korvet_quotas_use", 2, *BUCKETS, "1", "1", "1")
    assert not server.exists(*BUCKETS)


def test_bucket_of_a_long_client_id_has_a_short_key_of_its_own() -> None:
    keys = {Namespace("n").quota_bucket(f"{kind} client-id={1000 * letter}") for kind in "ab" for letter in "é€"}
    assert len(keys) == 4 and max(map(len, keys)) < 128
    assert Namespace("n").quota_bucket("client-id=a").endswith(":client-id%3Da")
