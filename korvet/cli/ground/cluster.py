"""The cluster that a command talks to: the addresses of its brokers, and the client's settings by a properties file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from korvet.cli.kafka.address import DEFAULT_BOOTSTRAP, parse_addresses
from korvet.errors import ConfigError

if TYPE_CHECKING:
    from korvet.cli.kafka.client import Client

DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"
"""The mechanism with which users of `korvet users add` log in."""
_BOOTSTRAP: Final = "bootstrap.servers"
_TIMEOUTS: Final = {"request.timeout.ms", "socket.timeout.ms"}
_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Addresses of brokers, and a client's settings by the names of Java's client or of librdkafka.

    ``file`` is the file of the settings, None without one.
    """

    bootstrap: str = DEFAULT_BOOTSTRAP
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    file: Path | None = None

    @property
    def is_overheard(self) -> bool:
        """True if others may read the traffic: it leaves this machine without TLS."""
        has_tls = self.settings.get("security.protocol", "").upper().endswith("SSL")
        return not has_tls and not all(_is_here(address.host) for address in parse_addresses(self.bootstrap))

    def answering_within(self, seconds: float) -> Cluster:
        """The same cluster, with this timeout for answers unless the settings have one."""
        own = {"socket.timeout.ms": str(round(seconds * 1000))}
        return self if _TIMEOUTS & self.settings.keys() else replace(self, settings={**self.settings, **own})

    def client(self) -> Client:
        """A client of these brokers, which connects at its first request.

        :raises ConfigError: if the client cannot follow a setting.
        """
        return self.clients()()

    def clients(self) -> Callable[[], Client]:
        """A function that makes such clients. One line names the settings that they do not use.

        :raises ConfigError: if the clients cannot follow a setting.
        """
        from korvet.cli.ground.output import say_note
        from korvet.cli.kafka.client import Client
        from korvet.cli.kafka.security import client_security

        try:
            security = client_security(self.settings)
        except ConfigError as error:
            raise ConfigError(f"{self.file}: {error}") from None
        if security.unused:
            say_note(f"korvet: {self.file}: this command does not use {', '.join(security.unused)}")
        return lambda: Client(self.bootstrap, security)

    def clients_of_users(self) -> Callable[[str, str], Client]:
        """A function that makes a client of a user and a password, by the other settings of the file.

        Without a protocol in the settings it is SASL_SSL, or SASL_PLAINTEXT at brokers of this machine.

        :raises ConfigError: if the clients cannot follow a setting, or passwords would pass others unprotected.
        """
        from korvet.cli.kafka.client import Client
        from korvet.cli.kafka.login import password_login
        from korvet.cli.kafka.security import client_security

        is_here = all(_is_here(address.host) for address in parse_addresses(self.bootstrap))
        settings = {"security.protocol": "SASL_PLAINTEXT" if is_here else "SASL_SSL", **self.settings}
        mechanism = settings.pop("sasl.mechanisms", settings.get("sasl.mechanism", DEFAULT_MECHANISM)).upper()
        own = {"sasl.mechanism": mechanism, "sasl.username": "visitor", "sasl.password": "of their own"}
        try:
            _check_passwords(settings["security.protocol"], mechanism)
            security = client_security({**settings, **own})
        except ConfigError as error:
            raise ConfigError(str(error) if self.file is None else f"{self.file}: {error}") from None
        if mechanism == "PLAIN" and security.tls is None and not is_here:
            raise ConfigError("PLAIN would show visitors' passwords to others on the way to the broker; use SASL_SSL")

        def client(user: str, password: str) -> Client:
            login = password_login(mechanism, user, password)
            return Client(self.bootstrap, replace(security, login=login))

        return client


def _check_passwords(protocol: str, mechanism: str) -> None:
    if not protocol.upper().startswith("SASL_"):
        raise ConfigError("security.protocol: visitors log in at the broker, so it is SASL_SSL or SASL_PLAINTEXT")
    if mechanism == "OAUTHBEARER":
        raise ConfigError("sasl.mechanism: visitors have passwords, so it is PLAIN or SCRAM")


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named_cluster(bootstrap: str | None, file: Path | None) -> Cluster:
    """The cluster of the flags; without ``bootstrap`` the file's ``bootstrap.servers`` names its addresses.

    :raises ConfigError: if the file cannot be read, or an address is none.
    """
    settings = {} if file is None else read_properties(file)
    named = settings.pop(_BOOTSTRAP, "").strip()
    if bootstrap is None and named:
        try:
            parse_addresses(named)
        except ConfigError as error:
            raise ConfigError(f"{file}: {_BOOTSTRAP}: {error}") from None
    return Cluster(bootstrap=bootstrap or named or DEFAULT_BOOTSTRAP, settings=settings, file=file)


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a file in Java's properties syntax and UTF-8, by lower-case names; the last of a name counts.

    Source: java.util.Properties.load
    """
    from javaproperties import InvalidUEscapeError, loads

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read client settings {path}: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"client settings {path}: the file is larger than {_MAX_FILE_BYTES} bytes")
    try:
        found = loads(content.decode())
    except UnicodeDecodeError:
        raise ConfigError(rf"client settings {path}: not UTF-8; other characters are written as \uXXXX") from None
    except InvalidUEscapeError:
        raise ConfigError(rf"client settings {path}: a \u without four hexadecimal digits") from None
    # As Kafka does, keep the spaces of passwords alone.
    return {name.lower(): value if "password" in name.lower() else value.strip() for name, value in found.items()}
