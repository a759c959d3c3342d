"""The broker configs that one listener may override: ``listener.name.NAME.`` before the config's name.

Source: ListenerName.configPrefix, DynamicBrokerConfig.brokerConfigSynonyms
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, NamedTuple

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.types import Config

MOST_CONNECTIONS: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"
LISTENER_CONFIGS: Final = (CREATION_RATE, MOST_CONNECTIONS)
_NAMES: Final = "|".join(map(re.escape, LISTENER_CONFIGS))
PATTERN: Final = rf"^listener\.name\.([A-Za-z0-9_.-]{{1,64}}?)\.({_NAMES})$"
_WHOLE: Final = re.compile(PATTERN)


class ListenerConfig(NamedTuple):
    """A listener's name in lower case, as Kafka writes it here, and the name of the broker config."""

    listener: str
    config: str


def listener_config(name: str) -> ListenerConfig | None:
    """The parts of a listener config's name; None for other names."""
    found = _WHOLE.match(name)
    return None if found is None else ListenerConfig(found[1].lower(), found[2])


def broker_config(name: str) -> Config | None:
    """The config of a name: a broker's, or a listener's with the broker's type and check but no default."""
    of_listener = listener_config(name)
    if of_listener is None:
        return BROKER_CONFIGS.get(name)
    of_broker = BROKER_CONFIGS[of_listener.config]
    documentation = f"As {of_broker.name}, for all connections of listeners named {of_listener.listener}."
    return replace(of_broker, name=name, default=None, synonym=of_broker.name, documentation=documentation)
