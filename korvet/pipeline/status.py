"""How fresh a lake's tables are, by the brokers' log ends and by Delta's logs, read without Spark.

Beside most commits Delta leaves a checksum file with the table's size, properties and transactions. So the newest one
and the commits after it stand for Delta's own snapshot, and no checkpoint is read.

Source: Delta's protocol (Version Checksum File)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from korvet.errors import KorvetError
from korvet.pipeline.broker import Broker
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.plan.history import other_topic
from korvet.pipeline.plan.layout import LAKE_TABLES, TABLES, Lake
from korvet.pipeline.plan.proofs import PROPERTY, Found, Snapshot, find
from korvet.tier.objects import in_one_line, open_store
from korvet.unknown import total

_AT_ONCE: Final = 16
_ASKED: Final = 500
_LISTED: Final = 1000
_MOST_COMMITS: Final = 1000
"""The most commits without a checksum file that are read back. Delta makes a checkpoint far more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusConfig:
    """A lake, and the brokers of its topics.

    :param topics: topics of the lake; none means all.
    :param client: the Kafka client's settings, by the Java client's names.
    """

    bootstrap_servers: str
    lake: str
    topics: tuple[str, ...] = ()
    client: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A table of an archive as it is now; None is unknown.

    :param ends: by partition, the offsets below which the table has everything.
    :param behind: how many offsets it lacks of the topic. Dead letters come seldom, so it is unknown of their table.
    :param age_s: the seconds since the commit with these ends.
    :param error: why something is unknown.
    """

    topic: str
    table: str
    ends: Mapping[int, int] = field(default_factory=dict)
    behind: int | None = None
    age_s: float | None = None
    bytes: int | None = None
    files: int | None = None
    error: PipelineError | None = None


def lake_status(config: StatusConfig) -> list[TableStatus]:
    """The tables of a lake, by topic. A topic that asks for tables and has none is there with its raw table.

    :raises PipelineError: if the lake cannot be listed, or has no table of an archive; `BrokerUnreachable`, too.
    """
    files = _Files(config.lake)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda topic: _logs(files, topic), config.topics or files.topics())
        logs = {log.status.topic: logs for logs in found for log in logs}
    for topic in config.topics:
        if topic not in logs:
            raise PipelineError(f"topic {topic}: it has no tables in {config.lake}")
    settings = {f"kafka.{name}": value for name, value in config.client.items()}
    with Broker(client_settings({**settings, "kafka.bootstrap.servers": config.bootstrap_servers})) as broker:
        if not config.topics:
            logs |= {topic: [_Log(status=TableStatus(topic=topic, table="raw"))] for topic in _asking(broker, logs)}
        if not logs:
            raise PipelineError(f"lake {config.lake}: no topic has a table in it, or asks for one")
        known = _Topics(broker, logs)
    return [known.compared(log) for _, those in sorted(logs.items()) for log in those]


def _asking(broker: Broker, known: Collection[str]) -> Iterator[str]:
    """The topics that ask for tables, but for known ones."""
    names = [name for name in broker.topic_names() if name not in known]
    for at in range(0, len(names), _ASKED):
        settings = broker.topics_settings(names[at : at + _ASKED])
        yield from (name for name, those in settings.items() if those.get(LAKE_TABLES))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """What a table's log says of it; nothing is found if it cannot be read, or there is no table yet."""

    status: TableStatus
    found: Found | None = None


class _Topics:
    """The log ends of topics, without open transactions, and the topics' ids."""

    def __init__(self, broker: Broker, names: Iterable[str]) -> None:
        self._ends = broker.log_ends(sorted(names), committed_only=True)
        self._ids = broker.topics(name for name, ends in self._ends.items() if not isinstance(ends, PipelineError))

    def compared(self, log: _Log) -> TableStatus:
        """A table's status with its lag."""
        status, ends = log.status, self._ends[log.status.topic]
        if status.error is not None or isinstance(ends, UnknownTopic):
            # The topic of an old table may be gone.
            return status
        if isinstance(ends, PipelineError):
            return replace(status, error=ends)
        if log.found is not None and log.found.proven.topic_id != self._ids[status.topic].id:
            return replace(status, error=other_topic(status.topic))
        if status.table == "dead_letters":
            return status
        return replace(status, behind=sum(max(0, end - status.ends.get(number, 0)) for number, end in ends.items()))


