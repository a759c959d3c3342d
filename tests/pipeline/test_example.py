"""The example that the documentation names."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.broker import ROOT, KorvetServer


def test_example_makes_tables_and_a_picture_of_an_empty_folder(
    spark: SparkSession,
    broker: KorvetServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BROKER", broker.bootstrap)
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    runpy.run_path(str(ROOT / "examples" / "lake.py"))
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert told[0][0] == "orders-example:"
    # Of 500 orders 25 were cancelled.
    assert sum(int(words[1]) for words in told if words[0] in ("open", "paid", "sent")) == 475
    assert {path.name for path in (tmp_path / "lake" / "orders-example").iterdir()} == {"raw", "typed", "latest"}
    assert "<svg" in (tmp_path / "lake" / "orders.svg").read_text()
