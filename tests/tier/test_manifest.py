"""The manifest: members as texts, shelves, and what is to be sealed, merged and shelved."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.tier.manifest import (
    MOST_MEMBERS,
    SHELVED,
    DamagedManifest,
    Manifest,
    Member,
    folder_of,
    parse_member,
    read_shelf,
    shelf,
)
from tests.tier.segments import NAME, TOPIC_ID, batch, member, written

LARGEST = (1 << 63) - 1
MIB = 1 << 20


def members(count: int, sizes: list[int] | None = None, kind: str = "segment") -> list[Member]:
    """Segments of ten offsets each."""
    found, running = [], 0
    for at in range(count):
        size = sizes[at] if sizes else 100
        running += size
        found.append(Member(kind, 10 * at, 10 * at + 10, size, 50, 7 * (at // 2), 7 * (at // 2), running, at, NAME))
    return found


def test_member_of_a_segment_is_read_from_its_text() -> None:
    whole, footer = written([batch(5, 3, 100, timestamp=70, producer=9)], 5)
    one = member(footer)
    assert parse_member(one.text(), 8) == one
    assert one.text() == f"segment 5 161 {len(whole) - 161} 70 70 161 {footer.crc} {NAME}"
    assert one.object_bytes == len(whole)
    path = one.path(folder_of("default", "o" * 249, TOPIC_ID.hex, 3))
    assert path == f"default/{'o' * 249}/{TOPIC_ID.hex}/3/00000000000000000005-{NAME}.segment"


def test_largest_member_is_short() -> None:
    numbers = LARGEST - 1, LARGEST, LARGEST, LARGEST, LARGEST, LARGEST, LARGEST
    one = Member("segment", *numbers, (1 << 32) - 1, NAME)
    assert parse_member(one.text(), LARGEST) == one
    assert len(one.text()) <= 165


@given(
    st.text() | st.lists(st.integers(-5, 5).map(str) | st.sampled_from(["segment", NAME])).map(" ".join), st.integers()
)
def test_text_that_korvet_did_not_write_is_refused_or_read_as_it_stands(text: str, score: int) -> None:
    try:
        one = parse_member(text, score)
    except DamagedManifest:
        return
    assert one.text() == text


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "shelves"}, {"first_offset": -1}, {"first_offset": 10}, {"size_bytes": 0}, {"footer_bytes": 0},
        {"running_bytes": 1 << 63}, {"name": ""}, {"name": "../" + NAME[3:]}, {"name": "a b"}, {"name": "a\n"},
        {"name": 129 * "a"}, {"first_offset": "00"},
    ],
)  # fmt: skip
def test_damaged_member_is_named(change: dict[str, object]) -> None:
    text = members(1)[0]._replace(**change).text()  # type: ignore[arg-type]
    with pytest.raises(DamagedManifest, match="is not one of korvet's"):
        parse_member(text, 10)


def test_manifest_is_read_from_what_redis_lists() -> None:
    listed = [(one.next_offset, one.text().encode()) for one in members(3)]
    assert list(Manifest.of_listed(listed).members) == members(3)
    assert Manifest.of_listed([]).members == ()
    with pytest.raises(DamagedManifest, match="the segments up to 20 and from 0 overlap"):
        Manifest.of_listed([listed[1], listed[0]])
    with pytest.raises(DamagedManifest, match="is not one of korvet's"):
        Manifest.of_listed([(10, b"\xff")])


def test_member_of_an_offset_and_of_a_time_is_found() -> None:
    one = Manifest(members(7)[1:])
    for offset in range(-1, 75):
        found = one.at(offset)
        assert (found.first_offset // 10 if found else None) == (offset // 10 if 10 <= offset < 70 else None)
    # Records between the segments were deleted.
    assert Manifest([one.members[0], one.members[2]]).at(25) is None
    # The maxima are 0 7 7 14 14 21.
    assert [len(one.from_time(time)) for time in (-1, 0, 1, 7, 8, 21, 22)] == [6, 6, 5, 5, 3, 1, 0]
    # Deleted records were younger than all others.
    late = Manifest(member._replace(running_max_timestamp=99) for member in one.members)
    assert [len(late.from_time(time)) for time in (-1, 0, 1, 7, 8, 21, 22)] == [6, 6, 5, 5, 3, 1, 0]


def test_members_wholly_below_the_start_may_go() -> None:
    one = Manifest(members(3))
    assert [len(one.below(start)) for start in (0, 9, 10, 29, 30, 99)] == [0, 0, 1, 2, 3, 3]


def test_shelf_stands_for_its_segments() -> None:
    listed = members(SHELVED)
    data, one = shelf(listed, NAME)
    assert list(read_shelf(data, one).members) == listed
    assert (one.first_offset, one.next_offset, one.size_bytes) == (0, 10 * SHELVED, 100 * SHELVED)
    assert (one.running_max_timestamp, one.running_bytes) == (listed[-1].running_max_timestamp, 100 * SHELVED)
    assert one.object_bytes == len(data) <= 200 * SHELVED
    assert parse_member(one.text(), one.next_offset) == one
    assert one.path("ns/t").endswith(f"00000000000000000000-{NAME}.shelf")
    Manifest([one, *members(SHELVED + 2)[SHELVED:]])


def test_every_flipped_bit_and_truncation_of_a_shelf_is_noticed() -> None:
    data, one = shelf(members(2), NAME)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedManifest):
            read_shelf(bytes(changed), one)
    for size in range(len(data)):
        with pytest.raises(DamagedManifest):
            read_shelf(data[:size], one)


def test_shelf_that_lists_other_segments_than_its_member_says_is_refused() -> None:
    data, one = shelf(members(3), NAME)
    with pytest.raises(DamagedManifest, match="lists other segments"):
        read_shelf(data, one._replace(next_offset=40))
    nested, of_shelf = shelf([one], NAME)
    with pytest.raises(DamagedManifest, match="lists other segments"):
        read_shelf(nested, of_shelf)


def test_zset_stays_bounded_while_segments_come_and_go_on_shelves() -> None:
    one: list[Member] = []
    for at, new in enumerate(members(20_000)):
        one.append(new)
        if shelved := Manifest(one).to_shelve() if len(one) >= MOST_MEMBERS else ():
            assert len(shelved) == SHELVED
            at = one.index(shelved[0])
            one[at : at + SHELVED] = [shelf(shelved, NAME)[1]]
        assert len(one) < MOST_MEMBERS
    assert Manifest(one).to_shelve() == ()
    assert one[0].kind == "shelf"


def test_segments_before_a_gap_are_not_shelved_with_those_after_it() -> None:
    """The records between them were deleted, and the first ones wait to be forgotten."""
    one = members(MOST_MEMBERS + 10)
    del one[5:15]
    assert Manifest(one).to_shelve() == one[5 : 5 + SHELVED]
    assert Manifest(one[:-1]).to_shelve() == ()
    assert Manifest([*members(600), *members(1200)[601:]]).to_shelve() == members(SHELVED)


def test_small_neighbours_are_merged_up_to_the_size_of_a_segment() -> None:
    def chosen(sizes: list[int]) -> list[int]:
        return [one.size_bytes for one in Manifest(members(len(sizes), sizes)).to_merge(100)]

    assert chosen([90, 10, 10, 90]) == []
    assert chosen([90, 30, 20, 90, 10]) == [30, 20]
    assert chosen([1] * 8) == [1] * 8
    assert chosen([1] * 7) == []
    assert chosen([40, 40, 40, 40]) == [40, 40]
    assert chosen([1] * 200) == [1] * 64
    assert chosen([]) == []
    apart = members(9, [30] * 9)
    assert Manifest([apart[0], *apart[2:]]).to_merge(100) == apart[2:5]
    # Many aborted transactions: one footer would be too large.
    wide = [one._replace(footer_bytes=MIB + 1) for one in members(4, [40] * 4)]
    assert Manifest(wide).to_merge(100) == ()
    narrow = [*wide[:2], *members(4, [40] * 4)[2:]]
    assert Manifest(narrow).to_merge(100) == narrow[1:3]
    shelves = members(9, [1] * 9, "shelf")
    assert Manifest(shelves).to_merge(100) == ()


def test_merging_writes_each_byte_again_only_a_few_times() -> None:
    """Tiny segments come for ever: the merged bytes stay a small multiple of the sealed ones."""
    target, written_again, kept, sizes = 64 * MIB, 0, 0, random.Random(1)
    one: list[Member] = []
    for at in range(20_000):
        kept += (size := sizes.randint(1000, 100_000))
        one.append(Member("segment", at, at + 1, size, 50, 0, 0, kept, 0, NAME))
        while run := Manifest(one).to_merge(target):
            begin = one.index(run[0])
            merged = run[-1]._replace(first_offset=run[0].first_offset, size_bytes=sum(m.size_bytes for m in run))
            one[begin : begin + len(run)] = [merged]
            written_again += merged.size_bytes
    assert len(one) < kept // (target // 2) + 64
    assert written_again < 6 * kept
