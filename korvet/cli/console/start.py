"""The start of the console: what its flags mean together, and what they exclude."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import click
from starlette.types import ASGIApp

from korvet.cli.console.app import make_app
from korvet.cli.console.clients import ANSWERS_WITHIN_S, Clients
from korvet.cli.console.guard import loopback_hosts
from korvet.cli.console.login import Logins, cookie_name
from korvet.cli.console.sources import Sources
from korvet.cli.console.visitors import IDLE_S, Sessions, Visitor
from korvet.cli.ground.cluster import Cluster
from korvet.cli.kafka.address import Address, parse_addresses
from korvet.errors import ConfigError, KorvetError
from korvet.metrics.hosts import public_hosts
from korvet.security.tls import Certificates, TlsFiles
from korvet.server.processes.http_server import HttpBounds, HttpServer

_BACKLOG: Final = 64
BOUNDS: Final = HttpBounds(connections=256, arrives_s=10.0, lasts_s=60.0, head_bytes=65_536)


LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How browsers reach the console.

    :ivar has_tls: browsers speak TLS, with the console or with a proxy before it.
    :ivar is_proxied: a proxy names the addresses of visitors.
    """

    login: bool = False
    has_tls: bool = False
    is_proxied: bool = False
    hostnames: frozenset[str] = frozenset()
    idle_s: float = IDLE_S
    operators: frozenset[str] = frozenset()
    sources: Sources = field(default_factory=Sources)
    allow_changes: bool = False


def start(address_text: str, way: Way, tls: TlsFiles | None, cluster: Cluster) -> None:
    """Serve until Ctrl-C or SIGTERM.

    :raises ConfigError: if flags contradict each other, or would show passwords or pages to strangers.
    :raises KorvetError: if the address is taken.
    """
    address = _address(address_text, way)
    with listen(address) as listening:
        show(way, cluster, Address(address.host, listening.getsockname()[1]), listening, tls)


def show(way: Way, cluster: Cluster, address: Address, listening: socket.socket, tls: TlsFiles | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM.

    :param address: the address for browsers.
    :raises ConfigError: if a setting of the client cannot be followed.
    """
    authentication = _authentication(way, cluster, address.port)
    hosts = public_hosts(way.hostnames | {address.host}) if way.login else loopback_hosts(address.port)
    scheme = "https" if way.has_tls else "http"
    app = make_app(authentication, hosts, way.sources, scheme=scheme, allow_changes=way.allow_changes)
    serve(listening, app, authentication.sessions if isinstance(authentication, Logins) else None, tls)


def _authentication(way: Way, cluster: Cluster, port: int) -> Logins | Visitor:
    """How visitors come in.

    :raises ConfigError: if a setting of the client cannot be followed.
    """
    cluster = cluster.answering_within(ANSWERS_WITHIN_S)
    if not way.login:
        return Visitor(clients=Clients(cluster.clients()))
    return Logins(
        make_client=cluster.clients_of_users(),
        operators=way.operators,
        cookie=cookie_name(port, has_tls=way.has_tls),
        has_tls=way.has_tls,
        is_proxied=way.is_proxied,
        sessions=Sessions(way.idle_s),
    )


def _address(text: str, way: Way) -> Address:
    """The address of the pages.

    :raises ConfigError: if the flags do not protect it.
    """
    address, *more = parse_addresses(text)
    if more:
        raise ConfigError(f"--listen {text}: the console listens on one address")
    flags = {"--tls-cert": way.has_tls, "--operator": way.operators, "--hostname": way.hostnames}
    for flag in [flag for flag, is_given in flags.items() if is_given and not way.login]:
        raise ConfigError(f"{flag} is for a console with --login")
    if address.host not in LOOPBACK and not way.login:
        raise ConfigError(
            f"--listen {text}: a console that asks for no login listens on 127.0.0.1 or ::1; add --login, or reach it "
            "from elsewhere by ssh -L"
        )
    if address.host not in LOOPBACK and not way.has_tls:
        raise ConfigError(
            f"--listen {text}: passwords would pass others unprotected; give --tls-cert and --tls-key, or "
            "--tls-terminated behind a proxy with TLS"
        )
    for url in way.sources.metrics:
        if not _is_port(url):
            raise ConfigError(f"--metrics {url}: this is no front-end's HTTP port; it is as http://127.0.0.1:9464")
    for flag, source in (("--redis", way.sources.redis_url), ("--lake-report", way.sources.lake_report)):
        if way.login and source is not None and not way.operators:
            raise ConfigError(f"{flag} with --login is shown to nobody; name the users that may see it as --operator")
    return address


def _is_port(url: str) -> bool:
    """True if a URL may be an HTTP port's, perhaps with a proxy's path before it; /metrics is a page of it."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False
    is_whole = parts.query == parts.fragment == "" and not parts.path.rstrip("/").endswith("/metrics")
    return parts.scheme in ("http", "https") and has_host and is_whole and url.isprintable() and " " not in url


def tls_files(cert: str | None, key: str | None, *, is_terminated: bool) -> TlsFiles | None:
    """The certificate of the pages.

    :raises ConfigError: if the flags contradict each other.
    """
    if is_terminated and (cert or key):
        raise ConfigError("--tls-terminated leaves certificates to the proxy, so give no --tls-cert here")
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key go together")
    return TlsFiles(cert, key)


def listen(address: Address) -> socket.socket:
    """A bound socket.

    :raises KorvetError: if the address is taken, or none of this machine.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise KorvetError(f"cannot listen on {address}: {error.strerror or error}") from None
    return listening


def serve(listening: socket.socket, app: ASGIApp, sessions: Sessions | None, tls: TlsFiles | None) -> None:
    """Serve until Ctrl-C or SIGTERM, and say where if that is an address of TCP.

    :raises ConfigError: if the certificate is wrong.
    """
    certificates = None if tls is None else Certificates(tls, "console")

    async def look() -> None:
        if sessions is not None:
            sessions.end_old()
        if certificates is not None:
            await certificates.look()

    if listening.family is not socket.AF_UNIX:
        scheme = "http" if certificates is None else "https"
        click.echo(f"the console is at {scheme}://{Address(*listening.getsockname()[:2])}/ (Ctrl-C ends it)")
    HttpServer(app, BOUNDS, listening, name="console", certificates=certificates, look=look).run([])
