"""The types of requests, and kio's entities of all versions as handlers read them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest

from korvet.api import Api, registry
from korvet.wire import produce_request, requests
from korvet.wire.codec import decode_header, decode_request
from korvet.wire.schema import request_schema
from tests.oracle.messages import request_frame
from tests.oracle.versions import API_KEYS
from tests.support.largest import versions
from tests.support.random_requests import Pool, random_values

API_NAMES = {key: name for name, key in API_KEYS.items()}
POOL = Pool(names=("a", "b"), ids=(UUID(int=7),), numbers=(1, 2), batches=(b"batch",))


def parts(entity: Any) -> Iterator[Any]:
    """An entity, and all entities in it."""
    yield entity
    for field in fields(entity):
        value = getattr(entity, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if is_dataclass(one):
                yield from parts(one)


@pytest.mark.parametrize(("key", "version"), versions())
def test_request_of_every_version_has_all_fields_of_its_type(key: int, version: int) -> None:
    values = random_values(API_NAMES[key], version, POOL, random.Random(7))
    frame = memoryview(request_frame(API_NAMES[key], version, values, 1))[4:]
    for part in parts(decode_request(decode_header(frame), frame)):
        typed = getattr(requests, type(part).__name__)
        own = {field.name for field in fields(part)}
        assert own <= set(typed.__annotations__)
        for name in set(typed.__annotations__) - own:
            assert getattr(part, name) == getattr(typed, name)


def test_large_produce_has_all_fields_of_its_type() -> None:
    assert produce_request.ProduceRequest.__annotations__.keys() == requests.ProduceRequest.__annotations__.keys()
    assert produce_request.TopicData.__annotations__.keys() == requests.TopicProduceData.__annotations__.keys()
    assert produce_request.ProduceData.__annotations__.keys() == requests.PartitionProduceData.__annotations__.keys()


@pytest.mark.parametrize("api", registry().values(), ids=lambda api: api.name)
def test_handler_names_the_type_of_its_requests(api: Api) -> None:
    handle = import_module(f"korvet.api.{api.name}").handle
    _, kind, _ = handle.__annotations__.values()
    assert kind == f"requests.{request_schema(api.key, api.highest).__name__}"


def test_field_that_a_version_lacks_has_the_default_of_kafkas_schema() -> None:
    assert request_schema(API_KEYS["offset_commit"], 2).group_instance_id is None
    assert request_schema(API_KEYS["join_group"], 0).rebalance_timeout == timedelta(milliseconds=-1)
    assert request_schema(API_KEYS["metadata"], 0).allow_auto_topic_creation is True
    # Before version 8 the field may be null, but the default is an empty array.
    assert request_schema(API_KEYS["offset_fetch"], 8).topics == ()
