"""Environment variables that stand in for flags: the source of a value, and variables that mean nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

import click
from click.core import ParameterSource

PREFIX: Final = "KORVET_"
_OTHERS: Final = {"KORVET_PYTHON", "KORVET_WORKER_PATH", "KORVET_WORKER_PYTHON"}
"""Variables of scripts and of Spark's workers."""
_NOT_OURS: Final = re.compile(r"KORVET_(TEST_\w+|(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?))")
"""Variables of the tests, and variables that Kubernetes sets for services with names that begin with korvet."""


def variable_of(parameter: click.Parameter, context: click.Context) -> str | None:
    """The environment variable that a parameter's value came from, or None."""
    if parameter.name is None or context.get_parameter_source(parameter.name) is not ParameterSource.ENVIRONMENT:
        return None
    return next((name for name in _variables(parameter, context.auto_envvar_prefix) if os.environ.get(name)), None)


def unknown_variables(root: click.Command) -> list[str]:
    """A sentence for each variable that has korvet's prefix and means nothing to it."""
    known = set(_known(root, None)) | _OTHERS
    return [
        f"environment variable {name} means nothing to korvet{_nearest(name, known)}"
        for name in sorted(os.environ)
        if name.startswith(PREFIX) and name not in known and not _NOT_OURS.fullmatch(name)
    ]


def _nearest(name: str, known: set[str]) -> str:
    near = get_close_matches(name, sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _known(command: click.Command, prefix: str | None) -> Iterator[str]:
    prefix = command.context_settings.get("auto_envvar_prefix", prefix)
    for parameter in command.params:
        yield from _variables(parameter, prefix)
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _known(one, prefix)


def _variables(parameter: click.Parameter, prefix: str | None) -> list[str]:
    """The variables that click reads for a parameter."""
    if parameter.envvar:
        return [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar)
    if prefix and isinstance(parameter, click.Option) and parameter.name and parameter.name != "help":
        return [f"{prefix}_{parameter.name.upper()}"]
    return []
