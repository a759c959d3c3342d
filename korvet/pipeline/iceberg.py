"""Iceberg tables over the Parquet files of a lake's Delta tables, for readers that do not know Delta.

Such a table is metadata only. One commit of its catalog gives it exactly the files of the Delta table's newest
version. So an interrupted step may be repeated, and a repeated one finds nothing to do. Iceberg's name mapping finds
columns by their names in Delta's files. Delta maps the columns of typed tables (``delta.columnMapping.mode``): their
files have other names, and ids, which Iceberg prefers. So such an Iceberg table has Delta's ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake import Lake, files
from korvet.pipeline.lake.proofs import delta_snapshot

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField

_KEPT_FOR: Final = timedelta(days=7)
"""Maintenance may delete files of former versions after that time."""
_PROPERTIES: Final = {
    # A commit that another one overtook fails. Tried again, it would add the other's files a second time.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_METRICS_OF: Final = "write.metadata.metrics.column."
_VERSION: Final = "korvet.delta.version"
_NAME_MAPPING: Final = "schema.name-mapping.default"
_NAME_IN_FILES: Final = "delta.columnMapping.physicalName"
_ID_IN_FILES: Final = "delta.columnMapping.id"
_LAST_ADDED: Final = -1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergConfig:
    """A lake, and the catalog that gets its tables.

    :param catalog: the URI of a REST catalog (http, https) or of a database (sqlite, postgresql), or a catalog's name
        in pyiceberg's own configuration.
    :param catalog_name: a database holds catalogs by their names, and readers find only what has the name they give.
    :param topics: only these topics; none: all topics.
    """

    lake: str
    catalog: str
    topics: tuple[str, ...] = ()
    catalog_name: str = "korvet"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePublished:
    """A table's name in the catalog, the version of its Delta table, and the numbers of files that changed."""

    name: str
    delta_version: int
    files_added: int
    files_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergResult:
    """The tables, and the errors of failed ones, by the paths of the Delta tables."""

    tables: Mapping[str, TablePublished] = field(default_factory=dict)
    failed: Mapping[str, PipelineError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    """A version of a Delta table: its URI, its columns, what Delta notes of each, and the URIs of its files."""

    uri: str
    version: int
    columns: pa.Schema
    notes: Mapping[str, Any]
    files: frozenset[str]

    @property
    def has_ids(self) -> bool:
        """True if its files have the ids of columns."""
        return any(_ID_IN_FILES in note["metadata"] for note in self.notes["fields"])


def publish(spark: SparkSession, config: IcebergConfig) -> IcebergResult:
    """Give a catalog the raw tables, typed tables and dead letters of a lake, as they are now.

    A table that fails does not end the others.

    :raises PipelineError: if there is no such catalog, if the lake has no such tables, or if packages are missing.
    """
    catalog, lake = _catalog(config.catalog, config.catalog_name), Lake(config.lake)
    done, failed = {}, {}
    for topic in config.topics or files.directories(spark, config.lake):
        for name, path in (
            ("raw", lake.raw(topic)), ("typed", lake.typed(topic)), ("dead_letters", lake.dead_letters(topic)),
        ):  # fmt: skip
            try:
                delta = _delta(spark, path)
                if delta is not None:
                    done[path] = _explained(path, partial(_follow, catalog, (topic, name), delta))
            except PipelineError as error:
                failed[path] = error
    if not done and not failed:
        raise PipelineError(f"{config.lake}: there are no tables of an archive; archive a topic, or name another lake")
    return IcebergResult(tables=done, failed=failed)


def _catalog(named: str, name_in_database: str) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise PipelineError("Iceberg: packages are missing; install korvet[iceberg]") from None
    if "://" in named:
        return _explained("the Iceberg catalog", partial(load_catalog, name_in_database, uri=named))
    return _explained(f"the Iceberg catalog {named}", partial(load_catalog, named))


def _delta(spark: SparkSession, path: str) -> _Delta | None:
    """The newest version of a table; None if there is none.

    :raises PipelineError: also if some of its rows are deleted within files.
    """
    try:
        found = delta_snapshot(spark, path)
        if found is None:
            return None
        version = int(found.version())
        columns = spark.read.format("delta").option("versionAsOf", version).load(path).schema
        notes = json.loads(found.metadata().schema().json())
        added = DataFrame(found.allFiles().toDF(), spark).select("path", "deletionVector").collect()
    except SPARK_ERRORS as error:
        raise PipelineError(f"{path}: it cannot be read: {failure(error)}") from None
    if any(row["deletionVector"] is not None for row in added):
        raise PipelineError(
            f"{path}: files have deleted rows (deletion vectors), which its Iceberg table would show; "
            f"run REORG TABLE delta.`{path}` APPLY (PURGE) before"
        )
    root = files.uri(spark, path)
    if not {"#", "?"}.isdisjoint(root):
        raise PipelineError(f"{path}: Iceberg's clients cannot open files whose path has # or ?; move the lake")
    paths = [unquote(row["path"]) for row in added]
    return _Delta(
        uri=root,
        version=version,
        columns=to_arrow_schema(columns, timezone="UTC"),
        notes=notes,
        files=frozenset(each if "://" in each else f"{root}/{each}" for each in paths),
    )


def _follow(catalog: Catalog, name: tuple[str, str], delta: _Delta) -> TablePublished:
    """Give a table the columns of the Delta table, and its files in one commit."""
    if type(catalog).__name__ == "SqlCatalog" and "" in name[0].split("."):
        raise PipelineError(
            f"a database that has the namespace {name[0]!r} lists none any more, since nothing is between its dots; "
            "use a REST catalog"
        )
    # A text would become a level for each dot in the topic's name.
    catalog.create_namespace_if_not_exists(name[:1])
    table = _table(catalog, name, delta)
    has = {task.file.file_path: task.file for task in table.scan().plan_files()}
    added, removed = sorted(delta.files - has.keys()), sorted(has.keys() - delta.files)
    properties = {_VERSION: str(delta.version)}
    if added or removed:
        with table.transaction() as step:
            if removed:
                with step.update_snapshot(snapshot_properties=properties).overwrite() as cut:
                    for path in removed:
                        cut.delete_data_file(has[path])
            if added:
                _add(step, table, delta, added, properties)
        # Snapshots without files would be of no use.
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - _KEPT_FOR).commit()
    return TablePublished(
        name=".".join(name), delta_version=delta.version, files_added=len(added), files_removed=len(removed)
    )


