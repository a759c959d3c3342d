"""Kafka's tools for the cluster print the same about korvet as about Kafka."""

from __future__ import annotations

import re

from tests.oracle.tools import FEATURES, QUORUM, Tools


def test_quorum_tool_prints_as_for_kafka(tools: Tools) -> None:
    for how in ("--status", "--replication"):
        kafka, korvet = ([_words(line) for line in output.splitlines()] for _, output in tools.both(
            QUORUM, "describe", how))  # fmt: skip
        assert korvet == kafka
    assert [code for code, _ in tools.both(QUORUM, "describe", "--status")] == [0, 0]


def _words(line: str) -> list[str]:
    """The words of a line, with `#` for ids, numbers above 0, and names of listeners."""
    return [re.sub(r"[\w-]{22}|[1-9]\d*|\w+(?=://)", "#", word) for word in line.split()]


def test_feature_tool_prints_as_for_kafka(tools: Tools) -> None:
    kafkas = ("metadata.version", "3.3-IV3", "4.1-IV1")
    for name, least, top in (kafkas, ("transaction.version", 0, 2), ("group.version", 0, 1)):
        shown = f"Feature: {name} SupportedMinVersion: {least} SupportedMaxVersion: {top} FinalizedVersionLevel: {top}"
        for code, output in tools.both(FEATURES, "describe", mine=name):
            assert code == 0
            assert output.startswith(shown)
