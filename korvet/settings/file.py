"""Reads a config file and says in one line what is wrong with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.listeners import LISTENER_CONFIGS, broker_config, listener_config
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import group_limits_problem, normal, problem
from korvet.errors import ConfigError
from korvet.settings.pipeline import PATHS, SETTINGS_TABLES
from korvet.settings.schema import FILES, LISTENER_NAMES, config_schema

_WORDS = {"integer": "a whole number", "boolean": "true or false", "string": "a text", "number": "a number"}
_WORDS |= {"object": "a table"}
_MOST_SHOWN = 40
_OTHER_UNIT = re.compile(r"\.(hours|minutes)$")
_KAFKAS_LISTENER = {"host-name", "port", "advertised-host", "advertised-host-name", "advertised-port"}
_LISTENERS = (
    "'listen' is the address to which clients connect, and 'advertised' the address that they get. The only "
    "listener has them in [serve]; several have them each in a table [[listener]]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a config file says.

    ``serve`` and each of ``listeners`` are by the names of flags, ``broker`` is by Kafka's, its values as text.
    ``pipeline`` is by the names of flags, too, and has a table for each verb, ``spark`` and ``kafka`` among it.
    """

    serve: Mapping[str, Any] = field(default_factory=dict)
    listeners: Sequence[Mapping[str, Any]] = ()
    broker: Mapping[str, str] = field(default_factory=dict)
    pipeline: Mapping[str, Any] = field(default_factory=dict)


def read_config(path: Path) -> ConfigFile:
    """Read and check a config file. Relative paths in it are taken from the file's own directory.

    :raises ConfigError: with file, table and key, what is wrong there, what is allowed and the nearest name. Where more
        is wrong, it says how to see all of it.
    """
    content = load_config(path)
    wrong = problems(content)
    if wrong:
        more = f" (and {len(wrong) - 1} more: korvet config check {path})" if len(wrong) > 1 else ""
        raise ConfigError(f"{path}: {wrong[0]}{more}")
    return as_config(content, path)


def load_config(path: Path) -> Mapping[str, Any]:
    """What a config file says, with Kafka's dotted names as they are.

    :raises ConfigError: when it cannot be read or is not TOML.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if isinstance(content.get("broker"), dict):
        content["broker"] = dict(_dotted(content["broker"]))
    if isinstance(content.get("pipeline"), dict):
        content["pipeline"] = _undotted_tables(content["pipeline"])
    return content


def problems(content: Mapping[str, Any]) -> list[str]:
    """A sentence for everything that is wrong in what `load_config` read, in the order of the tables."""
    errors = sorted(Draft202012Validator(config_schema()).iter_errors(content), key=lambda error: list(error.path))
    found = [sentence for error in errors for sentence in _sentences(error)]
    refused = {error.path[1] for error in errors if len(error.path) > 1 and error.path[0] == "broker"}
    broker = content.get("broker", {})
    if isinstance(broker, dict):
        found += _broker_problems({name: _text(value) for name, value in broker.items() if name not in refused})
    serve, listeners = content.get("serve"), content.get("listener")
    if isinstance(serve, dict) and isinstance(listeners, list) and listeners:
        found += [
            f"serve.{name}: give it in each [[listener]] table of the file instead"
            for name in LISTENER_NAMES
            if name in serve
        ]
    return found


def _broker_problems(values: Mapping[str, str]) -> list[str]:
    """What is wrong with each of the broker's settings, else with all of them together."""
    found = {name: (config, values[name]) for name in values if (config := broker_config(name)) is not None}
    known = {name: value for name, (config, value) in found.items() if not config.is_fixed}
    wrong = [f"broker.{name}: {why}" for name in known if (why := problem(*found[name]))]
    if not wrong:
        why = group_limits_problem(lambda name: known.get(name) or BROKER_CONFIGS[name].default or "")
        wrong = [f"broker.{why}"] if why else []
    return wrong


def as_config(content: Mapping[str, Any], path: Path) -> ConfigFile:
    """What was read from ``path``, when nothing is wrong with it."""
    serve = _with_files(content.get("serve", {}), path.parent)
    for name in ("data-dir", "tier-cache"):
        if name in serve:
            serve[name] = str(path.parent / Path(serve[name]).expanduser())
    if "tier" in serve and "://" not in serve["tier"]:
        serve["tier"] = str(path.parent / Path(serve["tier"]).expanduser())
    return ConfigFile(
        serve=serve,
        listeners=tuple(_with_files(table, path.parent) for table in content.get("listener", ())),
        broker={name: _normal(name, value) for name, value in content.get("broker", {}).items()},
        pipeline=_resolved(content.get("pipeline", {}), path.parent),
    )


