"""Flags that the pipeline's commands share, and their defaults from a config file's ``[pipeline]``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, cast

import click

from korvet.cli.ground.cluster import Cluster
from korvet.cli.ground.options import Function, cluster_options, named_values
from korvet.cli.serve import parse_address

_FILE: Final = "korvet.pipeline"
"""The name under which a context keeps the file's ``[pipeline]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The flags of every verb.

    ``spark`` has Spark's settings, ``client`` a Kafka client's settings by their Java names: -X and the config file
    override --command-config.
    """

    bootstrap_server: str
    client: Mapping[str, str] = field(repr=False)
    log_format: str
    debug: bool
    spark: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None


def read_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make ``[pipeline]`` and the verb's own table in it the flags' defaults."""
    if path is None:
        return
    from korvet.settings.file import read_config

    pipeline = dict(read_config(path).pipeline)
    verb = pipeline.get(context.command.name or "", {})
    found = {name: value for name, value in pipeline.items() if not isinstance(value, dict)} | dict(verb)
    context.default_map = {
        name.replace("-", "_"): value for name, value in found.items() if not isinstance(value, dict)
    }
    tables = {**pipeline, **verb}
    context.meta[_FILE] = {name: value for name, value in tables.items() if isinstance(value, dict)}


def pairs(*flags: str, table: str, form: str, help_text: str) -> Callable[[Function], Function]:
    """A repeatable flag that takes NAME=VALUE pairs over the file's table of that name; hands over a dict."""

    def parse(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        return {**context.meta.get(_FILE, {}).get(table, {}), **named_values(given, form)}

    return click.option(*flags, table, multiple=True, metavar=form, callback=parse, help=help_text)


def lake(function: Function) -> Function:
    """The flag ``--lake``: the directory of the tables."""
    return click.option("--lake", required=True, metavar="DIR|URL", help="The directory of the Delta tables.")(function)


def schema_registry(function: Function) -> Function:
    """The flag ``--schema-registry``: the Avro schemas of topics without a JSON Schema."""
    return click.option(
        "--schema-registry",
        metavar="URL",
        help="The schema registry of Avro values in Confluent's frame, for topics without a JSON Schema.",
    )(function)


def metrics_port(function: Function) -> Function:
    """The flag ``--metrics``; hands over host and port, or None."""

    def parse(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, int] | None:
        return None if text is None else parse_address(text, "--metrics")

    return click.option(
        "--metrics",
        metavar="HOST:PORT",
        callback=parse,
        help="The HTTP port for figures in Prometheus's format.  [default: none]",
    )(function)


def common(function: Function) -> Function:
    """The flags of all verbs; hands over ``common``."""

    @without_spark
    @pairs(
        "--conf",
        table="spark",
        form="NAME=VALUE",
        help_text="A setting of Spark, e.g. spark.driver.memory=4g. May be given again.",
    )
    @click.option("--master", metavar="URL", help="A Spark master.  [default: this machine, or spark-submit's]")
    @wraps(function)
    def with_spark(*args: Any, common: Common, spark: dict[str, str], master: str | None, **others: Any) -> Any:
        return function(*args, common=replace(common, spark=spark, master=master), **others)

    return cast("Function", with_spark)


def without_spark(function: Function) -> Function:
    """The flags of verbs that start no Spark; hands over ``common``."""

    @cluster_options
    @pairs(
        "-X",
        table="kafka",
        form="NAME=VALUE",
        help_text="A Kafka client's setting by its Java name, e.g. security.protocol=SSL. May be given again.",
    )
    @click.option(
        "--config",
        is_eager=True,
        expose_value=False,
        callback=read_file,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A TOML config file; its [pipeline] tables stand in for flags that are not given.",
    )
    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        help="The form of stderr: progress for people, or a JSON object a line.  [default: text on a terminal]",
    )
    @click.option("--debug", is_flag=True, help="Show Spark's log, and errors with their stacks.")
    @wraps(function)
    def with_common(
        *args: Any,
        cluster: Cluster,
        kafka: dict[str, str],
        log_format: str | None,
        debug: bool,
        **others: Any,
    ) -> Any:
        options = Common(
            bootstrap_server=cluster.bootstrap,
            client={**cluster.settings, **kafka},
            log_format=log_format or ("text" if sys.stderr.isatty() else "json"),
            debug=debug,
        )
        return function(*args, common=options, **others)

    return cast("Function", with_common)
