"""Numbers that a visitor's rights do not show, or that nobody knows: they are no zeros."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from korvet.cli.console.cluster import LagRow, total_lag
from korvet.cli.ground.cluster import Cluster
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.trim import Goal, plan_trim
from korvet.errors import KorvetError
from korvet.unknown import total
from tests.console.conftest import MECHANISM, PASSWORD, running_console
from tests.console.test_login import ask, cookie_of
from tests.support.broker import KorvetServer

ALICE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": MECHANISM,
    "sasl.username": "alice",
    "sasl.password": PASSWORD,
}


@pytest.fixture(scope="module")
def guarded(secured: KorvetServer) -> Iterator[str]:
    with running_console("--bootstrap-server", secured.bootstrap, "--login") as url:
        yield url


@pytest.fixture
def alice(secured: KorvetServer) -> Iterator[Client]:
    with Cluster(bootstrap=secured.bootstrap, settings=ALICE).client() as client:
        yield client


@pytest.mark.parametrize(("path", "cell"), [("/topics?q=of-alice", -1), ("/topic?name=of-alice", -2)])
def test_size_of_a_topic_is_no_zero_without_cluster_rights(guarded: str, path: str, cell: int) -> None:
    text = ask(guarded, "GET", path, headers={"Cookie": cookie_of(guarded, "alice")})[1]
    row = text.partition("<tbody>")[2].partition("</tr>")[0]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row)[cell] == "-"


def test_trim_to_a_size_is_refused_if_sizes_are_not_known(alice: Client) -> None:
    with pytest.raises(KorvetError, match=r"of-alice-0: its size is not known.* Name a number of records"):
        plan_trim(alice, [TopicPartition("of-alice", 0)], Goal(kind="bytes", value=1))


def test_lag_of_a_group_without_committed_offsets_is_not_known() -> None:
    partition = TopicPartition("t", 0)
    rows = [LagRow(partition, None, 5, None, ""), LagRow(partition, 3, 5, 2, "")]
    assert (total_lag(rows[:1]), total_lag([]), total_lag(rows)) == (None, None, 2)


def test_sum_with_an_unknown_number_is_not_known() -> None:
    assert (total([1, None]), total([1, 2]), total([])) == (None, 3, 0)
