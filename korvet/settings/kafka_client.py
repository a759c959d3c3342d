"""A Kafka client's settings by the Java client's names, in librdkafka's names.

A setting that librdkafka knows passes as it is, and so does one that neither client knows.
Sources: ConsumerConfig, ProducerConfig, SslConfigs and SaslConfigs of Kafka; librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from korvet.errors import ConfigError

_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
# These settings tune parts that librdkafka does not have, and change no outcome.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "key.deserializer",
        "key.serializer",
        "max.block.ms",
        "max.poll.records",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "security.providers",
        "socket.connection.setup.timeout.max.ms",
        "ssl.enabled.protocols",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "value.deserializer",
        "value.serializer",
    }
)
_JAAS_ENTRY: Final = re.compile(r"""(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")
_JAAS_LOGINS: Final = ("PlainLoginModule", "ScramLoginModule")
_TOKEN_LOGIN: Final = "OAuthBearerLoginModule"
_TOKEN_ENTRIES: Final = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_MOST_SOCKET_TIMEOUT_MS: Final = 300_000


def librdkafka_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of a consumer, a producer or an admin client in librdkafka's names.

    :param given: by lower-case names of the Java client or of librdkafka.
    :raises ConfigError: if librdkafka cannot follow a setting; the text begins with the setting's name.
    """
    settings: dict[str, str] = {}
    for name, value in given.items():
        if name in _TRANSLATED:
            settings |= _TRANSLATED[name](value, given)
        elif name not in _WITHOUT_EFFECT:
            settings[_RENAMED.get(name, name)] = value
    return settings


def _store_kind(which: str, given: Mapping[str, str]) -> str:
    return given.get(f"ssl.{which}.type", "JKS").upper()


def _truststore(location: str, given: Mapping[str, str]) -> dict[str, str]:
    if _store_kind("truststore", given) != "PEM":
        raise ConfigError(
            f"ssl.truststore.location={location}: truststores are read as PEM here; write the certificates to a "
            "file ('keytool -exportcert -rfc') and set ssl.truststore.type=PEM"
        )
    return {"ssl.ca.location": location}


def _keystore(location: str, given: Mapping[str, str]) -> dict[str, str]:
    match _store_kind("keystore", given):
        case "PEM":
            return {"ssl.certificate.location": location, "ssl.key.location": location}
        case "PKCS12":
            return {"ssl.keystore.location": location}
    raise ConfigError(
        f"ssl.keystore.location={location}: keystores are read as PKCS12 or PEM here; convert it "
        "('keytool -importkeystore -deststoretype PKCS12') and set ssl.keystore.type=PKCS12"
    )


def _identification(algorithm: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"ssl.endpoint.identification.algorithm": algorithm or "none"}


def _jaas(text: str, given: Mapping[str, str]) -> dict[str, str]:
    entries = {name: _unquoted(value) for name, value in _JAAS_ENTRY.findall(text)}
    if _TOKEN_LOGIN in text:
        return {name: entries[java] for java, name in _TOKEN_ENTRIES.items() if java in entries}
    if not any(login in text for login in _JAAS_LOGINS) or not {"username", "password"} <= entries.keys():
        raise ConfigError(
            "sasl.jaas.config: only PlainLoginModule and ScramLoginModule with username and password, and "
            "OAuthBearerLoginModule are understood here; for others give librdkafka's settings, as "
            "sasl.kerberos.keytab or sasl.oauthbearer.method"
        )
    return {"sasl.username": entries["username"], "sasl.password": entries["password"]}


def _token_handler(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Librdkafka's method for Kafka's own class, which fetches tokens."""
    if name.endswith(".OAuthBearerLoginCallbackHandler"):
        return {"sasl.oauthbearer.method": "oidc"}
    return _refused("sasl.login.callback.handler.class")(name, given)


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value


def _request_timeout(timeout_ms: str, given: Mapping[str, str]) -> dict[str, str]:
    timeout = _whole_number("request.timeout.ms", timeout_ms)
    return {"request.timeout.ms": timeout_ms, "socket.timeout.ms": str(min(timeout, _MOST_SOCKET_TIMEOUT_MS))}


def _buffer_memory(size_bytes: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"queue.buffering.max.kbytes": str(max(_whole_number("buffer.memory", size_bytes) // 1024, 1))}


def _ignored(value: str, given: Mapping[str, str]) -> dict[str, str]:
    return {}


def _refused(name: str) -> Callable[[str, Mapping[str, str]], dict[str, str]]:
    def refuse(value: str, given: Mapping[str, str]) -> dict[str, str]:
        raise ConfigError(f"{name}={value}: a Java class cannot be used here; leave the option out")

    return refuse


def _whole_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}: expected a whole number, got {text!r}") from None


_TRANSLATED: Final[Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]]] = {
    "buffer.memory": _buffer_memory,
    "request.timeout.ms": _request_timeout,
    "sasl.jaas.config": _jaas,
    "sasl.login.callback.handler.class": _token_handler,
    "ssl.endpoint.identification.algorithm": _identification,
    "ssl.keystore.location": _keystore,
    "ssl.keystore.type": _ignored,
    "ssl.truststore.location": _truststore,
    "ssl.truststore.password": _ignored,
    "ssl.truststore.type": _ignored,
    **{
        name: _refused(name)
        for name in (
            "interceptor.classes",
            "partitioner.class",
            "sasl.client.callback.handler.class",
            "sasl.login.class",
            "ssl.engine.factory.class",
        )
    },
}
