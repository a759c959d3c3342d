"""The Host headers that name our server. A foreign site can point its own name at this server (DNS rebinding).

A browser sends the name of the site whose page makes the request. No foreign site is at an IP address, nor at a name
that nobody can register.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

Hosts = Callable[[str], bool]
"""A predicate: True if a Host header names the server."""
_UNREGISTERED: Final = frozenset({"arpa", "internal", "local", "localhost", "svc"})
"""Ends of names that only a network's own DNS resolves: RFC 6761, 6762, 8375, ICANN's private use, Kubernetes."""
_SHOWN: Final = 100


def public_hosts(names: frozenset[str]) -> Hosts:
    """These names at any port, ``localhost``, and each IP address."""
    known = {"localhost", *(name.lower() for name in names)}
    return lambda host: (name := _name(host)) in known or _is_address(name)


def private_hosts(names: frozenset[str]) -> Hosts:
    """As `public_hosts`, and the names of a private network: single labels, this machine's, and its own DNS's."""
    known = public_hosts(names | {socket.gethostname()})

    def is_ours(host: str) -> bool:
        labels = _name(host).split(".")
        return len(labels) == 1 or labels[-1] in _UNREGISTERED or known(host)

    return is_ours


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class HostCheck:
    """ASGI middleware that refuses requests for other hosts. A program may leave the header out, a browser cannot."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not self._hosts(host := Headers(scope=scope).get("host", "")):
            app = PlainTextResponse(f"this port is not at {host[:_SHOWN]}; name it in metrics-hostnames\n", 403)
        await app(scope, receive, send)
