"""Clients that visit secured listeners: a broker with a listener of each kind, and each client's way to log in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from korvet.security.protocol import ClientAuth, NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings
from tests.kafka.builds import driver_command
from tests.kafka.client import ClientError
from tests.kafka.process import Driver
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority, Pair
from tests.support.issuer import Issuer
from tests.support.ports import free_port
from tests.support.tenants import korvet
from tests.support.tools import find_tool

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER, PASSWORD = "alice", "right =password"
HOST = "b{node}-{namespace}.kafka.example"
WITHIN_S = 120.0
_KAFKAS_NAMES = {
    Security.PLAINTEXT: "PLAINTEXT",
    Security.TLS: "SSL",
    Security.SASL_PLAINTEXT: "SASL_PLAINTEXT",
    Security.SASL_TLS: "SASL_SSL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """A client's way to a listener, for all drivers: a setting that is None is left out.

    ``protocol`` is Kafka's name. ``key_store`` is a file with the client's ``cert`` and its ``key``, and ``token_url``
    one with its token.
    """

    bootstrap: str
    protocol: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_store: str | None = None
    mechanism: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    token_url: str | None = None


class Fleet:
    """A broker with a listener of each kind, its authority, its issuer and its user."""

    def __init__(self, broker: KorvetServer, authority: Authority, issuer: Issuer, directory: Path) -> None:
        self.broker = broker
        self.authority = authority
        self.issuer = issuer
        self._directory = directory
        self._tokens: dict[str, str] = {}

    def way(
        self, kind: Security, mechanism: str | None = None, *, right: bool = True, password: str = PASSWORD
    ) -> Connect:
        """A way to the listener of a kind, with the right password or token or a wrong one."""
        found = self.broker.ports[list(Security).index(kind)]
        way: dict[str, Any] = {"bootstrap": f"127.0.0.1:{found}", "protocol": _KAFKAS_NAMES[kind]}
        if kind.has_tls:
            way["ca"] = str(self.authority.cert)
        if mechanism == "OAUTHBEARER":
            way |= self._bearer(right=right)
        elif mechanism is not None:
            way |= {"mechanism": mechanism, "user": USER, "password": password if right else "wrong"}
        return Connect(**way)

    def mutual(self, client: Pair) -> Connect:
        """A way to the listener that asks for certificates, with one."""
        store = self._directory / f"{client.cert.stem}-store.pem"
        store.write_bytes(client.key.read_bytes() + client.cert.read_bytes())
        shown = {"cert": str(client.cert), "key": str(client.key), "key_store": str(store)}
        return replace(self.way(Security.TLS), bootstrap=f"127.0.0.1:{self.broker.ports[len(Security)]}", **shown)

    def tenant_way(self, tenant: str) -> Connect:
        """The way of the user of a tenant to the listener whose clients choose one by their login."""
        bootstrap = f"127.0.0.1:{self.broker.ports[-2]}"
        kind = Security.SASL_TLS
        return Connect(
            bootstrap=bootstrap, protocol=_KAFKAS_NAMES[kind], ca=str(self.authority.cert), mechanism="PLAIN",
            user=f"{USER}@{tenant}", password=PASSWORD,
        )  # fmt: skip

    def named_way(self, tenant: str) -> Connect:
        """The way of the user of a tenant to the listener whose clients choose one by the server's name."""
        host = HOST.format(node=0, namespace=tenant)
        return replace(self.tenant_way(tenant), bootstrap=f"{host}:{self.broker.ports[-1]}", user=USER)

    def _bearer(self, *, right: bool) -> dict[str, str]:
        name = "right" if right else "wrong"
        if name not in self._tokens:
            self._tokens[name] = self.issuer.token(USER, aud="kafka" if right else "others", scope="kafka")
        path = self._directory / f"{name}.jwt"
        path.write_text(self._tokens[name])
        return {"mechanism": "OAUTHBEARER", "token": self._tokens[name], "token_url": path.as_uri()}


def write_hosts(file: Path, tenants: Sequence[str]) -> None:
    """Write a file in the form of /etc/hosts: the system's names, and those of all nodes of some tenants."""
    names = [HOST.format(node=node, namespace=name) for node in range(7) for name in tenants]
    file.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(names)}\n")


