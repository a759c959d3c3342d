"""The raw table gets every record that can be read; typed rows and dead letters follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.pipeline.plan.losses import Loss
from tests.pipeline.archiving import Scene, schema_of
from tests.pipeline.unreadable import batch_of, store, undecodable

SCHEMA = schema_of(n={"type": "integer"})


def test_undecodable_records_are_dead_letters_once_and_the_archive_goes_on(scene: Scene) -> None:
    scene.create(1)
    names = [(b"a\xff\xfeb", b"1"), (b"\xc3(", None)]
    for batch in (batch_of(b"0", headers=names), undecodable(3), batch_of(b"4"), undecodable(1)):
        store(scene.bootstrap, scene.topic, batch)
    assert not scene.archive().failed
    assert [(row.offset, row.value) for row in scene.rows()] == [(0, b"0"), (4, b"4")]
    assert [(header.key, header.value) for header in scene.rows()[0].headers] == [
        ("a\ufffd\ufffdb", b"1"),
        ("\ufffd(", None),
    ]
    assert [(row.topic, row.partition, row.offset) for row in scene.dead_letters()] == [
        (scene.topic, 0, 1), (scene.topic, 0, 5),
    ]  # fmt: skip
    assert all("cannot be read: Decompression" in row.reason for row in scene.dead_letters())
    assert scene.proven.losses == tuple(
        Loss(partition=0, kind="unreadable", start=start, end=end) for start, end in ((1, 4), (5, 6))
    )
    assert scene.reported() == {0: 6}
    # A driver that dies before it writes the raw records finds its dead letters.
    scene.forget(scene.lake.raw(scene.topic), -1)
    store(scene.bootstrap, scene.topic, batch_of(b'{"n": 6}', b"no"))
    assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    assert [row.offset for row in scene.rows()] == [0, 4, 6, 7]
    assert [row.offset for row in scene.dead_letters()] == [0, 1, 4, 5, 7]
    # They stay, since no schema makes rows of them.
    scene.retype('{"properties": {"m": {}}}')
    assert [row.offset for row in scene.dead_letters()] == [0, 1, 4, 5, 7]


def test_batch_that_java_cannot_decode_ends_no_archive_with_spark_s_connector(scene: Scene) -> None:
    scene.create(2)
    scene.produce([b"other"], partition=1)
    for batch in (batch_of(b"0"), undecodable(2), batch_of(b"3")):
        store(scene.bootstrap, scene.topic, batch)
    assert not scene.archive(source="kafka", schemas={scene.topic: SCHEMA}).failed
    assert [(row.partition, row.offset, row.value) for row in scene.rows()] == [
        (0, 0, b"0"), (0, 3, b"3"), (1, 0, b"other"),
    ]  # fmt: skip
    assert [row.offset for row in scene.dead_letters() if "cannot be read" in row.reason] == [1]
    assert scene.reported() == {0: 4, 1: 1}


def test_schema_without_columns_stops_the_typed_table_alone(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 0}', b"no"])
    told = scene.archive_error(schemas={scene.topic: '{"type": "string"}'})
    assert ": typed table: " in told and "no JSON object fits it" in told and "the raw table has all records" in told
    assert scene.values() == [b'{"n": 0}', b"no"] and scene.reported() == {0: 2}
    assert not scene.archive(schemas={scene.topic: ""}).failed
    assert not Path(scene.lake.typed(scene.topic)).exists()


@pytest.mark.scene
def test_typed_table_gets_later_what_a_wrong_schema_or_a_kill_kept_from_it(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 0}'])
    assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    scene.produce([b'{"n": 1}', b"no"])
    assert scene.archive_error(schemas={scene.topic: '{"type": "string"}'})
    assert [row.n for row in scene.typed()] == [0] and len(scene.rows()) == 3
    # No record is new.
    assert not scene.archive(schemas={scene.topic: SCHEMA}, max_offsets_per_trigger=1).failed
    assert [row.n for row in scene.typed()] == [0, 1]
    assert [row.offset for row in scene.dead_letters()] == [2]
    # The driver died between the dead letters and the typed rows.
    scene.forget(scene.lake.typed(scene.topic), 1)
    assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    assert [row.n for row in scene.typed()] == [0, 1] and [row.offset for row in scene.dead_letters()] == [2]
