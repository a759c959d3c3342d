"""``korvet serve --tier``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.choosing import eventually
from tests.support.broker import BrokerFailed, running_broker


def test_front_end_tries_its_tier_out_at_the_start(tmp_path: Path) -> None:
    with running_broker(tier=str(tmp_path / "tier")) as broker:
        eventually(lambda: "the tier can be used" in broker.log)


def test_unreachable_tier_delays_no_start_and_is_reported() -> None:
    with running_broker(tier="http://127.0.0.1:1/bucket") as broker:
        eventually(lambda: "the tier cannot be used yet" in broker.log)


@pytest.mark.parametrize("where", ["nothing://here", "/dev/null/tier"])
def test_tier_that_is_no_store_is_refused_in_one_line(where: str) -> None:
    with pytest.raises(BrokerFailed) as refused, running_broker(tier=where):
        pass
    assert where in str(refused.value)
