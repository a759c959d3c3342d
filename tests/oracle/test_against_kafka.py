"""Every script, at every version that Apache Kafka 4.1.2 serves, gets the same answers from Kafka and from korvet."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.oracle.compare import mismatches, surprises
from tests.oracle.script import Script, new_variables, play
from tests.oracle.scripts import SCRIPTS

CASES = [
    pytest.param(script, version, id=f"{script.name.replace(' ', '-')}-v{version}")
    for script in SCRIPTS
    for version in script.played_versions()
]


@pytest.mark.parametrize(("script", "version"), CASES)
def test_korvet_answers_as_kafka(script: Script, version: int, kafka_address: str, korvet_address: str) -> None:
    variables = new_variables()
    # Both brokers play at the same time, because some scripts wait for timeouts.
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(play, script, version, to, variables) for to in (kafka_address, korvet_address)]
    kafka = both[0].result()
    wrong = surprises(kafka)
    assert not wrong, "\n" + "\n".join(wrong)
    korvet = both[1].result()
    found = mismatches(script.name, kafka, korvet)
    assert not found, "\n" + "\n".join(found)
