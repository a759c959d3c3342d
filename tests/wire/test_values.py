"""The values of a batch's records, in every codec, and batches with damaged records."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.wire.batch import HEADER, HEADER_BYTES, Batch
from korvet.wire.records import UndecodableRecords
from korvet.wire.values import values
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode
from tests.wire.test_records import COMPRESS


def built(value: bytes | None, codec: str, key: bytes | None = b"k", count: int = 3) -> tuple[Batch, bytes]:
    plain = encode(Script(count=count, key=key, value=value))
    number, compress = COMPRESS[codec]
    data = plain[:HEADER_BYTES] + compress(plain[HEADER_BYTES:])
    return Batch._make(HEADER.unpack_from(data))._replace(attributes=number), data


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("value", [None, b"", b"x", b"v" * 100_000])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_every_records_value_is_read(codec: str, value: bytes | None, key: bytes | None) -> None:
    found = [one if one is None else bytes(one) for one in values(*built(value, codec, key))]
    assert found == [value] * 3


@pytest.mark.parametrize("wrong", [2, 4])
def test_wrong_number_of_records_is_undecodable(wrong: int) -> None:
    batch, data = built(b"v", "none")
    with pytest.raises(UndecodableRecords):
        list(values(batch._replace(records=wrong), data))


@settings(deadline=None)
@given(st.data())
def test_damaged_records_are_values_or_undecodable(draw: st.DataObject) -> None:
    batch, data = built(b"v" * 20, draw.draw(st.sampled_from(sorted(COMPRESS))))
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        broken[draw.draw(st.integers(HEADER_BYTES, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(UndecodableRecords):
        assert len(list(values(batch, bytes(broken)))) == batch.records
