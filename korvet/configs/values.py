"""The typed values of a front-end's broker configs: what its config file sets, else the default of the table."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.configs.listeners import broker_config
from korvet.configs.types import Value, parse, problem
from korvet.errors import ConfigError


class BrokerValues:
    """Values by the configs' names. ``texts`` are those that are set, as in a config file.

    Each method raises KeyError if korvet knows no broker config of the name, and ConfigError with Kafka's sentence if
    the text cannot be its value. A config without a value or a default is an empty text or list.
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
