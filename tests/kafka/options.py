"""What a scenario may ask of a client beyond its defaults. Whatever is None stays at the client's default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Settings of one producer.

    compression: one of `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    acks: 0, 1 or -1 (all).
    idempotent: True switches the idempotent producer on, False off; by default Java and kafka-python have it on.
    batch_bytes: about how large a batch may grow.
    request_bytes: the largest record the client itself lets pass.
    one_by_one: wait for each record's outcome before the next record is sent.
    """

    compression: str | None = None
    acks: int | None = None
    idempotent: bool | None = None
    batch_bytes: int | None = None
    request_bytes: int | None = None
    one_by_one: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """Settings of one group member.

    reset: `earliest` or `latest`: where a partition without a valid committed offset begins.
    session_timeout_ms: how long the coordinator waits for a member that is silent.
    auto_commit: False leaves committing to the scenario.
    max_records: what comes after so many records is neither reported nor committed by `commit`.
    protocol: `classic` or `consumer` (KIP-848), of the clients that know both.
    instance_id: of a static member; of those clients.
    pattern: a regular expression that is subscribed to in the topic's place; of those clients.
    cooperative: give up only partitions that go to others, which members of the consumer protocol always do; of those
        clients.
    """

    reset: str | None = None
    session_timeout_ms: int | None = None
    auto_commit: bool | None = None
    max_records: int | None = None
    protocol: str | None = None
    instance_id: str | None = None
    pattern: str | None = None
    cooperative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one produced record; partition and offset as far as the client tells."""

    partition: int | None = None
    offset: int | None = None
    error: int = 0
    message: str = ""


def failures(outcomes: list[Outcome]) -> list[Outcome]:
    """Those that were not written."""
    return [outcome for outcome in outcomes if outcome.error != 0]
