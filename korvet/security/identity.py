"""The principal of a connection on a listener without SASL.

It comes from the certificate that the client presented to this process or to a load balancer.
Source: DefaultKafkaPrincipalBuilder
"""

from __future__ import annotations

import ssl

from korvet.errors import KorvetError
from korvet.security.distinguished_name import common_name, subject_of
from korvet.security.mapping import PrincipalRules
from korvet.security.principal import ANONYMOUS, Principal
from korvet.security.protocol import ClientAuth
from korvet.wire.proxy_header import ClientTls


class Refused(KorvetError):
    """The listener refuses the connection."""


def of_certificate(session: ssl.SSLObject, rules: PrincipalRules) -> Principal:
    """The principal of a client's TLS session with this process.

    :raises Refused: the certificate's subject cannot be read.
    :raises NoRule: no rule applies to the subject.
    """
    certificate = session.getpeercert(binary_form=True)
    if certificate is None:
        return ANONYMOUS
    try:
        subject = subject_of(certificate)
    except Exception as error:
        # The library raises errors for some certificates that OpenSSL accepts.
        raise Refused(f"the client's certificate cannot be read: {error}") from None
    return Principal("User", rules.name(subject))


def of_balancer(tls: ClientTls | None, auth: ClientAuth, rules: PrincipalRules) -> Principal:
    """The principal of a client of a TLS-terminating balancer, which passes on only the common name.

    :raises Refused: the client lacks TLS, or the verified certificate that the listener requires.
    :raises NoRule: no rule applies to the name.
    """
    if tls is None or not tls.is_tls:
        raise Refused("the load balancer does not say that the client came over TLS")
    if auth is ClientAuth.NONE:
        return ANONYMOUS
    if tls.is_verified and tls.common_name:
        return Principal("User", rules.name(common_name(tls.common_name)))
    if auth is ClientAuth.REQUIRED:
        raise Refused("the load balancer names no verified client certificate")
    return ANONYMOUS
