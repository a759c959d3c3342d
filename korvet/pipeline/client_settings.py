"""The settings of confluent-kafka's clients from the options of a reader or writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from korvet.errors import ConfigError
from korvet.pipeline.errors import PipelineError
from korvet.settings.kafka_client import librdkafka_settings

PREFIX: Final = "kafka."
_BOOTSTRAP: Final = "bootstrap.servers"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings for a consumer, a producer or an admin client of confluent-kafka.

    Librdkafka refuses a setting that neither it nor the Java client knows.

    :param options: of a reader or writer; ``kafka.NAME`` is the client's setting, by the Java client's name.
    :raises PipelineError: if ``kafka.bootstrap.servers`` is missing, or librdkafka cannot follow a setting.
    """
    given = {name[len(PREFIX) :].lower(): value for name, value in options.items() if name.lower().startswith(PREFIX)}
    if not given.get(_BOOTSTRAP, "").strip():
        raise PipelineError("Option 'kafka.bootstrap.servers' must be specified: the addresses of brokers, HOST:PORT,…")
    if given.get(_TOKEN_URL, "").startswith("file:"):
        raise PipelineError(
            f"{PREFIX}{_TOKEN_URL}: librdkafka reads no token from a file; give it a token server, with "
            "kafka.sasl.oauthbearer.method=oidc, .client.id and .client.secret"
        )
    try:
        return librdkafka_settings(given)
    except ConfigError as error:
        raise PipelineError(f"{PREFIX}{error}") from None
