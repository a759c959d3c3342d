"""Long answers: steps encode them, to the same bytes as kio's."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import fields
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.api import registry
from korvet.wire.codec import encode_response, is_tuple, nested_schema, response_schema
from korvet.wire.long_response import STEP, encode_in_steps, is_long

RESPONSES = [(api.key, version) for api in registry().values() for version in {api.lowest, api.highest}]
LEAVES: dict[str, Any] = {
    "string": "é",
    "bytes": b"\x00x",
    "records": b"\x00x",
    "bool": True,
    "uuid": None,
    "error_code": 3,
}


def an_answer(schema: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """The fields of a response: its outer arrays have ``counts[0]`` elements, the next inner ones ``counts[1]``."""
    count, *inner = counts
    return {
        field.name: [_value(field, tuple(inner) or (1,))] * count if is_tuple(field.type) else _value(field, counts)
        for field in fields(schema)
        if not (field.name == "node_endpoints" or "tag" in field.metadata)
    }


def _value(field: Any, counts: tuple[int, ...]) -> Any:
    nested = nested_schema(field.type)
    if nested is not None:
        return an_answer(nested, counts)
    return LEAVES.get(str(field.metadata["kafka_type"]), 7)


def finished(steps: Generator[None, None, bytes]) -> tuple[bytes, int]:
    """The encoded answer, and the number of its steps."""
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as stop:
            data: bytes = stop.value
            return data, count


SHORT_LISTS = {17, 71}
"""SaslHandshake tells three mechanisms at most, and GetTelemetrySubscriptions the metrics of a few subscriptions."""


@pytest.mark.parametrize(("key", "version"), RESPONSES)
def test_long_answer_is_encoded_as_a_short_one_in_steps(key: int, version: int) -> None:
    for counts in ((2, 2, 1), (STEP + 1, 1, 1), (1, STEP + 1, 1)):
        answer = an_answer(response_schema(key, version), counts)
        data, steps = finished(encode_in_steps(key, version, 7, answer))
        assert data == encode_response(key, version, 7, answer)
        # A list of names alone is encoded in one step.
        assert steps >= (1 if is_long(answer) and key not in SHORT_LISTS else 0)


def test_answer_of_30000_partitions_takes_only_short_steps() -> None:
    partition = {"partition_index": 1, "error_code": ErrorCode.none, "committed_offset": 1, "metadata": ""}
    partition["committed_leader_epoch"] = -1
    answer = {"error_code": 0, "topics": [{"name": "t", "partitions": [partition] * 30_000}]}
    assert is_long(answer)
    assert finished(encode_in_steps(9, 7, 7, answer))[1] >= 30_000 // STEP
