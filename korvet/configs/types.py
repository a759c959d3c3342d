"""The type of a config, its values, and its message for a wrong value.

The tables are in `topics`, `brokers` and `groups`; this module checks values. Messages have Kafka's words (ConfigDef,
LogConfig, ControllerConfigurationValidator), because tools and people search for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from enum import IntEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Kind(IntEnum):
    """A config's type, numbered as in DescribeConfigs (org.apache.kafka.common.requests.DescribeConfigsResponse)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """The source of a value, numbered as in DescribeConfigs; up to DEFAULT a lower number wins."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


Value = bool | int | float | str | tuple[str, ...]
Check = Callable[[Value], str | None]
"""(parsed value) -> the problem with it, or None."""


@dataclass(frozen=True, slots=True)
class Config:
    """One config by its Kafka name.

    ``synonym`` is the broker config that applies if this one is not set. The config file, but no client, can set a
    ``read_only`` config; neither can set an ``is_fixed`` one, which states a fact about korvet. ``default`` is None if
    Kafka's is.
    """

    name: str
    kind: Kind
    default: str | None
    _: KW_ONLY
    documentation: str
    check: Check | None = None
    synonym: str | None = None
    read_only: bool = False
    is_fixed: bool = False


_RANGES = {Kind.INT: 2**31, Kind.SHORT: 2**15, Kind.LONG: 2**63}
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)")
_MOST_DIGITS = 40
_MOST_TYPED = 1000
_MOST_SHOWN = 1000
_THROTTLED = re.compile(r"\d+:\d+")


def parse(kind: Kind, text: str) -> Value:
    """Parse a config's text as Kafka does (ConfigDef.parseType), without surrounding white space.

    :raises ValueError: with the reason in Kafka's words.
    """
    is_text = kind is Kind.STRING or kind is Kind.LIST
    # Redis stores the text as typed, so white space has a bound.
    text = text.strip() if is_text or len(text) <= _MOST_TYPED else ""
    if kind in _RANGES:
        return _parse_integer(kind, text)
    if kind is Kind.DOUBLE:
        if not _DOUBLE.fullmatch(text):
            raise ValueError("Not a number of type DOUBLE")
        return float(text.rstrip("fFdD"))
    if kind is Kind.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError("Expected value to be either true or false")
        return text.lower() == "true"
    if kind is Kind.LIST:
        return split(text)
    return text


def is_integer(text: str) -> bool:
    """True if Java's Integer.parseInt would parse it, apart from its range."""
    return len(text) < _MOST_DIGITS and _INTEGER.fullmatch(text) is not None


def _parse_integer(kind: Kind, text: str) -> int:
    number = int(text) if is_integer(text) else None
    bound = _RANGES[kind]
    if number is None or not -bound <= number < bound:
        raise ValueError(f"Not a number of type {kind.name}")
    return number


