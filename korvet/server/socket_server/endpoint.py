"""An endpoint: a listening socket, with its listener, its front-end, and the rules for its clients."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address

from korvet.api.shared.context import Frontend, Listener
from korvet.security.mapping import PrincipalRules
from korvet.security.protocol import ClientAuth
from korvet.security.tls import Certificates
from korvet.server.tenants.choice import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A bound socket, which is closed when the server ends.

    ``tls`` has the certificates if TLS ends here. With ``is_terminated`` TLS ends at a load balancer, whose header
    describes the client's certificate. ``rules`` map the certificate to a principal. With a ``choice`` clients choose
    their namespaces, and the front-end is the lobby's.
    """

    bound: socket.socket
    listener: Listener
    frontend: Frontend
    choice: Choice | None = None
    tls: Certificates | None = None
    is_terminated: bool = False
    client_auth: ClientAuth = ClientAuth.NONE
    rules: PrincipalRules = field(default_factory=PrincipalRules)
    balancers: tuple[IPv4Network | IPv6Network, ...] = ()

    def trusts(self, host: str) -> bool:
        """True if a load balancer's header from this address is accepted: ``balancers`` has it, or is empty."""
        return not self.balancers or any(ip_address(host.partition("%")[0]) in one for one in self.balancers)

    @property
    def is_plain(self) -> bool:
        """True if each connection begins with a request, in the endpoint's one namespace."""
        return self.tls is None and not self.listener.proxy_protocol and self.choice is None
