"""docs/tools.md: korvet serves each API that the tools ask for."""

from __future__ import annotations

import re
from typing import Any

from tests.api.raw import ask
from tests.oracle.versions import API_KEYS
from tests.support.broker import ROOT, KorvetServer

PAGE = ROOT / "docs" / "tools.md"


def named() -> set[str]:
    """The APIs of the page's table, in snake case."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    names = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row)}
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}


def api_versions(broker: KorvetServer) -> Any:
    return ask(broker.port, "api_versions", 4, client_software_name="tools", client_software_version="1")


def test_every_api_that_tools_ask_for_is_served(broker: KorvetServer) -> None:
    wanted = named()
    assert len(wanted) > 30
    served = {entry["api_key"] for entry in api_versions(broker)["api_keys"]}
    assert {name for name in wanted if API_KEYS[name] not in served} == set()


def test_feature_tells_tools_the_version_of_kafka(broker: KorvetServer) -> None:
    levels = {entry["name"]: entry["max_version_level"] for entry in api_versions(broker)["finalized_features"]}
    # MetadataVersion.IBP_4_1_IV1, Kafka 4.1's own.
    assert levels["metadata.version"] == 27