def _logs(files: _Files, topic: str) -> list[_Log]:
    return [log for name in TABLES if (log := _log(files, topic, name)) is not None]


def _log(files: _Files, topic: str, name: str) -> _Log | None:
    """A table by its log; None if there is no table of an archive."""
    status, log = TableStatus(topic=topic, table=name), f"{topic}/{name}/_delta_log"
    read = cache(lambda version, kind: files.text(f"{log}/{version:020d}.{kind}"))
    path = Lake(files.lake).table(topic, name)
    try:
        version = files.newest_commit(log)
        if version is None:
            return None
        snapshot, size_bytes, count = _snapshot(read, version)
        status = replace(status, bytes=size_bytes, files=count)
        found = find(snapshot, lambda version: read(version, "json"), path, lambda: path)
    except PipelineError as error:
        return _Log(status=replace(status, error=error))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _Log(status=replace(status, error=PipelineError(f"{path}: its Delta log cannot be read")))
    if found is None:
        return None
    age_s = max(0.0, time.time() - found.committed_ms / 1000) if found.committed_ms else None
    return _Log(status=replace(status, ends=dict(found.proven.offsets), age_s=age_s), found=found)


def _snapshot(read: Callable[[int, str], str | None], version: int) -> tuple[Snapshot, int | None, int | None]:
    """The snapshot of a version, with the bytes and the number of its files."""
    actions: list[dict[str, Any]] = []
    sizes: list[tuple[int | None, int | None]] = []
    for at in range(version, version - _MOST_COMMITS, -1):
        if at < 0:
            break
        if (text := read(at, "crc")) is not None:
            checksum = json.loads(text)
            actions += [{"txn": each} for each in checksum.get("setTransactions") or ()]
            actions.append({"metaData": checksum["metadata"]})
            sizes.append((checksum["tableSizeBytes"], checksum["numFiles"]))
            break
        if (text := read(at, "json")) is None:
            sizes.append((None, None))
            break
        # RESTORE leaves no checksum file.
        actions += [json.loads(line) for line in text.splitlines()]
    else:
        sizes.append((None, None))
    transactions: dict[str, int] = {}
    kept: list[str | None] = []
    for action in actions:
        match action:
            case {"txn": {"appId": application, "version": number}}:
                transactions.setdefault(application, number)
            case {"metaData": {"configuration": properties}}:
                kept.append(properties.get(PROPERTY))
            case {"add": {"size": size}}:
                sizes.append((size, 1))
            case {"remove": removed}:
                sizes.append((-removed["size"] if "size" in removed else None, -1))
    snapshot = Snapshot(version=version, kept=kept[0] if kept else None, transactions=transactions)
    return snapshot, total(size for size, _ in sizes), total(files for _, files in sizes)


class _Files:
    """The lake's files.

    :raises PipelineError: from every method.
    """

    def __init__(self, lake: str) -> None:
        self.lake = lake.rstrip("/")
        directory = lake.removeprefix("file:")
        if "://" not in directory and not Path(directory).is_dir():
            raise PipelineError(f"lake {lake}: there is no such directory")
        with self._readable(""):
            self._store = open_store(lake, retries=3) if "://" in directory else LocalStore(Path(directory))

    def topics(self) -> list[str]:
        """The directories in the lake, sorted."""
        with self._readable(""):
            return sorted(map(str, obstore.list_with_delimiter(self._store)["common_prefixes"]))

    def text(self, path: str) -> str | None:
        """A file's text; None if there is no such file."""
        with self._readable(path):
            try:
                return bytes(obstore.get(self._store, path).bytes()).decode()
            except FileNotFoundError:
                return None

    def newest_commit(self, log: str) -> int | None:
        """The number of a log's newest commit; None if there is none."""
        checkpoint = self.text(f"{log}/_last_checkpoint")
        begin = 0 if checkpoint is None else json.loads(checkpoint)["version"]
        with self._readable(log):
            listed = obstore.list(self._store, log, offset=f"{log}/{begin:020d}", chunk_size=_LISTED)
            paths = [one["path"].removeprefix(f"{log}/") for some in listed for one in some]
        commits = (path.removesuffix(".json") for path in paths if path.endswith(".json"))
        return max((int(name) for name in commits if name.isdigit()), default=None)

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError, KorvetError) as error:
            where = f"{self.lake}/{path}" if path else f"lake {self.lake}"
            raise PipelineError(f"{where}: it cannot be read: {in_one_line(error)}") from None
