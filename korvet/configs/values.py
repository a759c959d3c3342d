"""The typed values of a front-end's broker configs: from its config file, else the table's defaults."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.configs.listeners import broker_config
from korvet.configs.types import Value, parse, problem
from korvet.errors import ConfigError


class BrokerValues:
    """Values by config name. ``texts`` are the config file's.

    Each method raises KeyError for an unknown broker config, and ConfigError with Kafka's sentence for an invalid
    text. A config without a value or a default is an empty text or list.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def _value(self, name: str) -> Value | None:
        config = broker_config(name)
        if config is None:
            raise KeyError(name)
        text = self._texts.get(name, config.default)
        if text is None:
            return None
        if (why := problem(config, text)) is not None:
            raise ConfigError(why)
        return parse(config.kind, text)

    def integer(self, name: str) -> int:
        value = self._value(name)
        assert isinstance(value, int)
        return value

    def boolean(self, name: str) -> bool:
        return self._value(name) is True

    def text(self, name: str) -> str:
        value = self._value(name)
        assert value is None or isinstance(value, str)
        return value or ""

    def words(self, name: str) -> tuple[str, ...]:
        """The elements of a list."""
        value = self._value(name)
        assert value is None or isinstance(value, tuple)
        return value or ()
