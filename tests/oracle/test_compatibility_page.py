"""docs/compatibility.md names the versions that the oracle compares, and the broker advertises those versions."""

import os

import pytest

from tests.oracle.script import Script, Step, new_variables, play
from tests.oracle.scripts import SCRIPTS
from tests.oracle.versions import ADVERTISED, API_KEYS, TOLD_TO_A_RECEIVER, needs_newest, usual

ASK = Script(
    "what is advertised",
    "api_versions",
    Step("api_versions", {"client_software_name": "oracle", "client_software_version": "1"}),
)
TOLD = {api: versions for api, versions in ADVERTISED.items() if api not in TOLD_TO_A_RECEIVER}


def _advertised(address: str) -> dict[int, tuple[int, int]]:
    (answer,) = play(ASK, 4, address, new_variables()).played
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in answer.outcome["api_keys"]}


def test_script_names_are_unique() -> None:
    names = [script.name for script in SCRIPTS]
    assert len(set(names)) == len(names)


@pytest.mark.skipif("KORVET_TEST_BOOTSTRAP" in os.environ, reason="another broker stands in for korvet")
def test_korvet_advertises_exactly_the_versions_of_the_page(korvet_address: str) -> None:
    assert _advertised(korvet_address) == {API_KEYS[api]: versions for api, versions in TOLD.items()}


def test_kafka_serves_the_same_versions(kafka_address: str) -> None:
    served = {api: (low, usual(api)) for api, (low, _) in TOLD.items() if not needs_newest(api, usual(api))}
    assert _advertised(kafka_address).items() >= {API_KEYS[api]: versions for api, versions in served.items()}.items()


@pytest.mark.all
def test_the_newest_kafka_serves_the_same_versions(newest_kafka_address: str) -> None:
    assert _advertised(newest_kafka_address).items() >= {API_KEYS[api]: TOLD[api] for api in TOLD}.items()
