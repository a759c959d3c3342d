"""Capabilities of each client: the table that the scenarios are parametrised by, so that no case is skipped unseen."""

from collections.abc import Callable
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One client.

    name: as in pip, npm, Maven or on the command line.
    writes_timestamps: its producer can set a record's timestamp.
    writes_null_headers, binary_headers: a header's value may be null; it may be any bytes.
    administers: it has commands to create, list and delete topics.
    sets_offsets: it can set a group's offsets from outside the group.
    reads_offsets: it can ask for a group's committed offsets.
    idempotent_producer_goes_on: an idempotent producer can be used after the broker refused a record for good.
    survives_deletion: its consumer goes on after its topic is deleted; otherwise it says so and ends in good order.
    """

    name: str
    writes_timestamps: bool = True
    writes_null_headers: bool = True
    binary_headers: bool = True
    administers: bool = True
    sets_offsets: bool = True
    reads_offsets: bool = True
    idempotent_producer_goes_on: bool = True
    survives_deletion: bool = True


# Every client writes and reads every codec: kafkajs by the codecs in package.json (only gzip is its own),
# the Python clients by cramjam, python-snappy, lz4 and zstandard.
CLIENTS = (
    Traits(name="confluent-kafka"),
    Traits(name="aiokafka", sets_offsets=False),
    Traits(name="kafka-python", writes_null_headers=False, idempotent_producer_goes_on=False),
    Traits(name="java"),
    Traits(name="kafkajs", writes_null_headers=False),
    Traits(
        name="kcat",
        writes_timestamps=False,
        writes_null_headers=False,
        binary_headers=False,
        administers=False,
        sets_offsets=False,
        reads_offsets=False,
        survives_deletion=False,
    ),
)
NAMES = tuple(traits.name for traits in CLIENTS)
# Clients that know the consumer protocol (KIP-848), when they speak it; under their plain names they speak classic.
BY_CONSUMER_PROTOCOL = ("confluent-kafka-consumer", "java-consumer")
MEMBERS = (*NAMES, *BY_CONSUMER_PROTOCOL)
BY_BOTH_PROTOCOLS = ("confluent-kafka", "java", *BY_CONSUMER_PROTOCOL)
TRAITS = {traits.name: traits for traits in CLIENTS}


def names_where(condition: Callable[[Traits], bool]) -> list[str]:
    return [traits.name for traits in CLIENTS if condition(traits)]
