"""Settings that a scenario changes in a client. A setting that is None keeps the client's default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Settings of one producer.

    compression: one of `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    acks: 0, 1 or -1 (all).
    idempotent: True switches the idempotent producer on, False off; by default Java and kafka-python have it on.
    batch_bytes: the approximate largest size of a batch.
    request_bytes: the largest record that the client itself accepts.
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

    reset: `earliest` or `latest`: the start in a partition without a valid committed offset.
    session_timeout_ms: the time that the coordinator waits for a silent member.
    auto_commit: False leaves committing to the scenario.
    max_records: the member neither reports nor commits records behind this number of records.
    protocol: `classic` or `consumer` (KIP-848); for clients that know both.
    instance_id: the id of a static member; for the same clients.
    pattern: a regular expression to subscribe to instead of the topic; for the same clients.
    cooperative: give up only partitions that go to other members, as members of the consumer protocol always do;
        for the same clients.
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
    """The result for one produced record; partition and offset are set if the client tells them."""

    partition: int | None = None
    offset: int | None = None
    error: int = 0
    message: str = ""


def failures(outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes of records that were not written."""
    return [outcome for outcome in outcomes if outcome.error != 0]
