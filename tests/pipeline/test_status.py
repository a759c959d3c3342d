"""What `status` reads of Delta's logs and of the brokers, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

from korvet.cli import run
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.layout import LAKE_TABLES, Lake
from korvet.pipeline.plan.proofs import APPLICATION, PROPERTY, Proven
from korvet.pipeline.status import StatusConfig, TableStatus, lake_status
from tests.pipeline.sourcing import create, delete, produce
from tests.support.broker import KorvetServer
from tests.support.object_store import running_object_store

HELD = Proven(topic="t", topic_id="id", generation=1, batch_id=0, offsets={0: 3, 1: 1})


class Log:
    """A table's log as Delta writes it: commits, checksum files and the place of the last checkpoint."""

    def __init__(self, path: str) -> None:
        self._log = Path(path, "_delta_log")
        self._log.mkdir(parents=True)

    def commit(self, version: int, proven: Proven | None, *, age_s: float = 0, **actions: Any) -> None:
        info: dict[str, Any] = {"timestamp": round((time.time() - age_s) * 1000)}
        if proven is not None:
            info["userMetadata"] = proven.to_json()
            actions["txn"] = {"appId": APPLICATION + proven.topic_id, "version": proven.transaction_version}
        lines = [{"commitInfo": info}, *({name: action} for name, action in actions.items())]
        (self._log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))

    def checksum(self, version: int, proven: Proven, properties: Mapping[str, str], size: int = 700) -> None:
        fields = {
            "tableSizeBytes": size,
            "numFiles": 2,
            "metadata": {"configuration": properties},
            "setTransactions": [{"appId": APPLICATION + proven.topic_id, "version": proven.transaction_version}],
        }
        (self._log / f"{version:020d}.crc").write_text(json.dumps(fields))

    def checkpoint(self, version: int) -> None:
        """Leave of the log what Delta leaves once the commits up to that version are old."""
        (self._log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": 5}))
        for file in self._log.iterdir():
            if file.name[:20].isdigit() and int(file.name[:20]) < version:
                file.unlink()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def asked(broker: KorvetServer, lake: str, *topics: str) -> dict[tuple[str, str], TableStatus]:
    """The status of these tests' topics; others on this broker ask for tables, too."""
    found = lake_status(StatusConfig(bootstrap_servers=broker.bootstrap, lake=lake, topics=topics))
    return {(one.topic, one.table): one for one in found if one.topic.startswith("status-")}


def made(broker: KorvetServer, name: str, values: int = 5) -> Proven:
    """A topic of two partitions with so many records in the first, and a table's proof of three of them."""
    create(broker, name, 2)
    produce(broker, name, [b"v"] * values)
    with Broker({"bootstrap.servers": broker.bootstrap}) as client:
        return replace(HELD, topic=name, topic_id=client.topics([name])[name].id, offsets={0: 3})


def test_status_is_that_of_each_table_of_an_archive(broker: KorvetServer, lake: str) -> None:
    held = made(broker, "status-tables")
    for name, version in (("raw", 1), ("typed", 0), ("dead_letters", 0)):
        log = Log(Lake(lake).table(held.topic, name))
        for number in range(version + 1):
            log.commit(number, replace(held, batch_id=number, offsets={0: 2 + number}), age_s=100)
            log.checksum(number, held, {}, size=700 + number)
    # Somebody else's table, a directory of no table, and a first write that was cut off.
    Log(Lake(lake).latest(held.topic)).commit(0, None, metaData={"configuration": {}})
    Path(lake, "notes", "raw").mkdir(parents=True)
    Path(lake, "cut-off", "raw", "_delta_log", "_staged_commits").mkdir(parents=True)
    found = asked(broker, lake)
    assert [name for _, name in found] == ["raw", "typed", "dead_letters"]
    raw, typed, letters = found.values()
    assert (raw.ends, raw.behind, raw.bytes, raw.files, raw.error) == ({0: 3}, 2, 701, 2, None)
    assert (typed.ends, typed.behind, typed.bytes) == ({0: 2}, 3, 700)
    # Letters are rare: without one their table does not move.
    assert (letters.ends, letters.behind, letters.error) == ({0: 2}, None, None)
    assert all(one.age_s is not None and 100 <= one.age_s < 3600 for one in found.values())


def test_proof_is_found_where_the_archive_finds_it(broker: KorvetServer, lake: str) -> None:
    held = made(broker, "status-kept")
    kept = {PROPERTY: held.to_json(held.transaction_version)}
    log = Log(Lake(lake).raw(held.topic))
    # Delta has deleted the commit with the proof. Maintenance wrote the later ones, the last without a checksum file.
    for number in range(9, 11):
        log.commit(number, None)
    log.commit(11, None, add={"size": 20}, remove={"size": 50})
    log.checksum(10, held, kept)
    log.checkpoint(10)
    (raw,) = asked(broker, lake).values()
    assert (raw.ends, raw.behind, raw.age_s, raw.bytes, raw.files, raw.error) == ({0: 3}, 2, None, 670, 2, None)
    # A batch after it counts more than the property. Some writers do not say how large removed files were.
    log.commit(12, replace(held, batch_id=1, offsets={0: 4}), remove={"path": "p"})
    (raw,) = asked(broker, lake).values()
    assert (raw.ends, raw.behind, raw.bytes, raw.files) == ({0: 4}, 1, None, 1)
    # Without either the archive says what to do, and so does the status.
    log.checkpoint(13)
    log.commit(13, None)
    log.checksum(13, replace(held, batch_id=1), kept)
    (raw,) = asked(broker, lake).values()
    assert (raw.ends, raw.behind, raw.bytes) == ({}, None, 700)
    assert "no longer says up to which offsets it is complete" in str(raw.error)


def test_lag_is_unknown_of_a_topic_that_is_gone_or_another_one(broker: KorvetServer, lake: str) -> None:
    held = made(broker, "status-anew")
    Log(Lake(lake).raw(held.topic)).commit(0, replace(held, topic_id="former"))
    Log(Lake(lake).raw("status-gone")).commit(0, replace(held, topic="status-gone"))
    Path(Lake(lake).raw("status-damaged"), "_delta_log").mkdir(parents=True)
    Path(Lake(lake).raw("status-damaged"), "_delta_log", f"{0:020d}.json").write_text("{")
    anew, damaged, gone = asked(broker, lake).values()
    assert (anew.ends, anew.behind) == ({0: 3}, None) and "was deleted and created anew" in str(anew.error)
    # Its log is whole, and has no files.
    assert (gone.ends, gone.behind, gone.bytes, gone.error) == ({0: 3}, None, 0, None)
    assert str(damaged.error) == f"{Lake(lake).raw('status-damaged')}: its Delta log cannot be read"
    with pytest.raises(PipelineError, match="topic absent: it has no tables in"):
        asked(broker, lake, held.topic, "absent")
    with pytest.raises(PipelineError, match="there is no such directory"):
        asked(broker, f"{lake}/absent")
    with pytest.raises(PipelineError, match="it cannot be read: "):
        asked(broker, "hdfs://name/lake")


def test_topic_that_asks_for_tables_and_has_none_is_behind(broker: KorvetServer, lake: str) -> None:
    """Its archive has failed, or does not run."""
    Path(lake).mkdir()
    create(broker, "status-asks", 2, {LAKE_TABLES: "raw,typed"})
    produce(broker, "status-asks", [b"v"] * 4)
    asking = {one.topic: one for one in asked(broker, lake).values()}["status-asks"]
    assert asking == TableStatus(topic="status-asks", table="raw", behind=4)
    with pytest.raises(PipelineError, match="topic status-asks: it has no tables in"):
        asked(broker, lake, "status-asks")
    delete(broker, "status-asks")


def test_command_shows_it_without_spark(broker: KorvetServer, lake: str) -> None:
    held = made(broker, "status-command")
    log = Log(Lake(lake).raw(held.topic))
    log.commit(0, held, age_s=90_000)
    log.checksum(0, held, {})
    flags = ["pipeline", "status", "--lake", lake, "-b", broker.bootstrap, "--topic", held.topic]
    code = f"import sys; from korvet.cli import run; run({flags}); sys.exit('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    topic, table, behind, *age, size, files = done.stdout.splitlines()[1].split()
    assert (topic, table, behind, size, files) == (held.topic, "raw", "2", "700", "2")
    assert age[:2] == ["1", "day,"]


def test_command_fails_with_a_line_for_each_table_whose_status_is_unknown(
    broker: KorvetServer, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held = made(broker, "status-fails")
    Log(Lake(lake).raw(held.topic)).commit(0, replace(held, topic_id="former"))
    assert run(["pipeline", "status", "--lake", lake, "-b", broker.bootstrap, "--topic", held.topic, "--json"]) == 1
    shown = capsys.readouterr()
    (one,) = json.loads(shown.out)
    assert (one["topic"], one["table"], one["ends"], one["behind"]) == (held.topic, "raw", {"0": 3}, None)
    assert shown.err == f"korvet: {one['error']}\n"


def test_status_of_a_lake_in_an_object_store(
    broker: KorvetServer, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = made(broker, "status-bucket")
    log = Log(Lake(lake).raw(held.topic))
    for number in range(3):
        log.commit(number, replace(held, batch_id=number, offsets={0: number}))
    log.checksum(2, held, {})
    with running_object_store(tmp_path) as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        store: Any = from_url(f"{bucket.url}/lake", client_options={"allow_http": True})
        for file in Path(lake).rglob("*.*"):
            obstore.put(store, str(file.relative_to(lake)), file.read_bytes())
        (raw,) = asked(broker, f"{bucket.url}/lake").values()
        assert (raw.ends, raw.behind, raw.bytes) == ({0: 2}, 3, 700)
        with pytest.raises(PipelineError, match="lake s3a://no-such-bucket/lake: it cannot be read: "):
            asked(broker, "s3a://no-such-bucket/lake")
