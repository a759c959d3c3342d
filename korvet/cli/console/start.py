"""The start of the console: what its flags mean together, and what they exclude."""

from __future__ import annotations

from dataclasses import dataclass

from korvet.cli.cluster import Cluster
from korvet.cli.console.app import make_app
from korvet.cli.console.clients import Clients
from korvet.cli.console.guard import Hosts, loopback_hosts, public_hosts
from korvet.cli.console.login import Logins, cookie_name
from korvet.cli.console.serving import listen, serve
from korvet.cli.console.views import Sources
from korvet.cli.console.visitors import Sessions, Visitor
from korvet.cli.kafka.address import Address, parse_addresses
from korvet.errors import ConfigError
from korvet.security.tls import TlsFiles
from korvet.server.logs import configure_logging

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The flags of the command."""

    listen: str
    login: bool
    tls_cert: str | None
    tls_key: str | None
    tls_terminated: bool
    hostnames: frozenset[str]
    idle_s: float
    operators: frozenset[str]
    redis_url: str | None
    allow_changes: bool

    @property
    def has_tls(self) -> bool:
        """Whether browsers speak TLS."""
        return self.tls_terminated or self.tls_cert is not None


def start(way: Way, cluster: Cluster) -> None:
    """Serve until Ctrl-C or SIGTERM.

    :raises ConfigError: if flags contradict each other, or would show passwords or pages to strangers.
    :raises KorvetError: if the address is taken.
    """
    address = _address(way)
    tls = _tls_files(way)
    configure_logging("info", "text")
    make_client = cluster.clients_of_users() if way.login else None
    everybody = None if way.login else Visitor(clients=Clients(cluster.clients()))
    with listen(address) as listening:
        port = listening.getsockname()[1]
        logins = None
        if make_client is not None:
            logins = Logins(
                make_client=make_client,
                operators=way.operators,
                cookie=cookie_name(port, has_tls=way.has_tls),
                has_tls=way.has_tls,
                is_proxied=way.tls_terminated,
                sessions=Sessions(way.idle_s),
            )
        door = logins or everybody
        assert door is not None
        app = make_app(
            door,
            _hosts(way, address, port),
            Sources(redis_url=way.redis_url),
            scheme="https" if way.has_tls else "http",
            allow_changes=way.allow_changes,
        )
        serve(listening, app, logins, tls)


def _address(way: Way) -> Address:
    """The address of the pages.

    :raises ConfigError: if the flags do not protect it.
    """
    address, *more = parse_addresses(way.listen)
    if more:
        raise ConfigError(f"--listen {way.listen}: the console listens on one address")
    if not way.login:
        for flag, is_given in (
            ("--tls-cert", way.has_tls),
            ("--operator", way.operators),
            ("--hostname", way.hostnames),
        ):
            if is_given:
                raise ConfigError(f"{flag} is for a console with --login")
        if address.host not in _LOOPBACK:
            raise ConfigError(
                f"--listen {way.listen}: a console that asks for no login listens on 127.0.0.1 or ::1; add --login, "
                "or reach it from elsewhere by ssh -L"
            )
    elif address.host not in _LOOPBACK and not way.has_tls:
        raise ConfigError(
            f"--listen {way.listen}: passwords would pass others unprotected; give --tls-cert and --tls-key, or "
            "--tls-terminated behind a proxy with TLS"
        )
    if way.login and way.redis_url is not None and not way.operators:
        raise ConfigError("--redis with --login shows Redis to nobody; name the users that may see it as --operator")
    return address


def _tls_files(way: Way) -> TlsFiles | None:
    if way.tls_terminated and (way.tls_cert or way.tls_key):
        raise ConfigError("--tls-terminated leaves certificates to the proxy, so give no --tls-cert here")
    if way.tls_cert is None and way.tls_key is None:
        return None
    if way.tls_cert is None or way.tls_key is None:
        raise ConfigError("--tls-cert and --tls-key go together")
    return TlsFiles(way.tls_cert, way.tls_key)


def _hosts(way: Way, address: Address, port: int) -> Hosts:
    return public_hosts(way.hostnames | {address.host}) if way.login else loopback_hosts(port)