def _table(catalog: Catalog, name: tuple[str, str], delta: _Delta) -> Table:
    """The table with these columns. It is recreated if Iceberg cannot change a column to its new type."""
    from pyiceberg.exceptions import NoSuchTableError, ServerError, ValidationError

    # It is beside the Delta table: VACUUM deletes what Delta does not know.
    location = f"{delta.uri.rpartition('/')[0]}/iceberg/{name[1]}"
    made = partial(catalog.create_table, name, delta.columns, location=location, properties=_PROPERTIES)
    numbered = pa.schema(_numbered(delta.columns, delta.notes["fields"])) if delta.has_ids else None
    try:
        # Not create_table_if_not_exists: for a database it writes metadata that nobody deletes, each time.
        table = catalog.load_table(name)
    except (NoSuchTableError, FileNotFoundError, ServerError) as error:
        if isinstance(error, ServerError) and "NotFoundException" not in str(error):
            raise
        # The catalog may have a table whose metadata somebody removed, together with the topic's directory.
        with suppress(NoSuchTableError):
            catalog.drop_table(name)
        table = made()
    if not _PROPERTIES.items() <= table.properties.items():
        with table.transaction() as step:
            step.set_properties(_PROPERTIES)
    if numbered is not None:
        return _with_ids(catalog, name, table, numbered)
    try:
        with table.update_schema() as update:
            update.union_by_name(delta.columns)
    except ValidationError:
        catalog.drop_table(name)
        table = made()
    return table


