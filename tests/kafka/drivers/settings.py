"""Settings of librdkafka for a way to a secured listener (`tests.kafka.secured.Connect`)."""

import time
from typing import Any


def confluent_settings(connect: dict[str, Any]) -> dict[str, Any]:
    """The settings of librdkafka's clients."""
    told = {
        "bootstrap.servers": connect["bootstrap"],
        "security.protocol": connect["protocol"],
        "ssl.ca.location": connect["ca"],
        "ssl.certificate.location": connect["cert"],
        "ssl.key.location": connect["key"],
        "sasl.mechanism": connect["mechanism"],
        "sasl.username": connect["user"],
        "sasl.password": connect["password"],
    }
    settings: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if connect["token"] is not None:
        settings["oauth_cb"] = lambda _: (connect["token"], time.time() + 300)
    return settings