def seeing(hosts: Path) -> list[str]:
    """The words before a command that let its process see another /etc/hosts, in a mount namespace of its own."""
    words = ["unshare", "-Urm", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("the system lets no user mount a file for one process")
    return words


def add_tenant(broker: KorvetServer, name: str) -> None:
    """A tenant with the user `USER`, as an operator makes it."""
    korvet(broker, "tenants", "create", name)
    add_user(broker, USER, "SCRAM-SHA-256", PASSWORD, namespace=name)


def add_user(broker: KorvetServer, name: str, mechanism: str, password: str, namespace: str = "default") -> None:
    """Set a user's password as an operator does."""
    korvet(broker, "users", "add", name, "--mechanism", mechanism, "--namespace", namespace, stdin=password)


@contextmanager
def running_fleet(directory: Path, broker: Mapping[str, str]) -> Iterator[Fleet]:
    """Run a broker with a listener of each kind, in the order of `Security`, and three more.

    The next one asks for certificates. The last two let clients choose a tenant, by the login and by the server's name.
    """
    authority, issuer = Authority.make(directory), Issuer(directory / "keys.json")
    pair = authority.server()
    listeners = [
        ListenerSettings(
            name=kind.value,
            port=0,
            security=kind,
            tls_cert=str(pair.cert) if kind.has_tls else None,
            tls_key=str(pair.key) if kind.has_tls else None,
            sasl=MECHANISMS if kind.has_sasl else (),
        )
        for kind in Security
    ]
    mutual = replace(listeners[list(Security).index(Security.TLS)], name="mutual")
    listeners.append(replace(mutual, tls_client_ca=str(authority.cert), tls_client_auth=ClientAuth.REQUIRED))
    by_login = NamespaceFrom.PRINCIPAL
    with_logins = listeners[list(Security).index(Security.SASL_TLS)]
    listeners.append(replace(with_logins, name="tenants", namespace_from=by_login))
    names, port = authority.server([f"*.{HOST.partition('.')[2]}"]), free_port()
    listeners.append(
        replace(
            with_logins, name="named", namespace_from=NamespaceFrom.SNI, sasl=("PLAIN",),
            port=port, advertised_host=HOST, advertised_port=port, tls_cert=str(names.cert), tls_key=str(names.key),
        )
    )  # fmt: skip
    settings = {
        **issuer.settings,
        "korvet.sasl.plain.without.tls": "true",
        "korvet.sasl.oauthbearer.without.tls": "true",
        "group.initial.rebalance.delay.ms": "0",
        **broker,
    }
    with ExitStack() as stack:
        server = stack.enter_context(running_broker(listeners=listeners, broker=settings))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            add_user(server, USER, mechanism, PASSWORD)
        yield Fleet(server, authority, issuer, directory)


class Visitors:
    """The clients by name; a driver starts at its first visit, and one serves all Python clients.

    :param hosts: a file in the form of /etc/hosts, by which alone Java resolves names.
    """

    def __init__(self, hosts: Path | None = None) -> None:
        self._drivers: dict[str, Driver] = {}
        self._hosts = hosts

    def visit(self, client: str, way: Connect, topic: str, values: Sequence[str], **more: Any) -> list[str]:
        """Write values and read them as a member of a new group; the values that were read.

        :raises ClientError: the client's own error.
        """
        if client == "kcat":
            return _visit_kcat(way, topic, values)
        command = {"connect": asdict(way), "topic": topic, "group": f"group-{topic}", "values": list(values), **more}
        driver = self._driver(client)
        if client not in ("java", "kafkajs"):
            command["client"] = client
        found: list[str] = driver.call("visit", **command)
        return found

    def _driver(self, client: str) -> Driver:
        name = client if client in ("java", "kafkajs") else "python"
        if name not in self._drivers:
            self._drivers[name] = Driver(self._command(name))
        return self._drivers[name]

    def _command(self, name: str) -> list[str]:
        if name == "python":
            return [sys.executable, "-m", "tests.kafka.drivers.visiting"]
        command = driver_command(name, "127.0.0.1:1")
        if name == "java" and self._hosts is not None:
            command.insert(1, f"-Djdk.net.hosts.file={self._hosts}")
        return command

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop()


def _visit_kcat(way: Connect, topic: str, values: Sequence[str]) -> list[str]:
    settings = {
        "security.protocol": way.protocol,
        "ssl.ca.location": way.ca,
        "ssl.certificate.location": way.cert,
        "ssl.key.location": way.key,
        "sasl.mechanism": way.mechanism,
        "sasl.username": way.user,
        "sasl.password": way.password,
    }
    options = [part for name, value in settings.items() if value is not None for part in ("-X", f"{name}={value}")]
    base = [find_tool("kcat"), "-F", "/dev/null", "-b", way.bootstrap, *options]
    _kcat([*base, "-P", "-t", topic], "\n".join(values))
    out = _kcat(
        [*base, "-u", "-c", str(len(values)), "-X", "auto.offset.reset=earliest", "-G", f"group-{topic}", topic]
    )
    return out.split()


def _kcat(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise ClientError(-1, done.stderr)
    return done.stdout