def _with_ids(catalog: Catalog, name: tuple[str, str], table: Table, columns: pa.Schema) -> Table:
    """The table with the columns and ids of a Delta table that has ids. A column that was retyped has another id."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.update import AddSchemaUpdate, AssertCurrentSchemaId, SetCurrentSchemaUpdate

    fields, now = pyarrow_to_schema(columns).fields, table.schema().schema_id
    if fields == table.schema().fields:
        return table
    # A catalog refuses to add a schema that it has.
    number = next((number for number, each in table.schemas().items() if each.fields == fields), None)
    added = () if number is not None else (
        AddSchemaUpdate(schema=IcebergSchema(*fields, schema_id=max(table.schemas()) + 1)),
    )  # fmt: skip
    chosen = SetCurrentSchemaUpdate.model_validate({"schema-id": _LAST_ADDED if number is None else number})
    unchanged = AssertCurrentSchemaId.model_validate({"current-schema-id": now})
    catalog.commit_table(table, (unchanged,), (*added, chosen))
    return catalog.load_table(name)


def _numbered(columns: Iterable[pa.Field], notes: Iterable[Mapping[str, Any]]) -> Iterator[pa.Field]:
    """Columns with the ids that they have in files.

    :raises PipelineError: arrays and maps have none for what they hold.
    """
    noted = {note["name"]: note for note in notes}
    for column in columns:
        note, kind = noted[column.name], column.type
        if pa.types.is_struct(kind):
            kind = pa.struct(list(_numbered(kind, note["type"]["fields"])))
        elif pa.types.is_nested(kind):
            raise PipelineError(f"column {column.name} holds several values, for which Delta's files have no ids")
        yield pa.field(column.name, kind, metadata={"PARQUET:field_id": str(note["metadata"][_ID_IN_FILES])})


def _add(step: Transaction, table: Table, delta: _Delta, paths: Iterable[str], properties: dict[str, str]) -> None:
    """Add files in one snapshot. The client's own ``add_files`` looks for the table's column names in the files.

    :raises PipelineError: if a file holds a column that Delta has dropped.
    """
    schema = _schema_of_files(table.schema(), delta)
    metadata = step.table_metadata.model_copy(update={"schemas": [schema]})
    step.set_properties({_NAME_MAPPING: schema.name_mapping.model_dump_json()})
    with ThreadPoolExecutor() as pool, step.update_snapshot(snapshot_properties=properties).merge_append() as append:
        try:
            for file in pool.map(partial(_data_file, table.io, metadata), paths):
                append.append_data_file(file)
        except KeyError as error:
            # The client looks the ids of columns up by their names in files.
            if not delta.has_ids or not isinstance(error.args[0], str):
                raise
            raise PipelineError(
                f"its files hold a column ({error.args[0]}) that was dropped before these files were published; "
                f"run REORG TABLE delta.`{delta.uri}` APPLY (PURGE) before"
            ) from error


def _data_file(io: FileIO, metadata: TableMetadata, path: str) -> DataFile:
    """A file's entry for Iceberg, without bounds of times that Python cannot hold (outside the years 1 to 9999)."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.types import DateType, TimestampType, TimestamptzType

    try:
        return parquet_file_to_data_file(io, metadata, path)
    except OverflowError:
        times = (DateType, TimestampType, TimestamptzType)
        names = [each.name for each in metadata.schema().fields if isinstance(each.field_type, times)]
        unbounded = {**metadata.properties, **{f"{_METRICS_OF}{name}": "counts" for name in names}}
        return parquet_file_to_data_file(io, metadata.model_copy(update={"properties": unbounded}), path)


def _schema_of_files(schema: Schema, delta: _Delta) -> Schema:
    """The table's schema, with the names that its columns have in files."""
    from pyiceberg.schema import Schema as IcebergSchema

    return IcebergSchema(*_fields_of_files(schema.fields, delta.notes["fields"]), schema_id=schema.schema_id)


def _fields_of_files(fields: Iterable[NestedField], notes: Iterable[Mapping[str, Any]]) -> Iterator[NestedField]:
    noted = {note["name"]: note for note in notes}
    for each in fields:
        note = noted.get(each.name)
        # Delta may have dropped a column that the Iceberg table keeps.
        yield (
            each
            if note is None
            else each.model_copy(
                update={
                    "name": note["metadata"].get(_NAME_IN_FILES, each.name),
                    "field_type": _type_of_files(each.field_type, note["type"]),
                }
            )
        )


def _type_of_files(kind: IcebergType, note: Any) -> IcebergType:
    from pyiceberg.types import StructType

    if isinstance(kind, StructType):
        return StructType(*_fields_of_files(kind.fields, note["fields"]))
    return kind


def _explained(what: str, call: Callable[[], T]) -> T:
    """Call Iceberg's client, which lets errors of its libraries for HTTP, files and databases through."""
    try:
        return call()
    except PipelineError as error:
        raise PipelineError(f"{what}: {error}") from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PipelineError(f"{what}: Iceberg's client failed: {reason}") from error
