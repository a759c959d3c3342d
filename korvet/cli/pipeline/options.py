"""Flags that the pipeline's commands share, and how a config file's ``[pipeline]`` stands in for them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Final, cast

import click

from korvet.cli.options import Function, bootstrap_server

_FILE: Final = "korvet.pipeline"
"""Where a context keeps the file's ``[pipeline]``."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every verb is told.

    ``spark`` are Spark's settings, ``client`` a Kafka client's by its Java names.
    """

    bootstrap_server: str
    spark: Mapping[str, str]
    client: Mapping[str, str]
    master: str | None
    log_format: str
    debug: bool


class Duration(click.ParamType[float]):
    """A time span with its unit, as ``10s``; hands over seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no duration; want a number with ms, s, m, h or d, for example 10s", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


class Time(click.ParamType[datetime]):
    """A time as ISO 8601 has it (without a zone: UTC), or a duration before now; hands over a time in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        ago = _DURATION.fullmatch(value)
        try:
            if ago is not None:
                return datetime.now(UTC) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
            time = datetime.fromisoformat(value)
            return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time; want one such as 2026-01-31T12:00:00+01:00, or 24h for so long ago", param
            )


def read_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Have ``[pipeline]`` and the verb's own table in it be the flags' defaults."""
    if path is None:
        return
    from korvet.settings.file import read_config

    pipeline = dict(read_config(path).pipeline)
    verb = pipeline.get(context.command.name or "", {})
    told = {name: value for name, value in pipeline.items() if not isinstance(value, dict)} | dict(verb)
    context.default_map = {name.replace("-", "_"): value for name, value in told.items() if not isinstance(value, dict)}
    tables = {**pipeline, **verb}
    context.meta[_FILE] = {name: value for name, value in tables.items() if isinstance(value, dict)}


def pairs(*flags: str, table: str, form: str, help_text: str) -> Callable[[Function], Function]:
    """A repeatable flag that takes NAME=VALUE pairs over the file's table of that name; hands over a dict."""

    def parse(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        settings = dict(context.meta.get(_FILE, {}).get(table, {}))
        for pair in given:
            name, separator, value = pair.partition("=")
            if not separator or not name:
                raise click.BadParameter(f"{pair!r} is not of the form {form}")
            settings[name.strip()] = value.strip()
        return settings

    return click.option(*flags, table, multiple=True, metavar=form, callback=parse, help=help_text)


def lake(function: Function) -> Function:
    """``--lake``: where the tables are."""
    return click.option("--lake", required=True, metavar="DIR|URL", help="Where the Delta tables are.")(function)


def common(function: Function) -> Function:
    """The flags of all verbs; hands over ``common``."""

    @bootstrap_server
    @pairs(
        "-X",
        table="kafka",
        form="NAME=VALUE",
        help_text="A Kafka client's setting by its Java name, e.g. security.protocol=SSL. May be given again.",
    )
    @pairs(
        "--conf",
        table="spark",
        form="NAME=VALUE",
        help_text="A setting of Spark, e.g. spark.driver.memory=4g. May be given again.",
    )
    @click.option("--master", metavar="URL", help="A Spark master.  [default: this machine, or spark-submit's]")
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
        help="What stderr gets: progress for people, or a JSON object a line.  [default: text on a terminal]",
    )
    @click.option("--debug", is_flag=True, help="Show Spark's log, and errors with all their stacks.")
    @wraps(function)
    def with_common(
        *args: Any,
        bootstrap_server: str,
        kafka: dict[str, str],
        spark: dict[str, str],
        master: str | None,
        log_format: str | None,
        debug: bool,
        **others: Any,
    ) -> Any:
        told = Common(
            bootstrap_server=bootstrap_server,
            spark=spark,
            client=kafka,
            master=master,
            log_format=log_format or ("text" if sys.stderr.isatty() else "json"),
            debug=debug,
        )
        return function(*args, common=told, **others)

    return cast("Function", with_common)
