"""The console on a front-end's HTTP port: ``python -m korvet.cli.console.beside``, which ``korvet serve`` starts.

The first line of its stdin has its settings. It ends on SIGTERM, and when stdin closes because its front-end is gone.
Then nobody else removes the directory of its socket.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from korvet.cli.console.sources import Sources
from korvet.cli.console.start import LOOPBACK, Way, show
from korvet.cli.ground.cluster import Cluster, named_cluster, read_properties
from korvet.cli.kafka.address import Address
from korvet.errors import ConfigError, KorvetError
from korvet.security.protocol import Security
from korvet.server.ground.logs import configure_logging
from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.server.processes.console import ANYWHERE, own_listener
from korvet.settings.kafka_client import librdkafka_settings

_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_STEPS: Final = "run 'korvet console' beside the broker instead, or see docs/console.md"


def check_console(settings: ServeSettings, shown: str) -> None:
    """Refuse a console on the HTTP port that could not reach the broker, or would show too much.

    :param shown: the setting's name in errors.
    :raises ConfigError: if it is such a console.
    """
    if settings.metrics is None:
        raise ConfigError(f"{shown}: the console is on the HTTP port; give 'metrics', the port's address, too")
    way, _ = _way(settings, "127.0.0.1:9092", None, shown)
    is_far = settings.metrics[0] not in LOOPBACK
    if is_far and not way.login:
        raise ConfigError(f"{shown}: without logins it is for an HTTP port on the loopback; {_STEPS}")
    if is_far and not settings.console_hostnames:
        raise ConfigError(
            f"{shown}: passwords would pass others unprotected. Have a proxy with TLS show the port, and give the "
            f"proxy's names as console-hostnames; or {_STEPS}"
        )
    if settings.console_hostnames and not way.login:
        raise ConfigError(f"{shown}: console-hostnames are for a console with logins; its listener has none")


def _way(settings: ServeSettings, bootstrap: str | None, redis_url: str | None, shown: str) -> tuple[Way, Cluster]:
    """The flags of the console, and its cluster.

    :param bootstrap: the address of the broker's own listener, if the console may use one.
    """
    file, listeners = settings.console_config, settings.listeners
    given = {} if file is None else read_properties(file)
    at = own_listener(listeners)
    if "bootstrap.servers" in given:
        cluster = named_cluster(None, file)
    else:
        if at is None or bootstrap is None:
            raise ConfigError(
                f"{shown}: each listener has TLS, PROXY headers or chosen namespaces; name a file with "
                "bootstrap.servers and the client's other settings as console-config"
            )
        own = _own_settings(listeners[at], shown)
        cluster = Cluster(bootstrap=bootstrap, settings={**own, **given}, file=file)
    protocol = librdkafka_settings(cluster.settings).get("security.protocol", "")
    ports = () if settings.metrics is None else (_own_port(*settings.metrics),)
    login = protocol.upper().startswith("SASL_")
    way = Way(
        login=login,
        is_proxied=bool(settings.console_hostnames),
        has_tls=bool(settings.console_hostnames),
        hostnames=frozenset(settings.console_hostnames),
        # No rule says which users of a cluster may see its Redis.
        sources=Sources(metrics=ports)
        if login or at is None
        else Sources(redis_url=redis_url, namespace=listeners[at].namespace, metrics=ports),
        allow_changes=settings.console == "changes",
    )
    return way, cluster


def _own_settings(listener: ListenerSettings, shown: str) -> dict[str, str]:
    """The client's settings for a listener without TLS."""
    if listener.security is not Security.SASL_PLAINTEXT:
        return {}
    offered = [one for one in _MECHANISMS if one in listener.sasl]
    if not offered:
        raise ConfigError(f"{shown}: visitors log in by passwords, and listener {listener.name!r} takes none")
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": offered[0]}


def _own_port(host: str, port: int) -> str:
    """The URL of the HTTP port that shows this process."""
    return f"http://{Address('127.0.0.1' if host in ANYWHERE else host, port)}"


def main() -> int:
    """Serve until stopped; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    settings = ServeSettings.from_json(order["settings"])
    configure_logging(settings.log_level, settings.log_format)
    assert settings.metrics is not None
    with socket.socket(fileno=order["descriptor"]) as listening:
        threading.Thread(target=_end_with_stdin, args=(Path(listening.getsockname()),), daemon=True).start()
        try:
            way, cluster = _way(settings, order["bootstrap"], order["redis_url"], "console")
            show(way, cluster, Address(*settings.metrics), listening)
        except KorvetError as error:
            sys.stderr.write(f"korvet: the console cannot be shown: {error}\n")
            return 1
    return 0


def _end_with_stdin(path: Path) -> None:
    sys.stdin.read()
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