def normal(kind: Kind, text: str) -> str:
    """A config's value as Kafka prints it (ConfigDef.convertToString); an invalid text unchanged."""
    try:
        value = parse(kind, text)
    except ValueError:
        return text.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _printed(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _printed(number: float) -> str:
    """A number as Java's Double.toString prints it."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *others = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(others) or 0}E{exponent + len(others)}"


def split(text: str) -> tuple[str, ...]:
    """The elements of a LIST; an empty text has none."""
    return tuple(re.split(r"\s*,\s*", text.strip())) if text.strip() else ()


def problem(config: Config, text: str) -> str | None:
    """The reason why ``text`` is no valid value of this config, as a sentence, or None."""
    try:
        value = parse(config.kind, text)
    except ValueError as error:
        return _refusal(config.name, text.strip(), str(error))
    why = config.check(value) if config.check is not None else None
    return None if why is None else _refusal(config.name, _shown(value, why), why)


def _refusal(name: str, value: str, why: str) -> str:
    shown = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…"
    return f"Invalid value {shown} for configuration {name}: {why}"


def _shown(value: Value, why: str) -> str:
    """A value as Kafka prints it in the message; for a list of allowed words, the first wrong one."""
    if isinstance(value, tuple):
        if why.startswith(_ONE_OF):
            allowed = why.removeprefix(_ONE_OF).split(", ")
            return next(element for element in value if element not in allowed)
        return f"[{', '.join(value)}]"
    return str(value)


def at_least(minimum: float) -> Check:
    """Kafka's Range.atLeast."""
    return between(minimum, None)


def between(minimum: float, maximum: float | None) -> Check:
    """Kafka's Range.between; both ends belong to it."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < minimum:
            return f"Value must be at least {minimum}"
        if maximum is not None and value > maximum:
            return f"Value must be no more than {maximum}"
        return None

    return check


_ONE_OF = "String must be one of: "


def one_of(*words: str) -> Check:
    """Kafka's ValidString.in and ValidList.in: the value, or each of its elements, is one of these words."""

    def check(value: Value) -> str | None:
        elements = value if isinstance(value, tuple) else (value,)
        return None if all(element in words for element in elements) else _ONE_OF + ", ".join(words)

    return check


def parse_per_ip_overrides(text: str) -> dict[str, int]:
    """Parse the most connections by address.

    :raises ValueError: an element is not an address with a number after its last colon.
    """
    found = {}
    for one in filter(None, map(str.strip, text.split(","))):
        address, _, most = one.rpartition(":")
        found[str(ip_address(address.strip("[]")))] = int(most)
    if any(most < 0 for most in found.values()):
        raise ValueError(text)
    return found


def is_per_ip_overrides(value: Value) -> str | None:
    """Connections by address, such as ``127.0.0.1:200,::1:300``."""
    try:
        parse_per_ip_overrides(str(value))
    except ValueError:
        return f"{value!r} is not a list of ADDRESS:CONNECTIONS, with IP addresses"
    return None


def is_principals(value: Value) -> str | None:
    """Principals as in ``User:alice;User:bob``; names may hold commas."""
    parts = [part.strip().partition(":") for part in str(value).split(";") if part.strip()]
    if all(kind and name for kind, _, name in parts):
        return None
    return f"{value!r} is not a list of TYPE:NAME with semicolons between, as in User:alice;User:bob"


def is_key_url(value: Value) -> str | None:
    """The URL of keys: ``https://HOST…`` or ``file:///PATH``."""
    url = str(value)
    try:
        parts = urlsplit(url)
        is_printable = url.isascii() and url.isprintable() and " " not in url
        is_web = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0 and parts.username is None
        is_file = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/")
    except ValueError:
        is_printable = is_web = is_file = False
    return None if is_printable and (is_web or is_file) else "want https://HOST/PATH, or file:///PATH with a whole path"


def gzip_level(value: Value) -> str | None:
    """CompressionType.GZIP's validator."""
    allowed = isinstance(value, int) and (value == -1 or 1 <= value <= 9)
    return None if allowed else "Value must be between 1 and 9 or equal to -1"


def throttled_replicas(name: str) -> Check:
    """ThrottledReplicaListValidator: `*` or pairs of partition and broker."""

    def check(value: Value) -> str | None:
        assert isinstance(value, tuple)
        if value == ("*",) or all(_THROTTLED.fullmatch(element) for element in value):
            return None
        return (
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )

    return check


def topic_problem(
    configs: Mapping[str, str | None],
    known: Mapping[str, Config],
    stored: Mapping[str, str],
    setting: Callable[[str], str] | None = None,
    *,
    has_tier: bool = False,
) -> str | None:
    """The reason why these are no valid configs of a topic, or None.

    :param configs: all of the topic's own configs after the change.
    :param known: the table of topic configs.
    :param stored: its present ones. An unchanged one is not checked: it may predate today's bounds.
    :param setting: the value of a config that the topic does not have itself; by default the default.
    :param has_tier: true if topics may have `remote.storage.enable`.
    Source: ControllerConfigurationValidator.validate, LogConfig.validate.
    """
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        return f"Null value not supported for topic configs: {','.join(nulls)}"
    for name in configs:
        if name not in known:
            return f"Unknown topic config name: {name}"
    for name, value in configs.items():
        why = None if value == stored.get(name) else problem(known[name], value or "")
        if why is not None:
            return why

    def effective(name: str) -> str:
        return configs.get(name) or (known[name].default or "" if setting is None else setting(name))

    return _conflict(configs, known) or _tier_conflict(effective, stored, has_tier=has_tier)


TIERED: Final = "remote.storage.enable"


def is_tiered(configs: Mapping[str, str]) -> bool:
    """True if a topic with these configs has `remote.storage.enable`."""
    return normal(Kind.BOOLEAN, configs.get(TIERED, "false")) == "true"


def _tier_conflict(effective: Callable[[str], str], stored: Mapping[str, str], *, has_tier: bool) -> str | None:
    """The reason why a topic cannot have its records in the tier, or cannot leave it.

    Source: LogConfig.validateTopicLogConfigValues
    """
    was_tiered = is_tiered(stored)
    if not is_tiered({TIERED: effective(TIERED)}):
        return _STAYS_TIERED if was_tiered else None
    if not has_tier and not was_tiered:
        return _NO_TIER
    if set(split(effective("cleanup.policy"))) != {"delete"}:
        return "Remote log storage only supports topics with cleanup.policy=delete"
    for unit in ("bytes", "ms"):
        name, local_name = f"retention.{unit}", f"local.retention.{unit}"
        whole, local = int(effective(name)), int(effective(local_name))
        refusal = f"Invalid value {local} for configuration {local_name}: Value must not be"
        if whole >= 0 and local == -1:
            return f"{refusal} -1 as {name} value is set as {whole}."
        if 0 <= whole < local:
            return f"{refusal} more than {name} property value: {whole}"
    if normal(Kind.BOOLEAN, effective("remote.log.copy.disable")) == "true":
        for unit in ("bytes", "ms"):
            if int(effective(f"local.retention.{unit}")) not in (-2, int(effective(f"retention.{unit}"))):
                return (
                    f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and "
                    f"`retention.{unit}` must be set to the identical value because there will be no more logs copied "
                    "to the remote storage."
                )
    return None


_NO_TIER: Final = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
)
_STAYS_TIERED: Final = (
    "Korvet does not disable remote storage of a topic. If you want to keep the remote data and turn to read only, "
    "please set `remote.storage.enable=true,remote.log.copy.disable=true`. Else delete the topic."
)


