"""TLS and the login of a client by its settings. An unsupported setting is refused, because ignoring it is insecure."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from korvet.cli.kafka.login import MECHANISMS, Login, password_login, token_login
from korvet.errors import ConfigError
from korvet.settings.kafka_client import librdkafka_settings

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
CLIENT_ID: Final = "korvet-cli"
TIMEOUT_S: Final = 30.0
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_TLS: Final = {
    "enable.ssl.certificate.verification",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
}
_LOGIN: Final = {"sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username", _TOKEN_URL}
_ALWAYS: Final = {"client.id", "request.timeout.ms", "security.protocol", "socket.timeout.ms"}
_WITHOUT_EFFECT: Final = {"sasl.oauthbearer.method"}
_SECURITY: Final = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")
_PKCS12: Final = (
    "keystores are read as PEM here; convert it with 'openssl pkcs12 -in FILE -out client.pem' and set "
    "ssl.keystore.location=client.pem, ssl.keystore.type=PEM and ssl.key.password"
)
_AS_FILE: Final = "write it to a file, and name the file as"
_INSTEAD: Final = {
    "ssl.keystore.location": _PKCS12,
    "ssl.keystore.password": _PKCS12,
    "ssl.certificate.pem": f"{_AS_FILE} ssl.certificate.location",
    "ssl.key.pem": f"{_AS_FILE} ssl.key.location",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """A client's part in the protection of a connection. ``unused`` names the settings that had no effect."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None
    client_id: str = CLIENT_ID
    timeout_s: float = TIMEOUT_S
    unused: tuple[str, ...] = ()


def client_security(given: Mapping[str, str]) -> ClientSecurity:
    """The security of settings by the names of Java's client or of librdkafka.

    :raises ConfigError: if a setting is wrong, or cannot be honoured; the text begins with its name.
    """
    settings = librdkafka_settings(given)
    protocol = settings.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol={protocol}: want one of {', '.join(PROTOCOLS)}")
    _refuse_unknown(settings)
    used = _ALWAYS | _WITHOUT_EFFECT
    tls = login = None
    if protocol.endswith("SSL"):
        tls, used = _tls(settings), used | _TLS
    if protocol.startswith("SASL"):
        login, used = _login(settings), used | _LOGIN
    return ClientSecurity(
        tls=tls,
        login=login,
        client_id=settings.get("client.id") or CLIENT_ID,
        timeout_s=_timeout_s(settings),
        unused=tuple(sorted(settings.keys() - used)),
    )


def _refuse_unknown(settings: Mapping[str, str]) -> None:
    """Refuse unknown settings that protect a client's connections."""
    known = _ALWAYS | _TLS | _LOGIN
    for name in sorted(settings):
        if name in known or name in _WITHOUT_EFFECT or not name.startswith(_SECURITY):
            continue
        near = get_close_matches(name, known, 1, 0.85)
        advice = _INSTEAD.get(name) or (f"did you mean {near[0]}?" if near else "leave it out")
        raise ConfigError(f"{name} cannot be honoured here; {advice}")


def _timeout_s(settings: Mapping[str, str]) -> float:
    text = settings.get("socket.timeout.ms", str(round(TIMEOUT_S * 1000)))
    if not text.isdecimal() or not 0 < int(text) <= 300_000:
        raise ConfigError(f"socket.timeout.ms={text}: want 1 to 300000")
    return int(text) / 1000


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = _checks_names(settings)
    if _is_off(settings, "enable.ssl.certificate.verification"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _trust(context, settings)
    _show_certificate(context, settings)
    return context


def _checks_names(settings: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = settings.get(name, "https").lower()
    if algorithm not in ("https", "none"):
        raise ConfigError(f"{name}={algorithm}: want https, or nothing for no check of the host's name")
    return algorithm == "https"


def _is_off(settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "true").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}={text}: want true or false")
    return text == "false"


def _trust(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    """Trust the named authorities, else the system's."""
    location, pem = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    if not location and not pem:
        context.load_default_certs()
        return
    try:
        if location:
            path = Path(location)
            context.load_verify_locations(*((None, path) if path.is_dir() else (path, None)))
        if pem:
            context.load_verify_locations(cadata=pem)
    except (OSError, ValueError) as error:
        name = f"ssl.ca.location={location}" if location else "ssl.ca.pem"
        raise ConfigError(f"{name}: {_reason(error)}; want certificates of authorities in PEM") from None


def _show_certificate(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    cert, key = settings.get("ssl.certificate.location"), settings.get("ssl.key.location")
    if not cert and not key:
        return
    if not cert:
        raise ConfigError("ssl.certificate.location is missing beside ssl.key.location")
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert, key or None, password=settings.get("ssl.key.password", ""))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl.certificate.location={cert} with the key in {key or cert}: {_reason(error)}; want a pair in PEM, and "
            "ssl.key.password if the key has one"
        ) from None


def _reason(error: Exception) -> str:
    """OpenSSL's reason in words; it names no reason for a file that it cannot parse."""
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "not in PEM").lower().replace("_", " ")
    return (getattr(error, "strerror", None) or str(error)).lower()


def _login(settings: Mapping[str, str]) -> Login:
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
    if not mechanism:
        raise ConfigError(f"sasl.mechanism is missing; want one of {', '.join(MECHANISMS)}")
    mechanism = mechanism.upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism}: it is not spoken here; want one of {', '.join(MECHANISMS)}")
    if mechanism == "OAUTHBEARER":
        return token_login(_token_file(settings))
    user, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
    if not user or not password or "\0" in user + password:
        raise ConfigError(
            f"sasl.mechanism={mechanism}: it needs a name and a password, in sasl.jaas.config or as sasl.username and "
            "sasl.password"
        )
    return password_login(mechanism, user, password)


def _token_file(settings: Mapping[str, str]) -> Path:
    url = urlsplit(settings.get(_TOKEN_URL, ""))
    if url.scheme != "file" or url.netloc not in ("", "localhost") or not url.path:
        raise ConfigError(
            f"{_TOKEN_URL}: want file:///PATH, a file with the token; tokens are not fetched from a server here"
        )
    return Path(unquote(url.path))
