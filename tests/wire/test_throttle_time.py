"""A throttle time put into a finished response is the one that a client reads, at each version of each served API."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from korvet.api import registry
from korvet.api.api_versions import supported
from korvet.wire import codec, fetch_response, group_responses, produce_response
from korvet.wire.codec import API_VERSIONS_KEY, Buffers, encode_response, frame_response, response_header
from korvet.wire.fetch_response import PartitionRead
from korvet.wire.produce_response import PartitionAnswer
from korvet.wire.throttle_time import told
from tests.support.ported import kafka

SERVED = [
    (api.key, version)
    for api in registry().values()
    for version in range(api.lowest, api.highest + 1)
    if codec.is_known(api.key, version)
]


def parsed(api_key: int, version: int, frame: Buffers) -> Any:
    data = b"".join(frame)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    body = memoryview(data)[4 + len(response_header(api_key, version, 0)) :].toreadonly()
    entity, size = entity_reader(load_response_schema(api_key, version))(body, 0)
    assert size == len(body)
    return entity


def check(api_key: int, version: int, frame: Buffers) -> None:
    before, after = parsed(api_key, version, frame), parsed(api_key, version, told(api_key, version, frame, 123_456))
    if hasattr(before, "throttle_time"):
        assert after == replace(before, throttle_time=timedelta(milliseconds=123_456))
    else:
        assert after == before


@kafka("RequestQuotaTest.testResponseThrottleTime")
@pytest.mark.parametrize(("api_key", "version"), SERVED)
def test_throttle_time_is_at_its_place_in_every_response(api_key: int, version: int) -> None:
    check(api_key, version, [encode_response(api_key, version, 7, codec._zeros(api_key, version))])


@pytest.mark.parametrize("version", range(5))
def test_throttle_time_is_behind_the_list_of_apis(version: int) -> None:
    check(API_VERSIONS_KEY, version, [encode_response(API_VERSIONS_KEY, version, 7, supported(ErrorCode.none))])


@pytest.mark.parametrize("version", range(3, 14))
def test_throttle_time_is_behind_the_outcomes_of_a_produce(version: int) -> None:
    topic = "t" if version < produce_response.TOPIC_ID_SINCE else uuid4()
    body = produce_response.pack(version, [(topic, [PartitionAnswer(0, 87, message="why", record_errors=((3, "x"),))])])
    check(0, version, frame_response(0, version, 7, [body]))


@pytest.mark.parametrize("version", range(4, 19))
def test_throttle_time_is_before_the_records_of_a_fetch(version: int) -> None:
    topic = "t" if version < fetch_response.TOPIC_ID_SINCE else uuid4()
    body = fetch_response.pack(version, [(topic, [PartitionRead(0, 1)])])
    check(1, version, frame_response(1, version, 7, body))


@pytest.mark.parametrize("version", range(5))
def test_throttle_time_may_lie_in_another_buffer_than_the_header(version: int) -> None:
    check(12, version, frame_response(12, version, 7, [b"", group_responses.heartbeat(version, 0)]))


def test_the_longest_time_is_the_highest_number() -> None:
    frame = told(12, 4, frame_response(12, 4, 7, [group_responses.heartbeat(4, 0)]), 2**40)
    assert parsed(12, 4, frame).throttle_time == timedelta(milliseconds=2**31 - 1)
