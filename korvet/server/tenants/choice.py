"""The choice of a namespace by a listener's clients: by the server name of their TLS connection, or by their login.

If both name one, they must agree. On a listener with logins a client is in no namespace before its login has succeeded,
so an unknown tenant looks like a wrong password. Client ids are never used.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import anyio

from korvet.api.shared.context import Frontend, Listener
from korvet.api.shared.nodes import Nodes, named_nodes
from korvet.errors import KorvetError
from korvet.security.principal import Principal
from korvet.security.protocol import NamespaceFrom
from korvet.security.scram import Credentials, Judge, LoginRefused
from korvet.security.tls import server_name_of
from korvet.server.ground.host_pattern import HostName
from korvet.server.ground.settings import ListenerSettings
from korvet.server.tenants.namespaces import Namespaces, NoEntry, TenantConnection, TooMany
from korvet.store.security.users import Credential, CredentialKey
from korvet.wire.proxy_header import ProxyHeader, client_tls

_MOST_LISTENERS: Final = 2000


class Destination(NamedTuple):
    """The namespace named by a login or a certificate, and the user there; None without one."""

    namespace: str | None
    user: str


class Choice:
    """How the clients of one listener choose."""

    def __init__(self, settings: ListenerSettings, listener: Listener, namespaces: Namespaces) -> None:
        self.namespaces = namespaces
        self.by_login = settings.namespace_from is NamespaceFrom.PRINCIPAL
        self._pattern = settings.host_pattern
        self._ports = range(listener.advertised_port, (settings.advertised_last_port or listener.advertised_port) + 1)
        self._listener = listener
        self._listeners: dict[str, Listener] = {}

    @property
    def lobby(self) -> Frontend:
        """The front-end of connections without a namespace so far."""
        return self.namespaces.lobby

    def host_name(self, session: ssl.SSLObject | None, header: ProxyHeader) -> HostName | None:
        """The server name (SNI) that a client sent to this process, or to the load balancer where TLS ended."""
        if self._pattern is None:
            return None
        return self._pattern.read(client_tls(header).authority if session is None else server_name_of(session))

    def destination(self, name: str, host_name: HostName | None, claimed: str | None = None) -> Destination:
        """The destination of an authenticated name; it must agree with the server name.

        :param claimed: the namespace that a token names, as `Token.namespace`.
        """
        by_host = None if host_name is None else host_name.namespace
        user, namespace = name, by_host
        if claimed is not None:
            namespace = claimed
        elif self.by_login:
            user, _, namespace = name.rpartition("@")
        agrees = namespace == by_host or (self.by_login and host_name is None)
        return Destination(namespace, user) if user and agrees else Destination(None, name)

    def listener(self, namespace: str) -> Listener:
        """The listener as clients of a namespace see it: with host names of their own."""
        if self._pattern is None:
            return self._listener
        found = self._listeners.get(namespace)
        if found is None:
            if len(self._listeners) >= _MOST_LISTENERS:
                self._listeners.clear()
            pattern = self._pattern
            nodes: Nodes = named_nodes(partial(pattern.host, namespace), self._ports, is_by_id=pattern.has_node)
            host = pattern.host(namespace, nodes.own_id)
            found = self._listeners[namespace] = replace(self._listener, nodes=nodes, advertised_host=host)
        return found

    def tenant_id(self, destination: Destination) -> str | None:
        """The id of the active tenant of a destination."""
        tenant = None if destination.namespace is None else self.namespaces.tenants.active(destination.namespace)
        return None if tenant is None else tenant.id

    async def enter(
        self, destination: Destination, connection: TenantConnection, tenant_id: str | None = None
    ) -> Frontend:
        """The front-end of a destination.

        :param tenant_id: the id of the only tenant to enter; None for any with the name.
        :raises NoEntry: there is none, or it admits no client.
        """
        if destination.namespace is None:
            raise NoEntry("the client names no tenant")
        try:
            return await self.namespaces.enter(destination.namespace, connection, tenant_id)
        except TooMany as refused:
            await anyio.sleep(refused.wait_s)
            raise


class ChosenRealm:
    """The realm of one connection's logins: their users belong to the namespace that the client chooses."""

    def __init__(self, choice: Choice, connection: TenantConnection, host_name: HostName | None) -> None:
        self._choice = choice
        self._connection = connection
        self._host_name = host_name
        """The namespace and node in the server name, if it matches the pattern."""
        self._tenant_id: str | None = None
        """The id of the tenant whose credentials the login uses. A later tenant may have the same name."""
        self.frontend: Frontend | None = None
        """The id of the tenant whose namespace the client has entered."""

    async def judge(self, name: str) -> Judge:
        destination = self._choice.destination(name, self._host_name)
        self._tenant_id = self._tenant_id or self._choice.tenant_id(destination)
        return _CredentialsOfUser(
            await self._choice.namespaces.credentials(destination.namespace), name, destination.user
        )

    async def admit(self, name: str, claimed: str | None = None) -> str:
        destination = self._choice.destination(name, self._host_name, claimed)
        if self.frontend is not None:
            if self.frontend.namespace.name != destination.namespace:
                raise LoginRefused("it logged in again in another namespace")
            return destination.user
        try:
            self.frontend = await self._choice.enter(destination, self._connection, self._tenant_id)
        except NoEntry as refused:
            if isinstance(refused, TooMany):
                # Clients give up after a failed login, but retry after a closed connection.
                self._connection.abort()
            raise LoginRefused(str(refused)) from None
        with suppress(KorvetError):
            # The namespace's view may be older than the credentials that this login used.
            await self.frontend.users.refresh()
        return destination.user

    def has(self, key: CredentialKey) -> bool:
        return self.frontend is not None and key in self.frontend.users.credentials


class _CredentialsOfUser:
    """The credentials of one login, whose name contains more than the user's name."""

    def __init__(self, credentials: Credentials, name: str, user: str) -> None:
        self._credentials = credentials
        self._name = name
        self._user = user

    def find(self, mechanism: str, user: str) -> tuple[Credential, bool]:
        """As `Credentials.find`, by the name of the login."""
        return self._credentials.find(mechanism, self._user_of(user))

    def best(self, user: str) -> tuple[str, Credential, bool]:
        """As `Credentials.best`, by the name of the login."""
        return self._credentials.best(self._user_of(user))

    def _user_of(self, name: str) -> str:
        return self._user if name == self._name else name


def split_principal(choice: Choice, principal: Principal, host_name: HostName | None) -> tuple[Destination, Principal]:
    """The destination in a certificate's principal, and the principal there."""
    destination = choice.destination(principal.name, host_name)
    return destination, Principal(principal.type, destination.user)