def _with_files(table: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Settings with the paths of their files made absolute."""
    files = {name: _absolute(value, directory) for name, value in table.items() if name in FILES}
    return {**table, **files}


def _undotted_tables(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: dict(_dotted(value)) if name in SETTINGS_TABLES and isinstance(value, dict) else value
        for name, value in pipeline.items()
    }


def _resolved(pipeline: Mapping[str, Any], directory: Path, table: str = "") -> dict[str, Any]:
    """The pipeline's settings as they are used: settings of others as text, relative paths made absolute."""
    resolved: dict[str, Any] = {}
    for name, value in pipeline.items():
        if name in SETTINGS_TABLES:
            resolved[name] = {key: _text(setting) for key, setting in value.items()}
        elif name == "schemas":
            resolved[name] = {topic: _absolute(file, directory) for topic, file in value.items()}
        elif isinstance(value, dict):
            resolved[name] = _resolved(value, directory, f"{name}.")
        else:
            resolved[name] = _absolute(value, directory) if f"{table}{name}" in PATHS else value
    return resolved


def _absolute(location: str, directory: Path) -> str:
    return location if "://" in location else str((directory / Path(location).expanduser()).absolute())


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Kafka's names have dots, which TOML reads as tables unless they are quoted: both are the same here."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _text(value: Any) -> str:
    """A setting as text. As in Kafka, spaces around it do not count, so one of blanks is none."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _normal(name: str, value: Any) -> str:
    """A broker setting in Kafka's normal form, as all that read it expect it."""
    config = broker_config(name)
    return _text(value) if config is None else normal(config.kind, _text(value))


def _sentences(error: ValidationError) -> list[str]:
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        allowed = schema["properties"]
        unknown = [name for name in sorted(instance) if name not in allowed and listener_config(name) is None]
        return [_unknown_name(_setting(error.path), name, allowed) for name in unknown]
    return [_sentence(error)]


def _sentence(error: ValidationError) -> str:
    setting = _setting(error.path)
    schema: Any = error.schema
    instance: Any = error.instance
    match error.validator:
        case "enum":
            return f"{setting}: {instance!r} is not allowed{_nearest(str(instance), schema['enum'])}"
        case "required":
            missing = next(name for name in schema["required"] if name not in instance)
            return f"{setting}: {missing!r} is missing"
        case "type":
            # A text of some form is described by that: with 10 instead of "10s", nobody thinks of a text.
            word = None if "pattern" in schema else _WORDS.get(str(schema["type"]))
            return f"{setting}: {instance!r} is not allowed; want {word or schema['description']}"
        case "minimum" | "maximum":
            return f"{setting}: {instance} is not allowed; want {schema['minimum']} to {schema['maximum']}"
    return f"{setting}: {instance!r} is not allowed; want {schema['description']}"


def _setting(path: Iterable[str | int]) -> str:
    """``serve.workers``, or ``listener #2.listen`` in the second of several tables."""
    return "".join(f" #{part + 1}" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _unknown_name(table: str, name: str, allowed: Mapping[str, Any]) -> str:
    config = BROKER_CONFIGS.get(name)
    in_ms = _OTHER_UNIT.sub(".ms", name)
    if table == "broker" and in_ms != name and in_ms in allowed:
        return f"broker.{name}: cannot be set; set {in_ms!r}, in milliseconds"
    if table == "broker" and config is not None:
        return f"broker.{name}: cannot be set; it is always {config.default}"
    if table == "broker" and name in TOPIC_CONFIGS:
        return f"broker.{name}: a setting of topics{_for_all_topics(TOPIC_CONFIGS[name].synonym)}"
    what = f"setting {name!r} in [{table}]" if table else f"table [{name}]"
    if table == "broker" and name.startswith("listener.name."):
        return f"there is no {what}; a listener has listener.name.NAME. before {' and '.join(LISTENER_CONFIGS)}"
    if table in ("", "serve", "broker") and _is_like_a_listener(name):
        return f"there is no {what}; {_LISTENERS}"
    return f"there is no {what}{_nearest(name, allowed)}"


def _is_like_a_listener(name: str) -> bool:
    """True if it is what Kafka calls a listener's settings, or nearly what they are called here."""
    plain = name.lower().replace("_", "-").replace(".", "-")
    return "listener" in plain or plain in _KAFKAS_LISTENER or bool(get_close_matches(plain, ("listener",), 1, 0.75))


def _for_all_topics(name: str | None) -> str:
    return f"; for all of them it is {name!r}" if name in BROKER_CONFIGS else ", which has none for all of them"


def _nearest(wrong: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    near = get_close_matches(wrong, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if len(names) > _MOST_SHOWN:
        return hint or "; see: korvet config list"
    return f"{hint or ';'} allowed: {', '.join(names)}"
