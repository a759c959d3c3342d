"""The settings of ``korvet serve``: flags and the config file, as one frozen value."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from korvet.configs.listeners import listener_config
from korvet.configs.oauth import NAMESPACE_CLAIM, OAUTH_URL
from korvet.configs.types import INT_MAX, parse_per_ip_overrides
from korvet.configs.values import BrokerValues
from korvet.errors import ConfigError
from korvet.security.mapping import DEFAULT_RULES, PrincipalRules
from korvet.security.protocol import ClientAuth, NamespaceFrom, Security
from korvet.security.tls import TlsFiles, tls_problem
from korvet.server.ground.host_pattern import HostPattern
from korvet.server.ground.machine import memory_bytes
from korvet.store.log.memory.budget import DEFAULT_BUDGET_BYTES
from korvet.store.log.partitions.shared import DEFAULT_CACHE_BYTES
from korvet.store.registry import DEFAULT_LISTENER

_WILDCARDS = {"", "0.0.0.0", "::"}
_QUEUED_BYTES = 512 << 20
_UNFINISHED_BYTES = 256 << 20
_NEED_TLS = {"PLAIN": "passwords", "OAUTHBEARER": "tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One listener: its address, its advertised address, and the namespace of its topics and groups.

    Without an advertised address, clients get the addresses of listeners with the same ``name``, at all front-ends.

    ``port`` is 0 for a free one. Each port of a load balancer, from ``advertised_port`` to ``advertised_last_port``, is
    a node of its own. With ``proxy_protocol`` connections begin with a load balancer's header, which is accepted only
    from the addresses of ``proxy_protocol_from``, if there are any. With ``tls_terminated`` TLS ends at the balancer,
    and the header describes the client's TLS.

    With ``namespace_from`` clients choose the namespace, and ``namespace`` is ignored.
    """

    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    advertised_port: int | None = None
    advertised_last_port: int | None = None
    namespace: str = "default"
    namespace_from: NamespaceFrom | None = None
    name: str = DEFAULT_LISTENER
    proxy_protocol: bool = False
    proxy_protocol_from: tuple[str, ...] = ()
    security: Security = Security.PLAINTEXT
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tls_client_auth: ClientAuth = ClientAuth.NONE
    tls_client_crl: str | None = None
    tls_protocols: tuple[str, ...] = ()
    tls_cipher_suites: tuple[str, ...] = ()
    tls_terminated: bool = False
    principal_rules: str = DEFAULT_RULES
    sasl: tuple[str, ...] = ()

    @property
    def whose(self) -> str:
        """Its namespace in words, equal for listeners with the same."""
        return "chosen namespaces" if self.namespace_from is not None else f"namespace {self.namespace!r}"

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of its certificates, if TLS ends here."""
        if not self.security.has_tls or self.tls_terminated or self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(
            self.tls_cert, self.tls_key, self.tls_client_ca, self.tls_client_auth, self.tls_client_crl,
            self.tls_protocols, self.tls_cipher_suites,
        )  # fmt: skip

    @property
    def balancers(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks of load balancers whose headers are accepted; empty for any.

        :raises ConfigError: a text is no network.
        """
        try:
            return tuple(map(ip_network, self.proxy_protocol_from))
        except ValueError as error:
            raise ConfigError(f"proxy-protocol-from: {error}") from None

    @property
    def host_pattern(self) -> HostPattern | None:
        """The pattern of the advertised host names, if they contain the namespace.

        :raises ConfigError: it is no such pattern.
        """
        host = self.advertised_host
        return None if host is None or "{" not in host else HostPattern(host)

    def advertised(self, port: int) -> tuple[str, int]:
        """The advertised host and port; ``port`` is the bound one.

        Without an advertised address these are the listener's own. A wildcard becomes the machine's host name.
        """
        host = self.advertised_host or self.host
        return (socket.gethostname() if host in _WILDCARDS else host, self.advertised_port or port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings of a broker. ``broker`` holds those with Kafka's names, as text.

    ``metrics`` is the address of the HTTP port, None for no such port, and ``metrics_hostnames`` are its names.
    ``console`` says whether that port has the console, ``console_config`` is the file of its client's settings, and
    ``console_hostnames`` are the names at which a proxy with TLS shows it.

    ``tenant_redis_passwords`` is a directory with the password of each tenant's Redis user; None if all tenants are
    served through the user of ``redis_url``.

    ``tier`` is the directory or URL of the store for segments, None for no tier. ``tier_cache`` is a directory for at
    most ``tier_cache_bytes`` of what readers get from there.
    """

    listeners: tuple[ListenerSettings, ...] = (ListenerSettings(),)
    redis_url: str | None = None
    tenant_redis_passwords: Path | None = None
    data_dir: Path = Path("data")
    tier: str | None = None
    tier_cache: Path | None = None
    tier_cache_bytes: int = 10 << 30
    workers: int = 1
    metrics: tuple[str, int] | None = None
    console: str = "off"
    console_config: Path | None = None
    console_hostnames: tuple[str, ...] = ()
    metrics_hostnames: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: str = "text"
    broker: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> BrokerValues:
        """The values of all broker configs, with their types and defaults."""
        return BrokerValues(self.broker)

    def to_json(self) -> str:
        """The settings as JSON, for a worker process."""
        paths = {
            "data_dir": str(self.data_dir),
            "tier_cache": _text(self.tier_cache),
            "console_config": _text(self.console_config),
            "tenant_redis_passwords": _text(self.tenant_redis_passwords),
        }
        return json.dumps({**asdict(self), **paths, "broker": dict(self.broker)})

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        values = json.loads(text)
        listeners = tuple(_listener(listener) for listener in values["listeners"])
        metrics = None if values["metrics"] is None else (values["metrics"][0], values["metrics"][1])
        changed = {
            "listeners": listeners,
            "data_dir": Path(values["data_dir"]),
            "metrics": metrics,
            "tier_cache": _path(values["tier_cache"]),
            "console_config": _path(values["console_config"]),
            "tenant_redis_passwords": _path(values["tenant_redis_passwords"]),
            "console_hostnames": tuple(values["console_hostnames"]),
            "metrics_hostnames": tuple(values["metrics_hostnames"]),
        }
        return cls(**{**values, **changed})


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _listener(values: Mapping[str, Any]) -> ListenerSettings:
    security, auth = Security(values["security"]), ClientAuth(values["tls_client_auth"])
    chosen = values["namespace_from"]
    return ListenerSettings(
        **{
            **values,
            "namespace_from": None if chosen is None else NamespaceFrom(chosen),
            "security": security,
            "tls_client_auth": auth,
            "sasl": tuple(values["sasl"]),
            **{name: tuple(values[name]) for name in ("proxy_protocol_from", "tls_protocols", "tls_cipher_suites")},
        }
    )


def check_security(listener: ListenerSettings) -> None:
    """Refuse a listener with incomplete or contradictory settings of TLS.

    :raises ConfigError: if the settings are such, or its principal rules are wrong.
    """
    where = f"listener {listener.name!r}"
    files = (listener.tls_cert, listener.tls_key, listener.tls_client_ca, listener.tls_client_crl)
    chosen = bool(listener.tls_protocols or listener.tls_cipher_suites)
    is_asking = listener.tls_client_auth is not ClientAuth.NONE
    if not listener.security.has_tls:
        wrong = any(files) or chosen or is_asking or listener.tls_terminated
        problem = "it has settings of TLS; give it security = 'tls' or 'sasl_tls', too" if wrong else None
    elif listener.tls_terminated:
        problem = _terminated_problem(listener, any(files) or chosen)
    elif listener.tls_cert is None or listener.tls_key is None:
        problem = f"security {listener.security.value!r} needs tls-cert and tls-key"
    elif listener.tls_client_crl is not None and not is_asking:
        problem = "tls-client-crl needs tls-client-auth 'requested' or 'required'"
    elif (tls_files := listener.tls_files) is not None and (why := tls_problem(tls_files)) is not None:
        problem = why
    else:
        wrong = is_asking and listener.tls_client_ca is None
        problem = f"tls-client-auth {listener.tls_client_auth.value!r} needs tls-client-ca" if wrong else None
    if problem is None and listener.balancers and not listener.proxy_protocol:
        problem = "proxy-protocol-from needs proxy-protocol"
    if problem is not None:
        raise ConfigError(f"{where}: {problem}")
    PrincipalRules(listener.principal_rules)
    why = _choice_problem(listener)
    if why is not None:
        raise ConfigError(f"{where}: {why}")


def _choice_problem(listener: ListenerSettings) -> str | None:
    """The reason why a listener's namespace-from cannot work; None if it can, or is not set."""
    pattern = listener.host_pattern
    match listener.namespace_from:
        case None:
            return None if pattern is None else "its advertised host names a namespace; give it namespace-from, too"
        case NamespaceFrom.SNI if pattern is None or not listener.security.has_tls:
            return "namespace-from 'sni' needs TLS, and an advertised host such as b{node}-{namespace}.kafka.example"
        case NamespaceFrom.SNI if not listener.sasl:
            return (
                "namespace-from 'sni' without sasl would open every tenant to each client; use namespace-from "
                "'principal', tls-client-auth 'required', and principal-rules that make USER@TENANT of a certificate. "
                "The server name has to agree with it"
            )
        case NamespaceFrom.PRINCIPAL if not (listener.sasl or listener.tls_client_auth is ClientAuth.REQUIRED):
            return "namespace-from 'principal' needs sasl, or tls-client-auth 'required'"
    return None


def _terminated_problem(listener: ListenerSettings, has_settings: bool) -> str | None:
    if not listener.proxy_protocol:
        return "tls-terminated needs proxy-protocol, so that the load balancer can send the client's certificate"
    problem = "tls-terminated leaves TLS to the load balancer, so give neither files nor protocols of it here"
    return problem if has_settings else None


def check_listeners(listeners: Sequence[ListenerSettings]) -> None:
    """Refuse two listeners with one address, or two of one name in a namespace without an advertised address.

    :raises ConfigError: if there are two such listeners.
    """
    for at, listener in enumerate(listeners):
        check_security(listener)
        for other in listeners[:at]:
            if listener.port and (listener.host, listener.port) == (other.host, other.port):
                raise ConfigError(f"two listeners on {shown_address(listener.host, listener.port)}")
            is_leased = listener.advertised_host is other.advertised_host is None
            if is_leased and (listener.whose, listener.name) == (other.whose, other.name):
                raise ConfigError(
                    f"two listeners of {listener.whose} with the name {listener.name!r} and without an "
                    "advertised address: clients of one would be sent to the other; give each a name"
                )


def check_sasl(listeners: Sequence[ListenerSettings], broker: Mapping[str, str]) -> None:
    """Refuse listeners whose security and mechanisms do not fit together.

    :raises ConfigError: if there is such a listener.
    """
    values = BrokerValues(broker)
    for listener in listeners:
        where, security = shown_address(listener.host, listener.port), listener.security
        if security.has_sasl and not listener.sasl:
            raise ConfigError(f"listener {where}: security {security.value!r} needs the mechanisms, in 'sasl'")
        if listener.sasl and not security.has_sasl:
            raise ConfigError(f"listener {where}: 'sasl' needs security 'sasl_tls' or 'sasl_plaintext'")
        if "OAUTHBEARER" in listener.sasl and not values.text(OAUTH_URL):
            raise ConfigError(f"listener {where}: OAUTHBEARER needs {OAUTH_URL}, the keys that sign tokens")
        is_by_name = listener.namespace_from is NamespaceFrom.SNI
        if "OAUTHBEARER" in listener.sasl and is_by_name and not values.text(NAMESPACE_CLAIM):
            raise ConfigError(
                f"listener {where}: OAUTHBEARER with namespace-from 'sni' needs {NAMESPACE_CLAIM}; without it every "
                "token would open every tenant"
            )
        for mechanism, secrets in () if security.has_tls else _NEED_TLS.items():
            setting = f"korvet.sasl.{mechanism.lower()}.without.tls"
            if mechanism in listener.sasl and not values.boolean(setting):
                raise ConfigError(
                    f"listener {where}: {mechanism} without TLS shows {secrets} to the network; use SCRAM-SHA-512, or "
                    f"set {setting}"
                )


def check_listener_configs(listeners: Sequence[ListenerSettings], broker: Mapping[str, str]) -> None:
    """Refuse settings of a listener that does not exist.

    :raises ConfigError: if there is such a setting.
    """
    names = sorted({listener.name for listener in listeners})
    for name in broker:
        found = listener_config(name)
        if found is not None and found.listener not in map(str.lower, names):
            raise ConfigError(f"{name}: no listener has this name; there are: {', '.join(names)}")


def check_tier(settings: ServeSettings) -> None:
    """Refuse a cache of no tier.

    :raises ConfigError:
    """
    if settings.tier is None and settings.tier_cache is not None:
        raise ConfigError("tier-cache: there is no tier; name one with tier")


def check_tenants(settings: ServeSettings) -> None:
    """Refuse passwords of tenants' Redis users that could not be used.

    :raises ConfigError: the path is no directory, no listener lets clients choose, or the embedded server is used.
    """
    passwords = settings.tenant_redis_passwords
    if passwords is None:
        return
    if all(listener.namespace_from is None for listener in settings.listeners):
        raise ConfigError("tenant-redis-passwords: no listener lets clients choose a tenant; give it namespace-from")
    if settings.redis_url is None:
        raise ConfigError("tenant-redis-passwords: the embedded server has no such users; name a Redis with 'redis'")
    if not passwords.is_dir():
        raise ConfigError(f"tenant-redis-passwords: {passwords} is no directory")


def shown_address(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of a front-end process.

    A request counts from its arrival to its answer, with its bytes and a flat charge for its objects. Unfinished large
    frames and unread answers have bounds of their own. While others wait for memory, a connection that makes no
    progress for ``stall_s`` is cut off, at the latest after twice that time.

    Redis handles the batches of all connections one after the other. While Produces in flight exceed ``produce_bytes``,
    a connection with more than ``produce_share_bytes`` of them is not read.

    At most ``handshakes`` TLS handshakes run at a time. Each has ``handshake_s``, or ``handshake_patience_s`` while
    others wait. A connection has ``login_s`` for its first login.
    """

    max_frame_bytes: int
    max_idle_ms: int
    connection_bytes: int = 64 << 20
    produce_bytes: int = 16 << 20
    produce_share_bytes: int = 1 << 20
    process_bytes: int
    large_frames_bytes: int
    max_connections_per_ip: int
    max_connections_overrides: Mapping[str, int]
    answer_bytes: int
    cache_bytes: int
    stall_s: float = 5.0
    drain_s: float = 5.0
    proxy_header_s: float = 5.0
    handshakes: int = 64
    handshake_s: float = 10.0
    handshake_patience_s: float = 2.0
    tls_shutdown_s: float = 3.0
    sasl_receive_bytes: int
    max_reauth_ms: int
    failed_login_delay_ms: int
    login_s: float = 30.0

    @property
    def bounds_addresses(self) -> bool:
        """True if some address has a limit of connections."""
        return self.max_connections_per_ip < INT_MAX or bool(self.max_connections_overrides)

    def most_of(self, client: str) -> int | None:
        """The limit of an address's connections at all front-ends; None without a limit."""
        most = self.max_connections_overrides.get(client, self.max_connections_per_ip)
        return most if most < INT_MAX else None


def limits_of(broker: Mapping[str, str]) -> ServerLimits:
    """The bounds that Kafka's settings and korvet's own settings give.

    :raises ConfigError: if a setting is not in its range.
    """
    values = BrokerValues(broker)
    memory = memory_bytes()

    def room(name: str, most: int, part: int, least: int = 1) -> int:
        """The bytes of the setting; by default a part of the machine's memory, up to a bound."""
        set_bytes = values.integer(name)
        return set_bytes if set_bytes >= least else min(most, memory // part)

    return ServerLimits(
        max_frame_bytes=values.integer("socket.request.max.bytes"),
        max_idle_ms=values.integer("connections.max.idle.ms"),
        process_bytes=room("queued.max.request.bytes", _QUEUED_BYTES, 4),
        large_frames_bytes=room("korvet.unfinished.request.max.bytes", _UNFINISHED_BYTES, 8),
        answer_bytes=room("korvet.queued.max.response.bytes", DEFAULT_BUDGET_BYTES, 8),
        cache_bytes=room("korvet.read.cache.max.bytes", DEFAULT_CACHE_BYTES, 16, least=0),
        sasl_receive_bytes=values.integer("sasl.server.max.receive.size"),
        max_reauth_ms=values.integer("connections.max.reauth.ms"),
        failed_login_delay_ms=values.integer("connection.failed.authentication.delay.ms"),
        max_connections_per_ip=values.integer("max.connections.per.ip"),
        max_connections_overrides=parse_per_ip_overrides(values.text("max.connections.per.ip.overrides")),
    )
