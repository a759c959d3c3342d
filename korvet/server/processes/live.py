"""The settings in force. At SIGHUP the process reads them again, and applies those that can change at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from korvet.configs.values import BrokerValues
from korvet.errors import KorvetError
from korvet.quotas.rules import Windows
from korvet.server.ground.logs import configure_logging
from korvet.server.ground.settings import ServeSettings, limits_of
from korvet.server.ground.token_settings import token_settings

log = structlog.get_logger()

Read = Callable[[], ServeSettings | None]
Subscriber = Callable[[ServeSettings], Awaitable[None]]
_AT_START: Final = {
    "listeners": "listeners", "redis_url": "redis", "tenant_redis_passwords": "tenant-redis-passwords",
    "data_dir": "data-dir", "tier": "tier", "tier_cache": "tier-cache",
    "tier_cache_bytes": "tier-cache-bytes", "workers": "workers", "metrics": "metrics",
    "console": "console", "console_config": "console-config", "console_hostnames": "console-hostnames",
    "metrics_hostnames": "metrics-hostnames",
}  # fmt: skip
_AT_ONCE: Final = {"log_level": "log-level", "log_format": "log-format"}


class Live:
    """The settings of one process; ``settings`` are those in force.

    :param read: reads the settings as a start would now; None without a config file.
    """

    def __init__(self, settings: ServeSettings, read: Read | None = None) -> None:
        self.settings = settings
        self._read = read
        self._subscribers: list[Subscriber] = []

    def on_change(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with new settings."""
        self._subscribers.append(subscriber)

    async def read_again(self) -> None:
        """Read the config file again, and the files that subscribers read.

        A log line names the applied settings, and the settings that need a restart. An invalid file changes nothing.
        """
        try:
            new = None if self._read is None else self._read()
        except KorvetError as error:
            log.error("config file not taken; the settings stay as they are", reason=str(error))
            return
        if new is None:
            log.info("there is no config file to read again; the settings stay as they are")
            await self.apply(self.settings)
            return
        merged, taken, left = _merged(self.settings, new)
        await self.apply(merged)
        fields = {"taken": ", ".join(taken) or "nothing"} | ({"needs_restart": ", ".join(left)} if left else {})
        log.info("config file read again", **fields)

    async def apply(self, settings: ServeSettings) -> None:
        """Put settings in force."""
        self.settings = settings
        configure_logging(settings.log_level, settings.log_format)
        for subscriber in self._subscribers:
            await subscriber(settings)


def _merged(old: ServeSettings, new: ServeSettings) -> tuple[ServeSettings, list[str], list[str]]:
    """The merged settings, the changed ones as ``name=value``, and the names of settings that need a restart."""
    broker, taken, left = _merged_broker(old.broker, new.broker)
    for field, name in _AT_ONCE.items():
        if getattr(old, field) != getattr(new, field):
            taken.append(f"{name}={getattr(new, field)}")
    left += [name for field, name in _AT_START.items() if getattr(old, field) != getattr(new, field)]
    merged = replace(old, broker=broker, log_level=new.log_level, log_format=new.log_format)
    return merged, taken, left


def _at_start(broker: Mapping[str, str]) -> tuple[object, ...]:
    """The parts of the settings that only a start applies."""
    return limits_of(broker), Windows.of(BrokerValues(broker)), token_settings(broker)


def _merged_broker(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[dict[str, str], list[str], list[str]]:
    merged, taken, left = dict(old), [], []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        changed = {key: value for key, value in {**merged, name: new.get(name)}.items() if value is not None}
        if _at_start(changed) != _at_start(merged):
            left.append(name)
        else:
            merged = changed
            taken.append(f"{name}={new[name]}" if name in new else f"{name} by default")
    return merged, taken, left
