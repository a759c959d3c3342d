"""Parts of a config file that are right, and yet lock everybody out or let more in than they seem to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from korvet.configs.values import BrokerValues
from korvet.security.principal import ANONYMOUS
from korvet.security.protocol import ClientAuth, Security
from korvet.settings.file import ConfigFile


def security_warnings(found: ConfigFile) -> Iterator[str]:
    """A sentence for each of them."""
    listeners = found.listeners or (found.serve,)
    for at, listener in enumerate(listeners):
        if listener.get("tls-terminated") and not listener.get("proxy-protocol-from"):
            yield (
                f"{_name(listener, at)} takes a client's name from the header of whoever connects; name the load "
                "balancers in proxy-protocol-from"
            )
        if _security(listener) is Security.SASL_PLAINTEXT:
            yield (
                f"{_name(listener, at)} has logins without TLS: whoever sees the network reads the records, and with "
                "PLAIN the passwords"
            )
    values = BrokerValues(found.broker)
    if values.text("authorizer.class.name"):
        yield from _of_rights(values, listeners)


def _of_rights(broker: BrokerValues, listeners: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    supers = broker.text("super.users")
    if not supers.strip("; ") and not broker.boolean("allow.everyone.if.no.acl.found"):
        yield (
            "rights are on, and super.users names nobody: every client is refused until rules are in Redis; name a "
            "super user, or add rules with: korvet acls add --redis URL"
        )
    nameless = [(at, listener) for at, listener in enumerate(listeners) if not _names_clients(listener)]
    if len(nameless) == len(listeners):
        yield f"rights are on, and no listener tells clients apart: to the rules each of them is {ANONYMOUS}"
    if str(ANONYMOUS) in [one.strip() for one in supers.split(";")]:
        for at, listener in nameless:
            yield f"{_name(listener, at)} makes each of its clients a super user, because super.users has {ANONYMOUS}"


def _security(listener: Mapping[str, Any]) -> Security:
    return Security.parse(listener.get("security", Security.PLAINTEXT))


def _names_clients(listener: Mapping[str, Any]) -> bool:
    return _security(listener).has_sasl or listener.get("tls-client-auth", ClientAuth.NONE) != ClientAuth.NONE


def _name(listener: Mapping[str, Any], at: int) -> str:
    return f"listener {listener['name']}" if "name" in listener else f"listener #{at + 1}"