def _conflict(configs: Mapping[str, str | None], known: Mapping[str, Config]) -> str | None:
    def number(name: str) -> int:
        return int(configs.get(name) or known[name].default or "0")

    is_archived = (configs.get("korvet.retention") or "").strip() == "archived"
    if is_archived and "compact" in split(configs.get("cleanup.policy") or ""):
        return "korvet.retention=archived is unsupported for compacted topics: compaction removes unarchived records"
    least, most = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if least > most:
        return f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
    return None


def group_problem(
    configs: Mapping[str, str | None], known: Mapping[str, Config], broker: Callable[[str], str]
) -> str | None:
    """The reason why these are no valid configs of a group, or None.

    ``configs`` are all of the group's own configs after the change; ``known`` is the table of group configs;
    ``broker`` returns a broker config's value. Source: ControllerConfigurationValidator.validate, GroupConfig.validate.
    """
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        return f"Null value not supported for group configs: {','.join(nulls)}"
    for name, value in configs.items():
        if name not in known:
            return f"Unknown group config name: {name}"
        why = problem(known[name], value or "")
        if why is not None:
            return why
    values = {name: int(configs.get(name) or known[name].default or "0") for name in _BOUNDED}
    for name in _BOUNDED:
        for end, goes_too_far, words in (("min", int.__lt__, "greater"), ("max", int.__gt__, "less")):
            bound = _bound(name, end)
            if goes_too_far(values[name], int(broker(bound))):
                return f"{name} must be {words} than or equal to {bound}"
    for interval, session in _GROUP_ORDERS:
        if values[session] <= values[interval]:
            return f"{session} must be greater than {interval}"
    return None


_GROUP_ORDERS = (
    ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"),
    ("share.heartbeat.interval.ms", "share.session.timeout.ms"),
)
_BOUNDED = (
    *(name for order in _GROUP_ORDERS for name in order),
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)


def _bound(name: str, end: str) -> str:
    """The broker's config that bounds a group's config; the end is min or max."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.{end}.{rest}"


def group_limits_problem(broker: Callable[[str], str]) -> str | None:
    """The reason why the broker's configs of groups contradict each other, or None.

    ``broker`` returns a broker config's value. Source: the constructors of GroupCoordinatorConfig and ShareGroupConfig.
    """
    for short in _BOUNDED:
        name, least, most = f"group.{short}", _bound(short, "min"), _bound(short, "max")
        for one in (most, name):
            if int(broker(one)) < int(broker(least)):
                return f"{one} must be greater than or equal to {least}"
        if int(broker(name)) > int(broker(most)):
            return f"{name} must be less than or equal to {most}"
    for interval, session in _GROUP_ORDERS:
        if int(broker(f"group.{interval}")) >= int(broker(f"group.{session}")):
            return f"group.{interval} must be less than group.{session}"
    return None


def table(configs: Iterable[Config]) -> Mapping[str, Config]:
    """Configs by their names, in this order."""
    return MappingProxyType({config.name: config for config in configs})
