"""A broker with a listener for each way to choose a tenant, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from korvet.security.protocol import ClientAuth, NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.tenants import PASSWORD, Closed, connected, create_tenant

LOGIN, BOTH, SNI, CERTIFICATE, FIXED, TERMINATED, PASSED = range(7)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
BROKER = {"korvet.sasl.plain.without.tls": "true", "korvet.sasl.oauthbearer.without.tls": "true"}
LISTENER = ListenerSettings(
    port=0, name="login", namespace_from=NamespaceFrom.PRINCIPAL, security=Security.SASL_PLAINTEXT, sasl=MECHANISMS
)
HOST = "b{node}-{namespace}.kafka.example"


@contextmanager
def running_tenants(authority: Authority, issuer: Issuer) -> Iterator[KorvetServer]:
    """A broker with the tenants acme and globex, both with the user alice, and with a fixed namespace."""
    pair = authority.server(["*.kafka.example"])
    tls: dict[str, Any] = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}
    by_login, by_name = NamespaceFrom.PRINCIPAL, NamespaceFrom.SNI
    named: dict[str, Any] = {"advertised_host": HOST, "advertised_port": 9093, **tls}
    listeners = [
        replace(LISTENER, sasl=(*MECHANISMS, "OAUTHBEARER")),
        ListenerSettings(port=0, name="both", namespace_from=by_login, security=Security.SASL_TLS,
                         sasl=(*MECHANISMS, "OAUTHBEARER"), **named),
        ListenerSettings(port=0, name="sni", namespace_from=by_name, security=Security.SASL_TLS, sasl=MECHANISMS,
                         **named),
        ListenerSettings(port=0, name="certificate", namespace_from=by_login, security=Security.TLS, **named,
                         tls_client_auth=ClientAuth.REQUIRED,
                         principal_rules=r"RULE:^CN=([^,]+),O=([^,]+)$/$1@$2/"),
        ListenerSettings(port=0, name="fixed", namespace="fixed"),
        ListenerSettings(port=0, name="terminated", namespace_from=by_name, security=Security.SASL_TLS,
                         sasl=MECHANISMS, tls_terminated=True, proxy_protocol=True, advertised_host=HOST,
                         advertised_port=9093),
        ListenerSettings(port=0, name="passed", namespace_from=by_name, security=Security.SASL_TLS, sasl=MECHANISMS,
                         proxy_protocol=True, **named),
    ]  # fmt: skip
    with running_broker(listeners=listeners, broker={**BROKER, **issuer.settings}) as running:
        for name in ("acme", "globex"):
            create_tenant(running, name)
        yield running
        assert "Traceback" not in running.log


def failure(broker: KorvetServer, name: str, password: str = PASSWORD, at: int = LOGIN) -> Any:
    """The answer to a login that fails; afterwards the connection is closed."""
    with connected(broker.ports[at]) as client:
        answer = client.log_in(name, password)
        assert client.is_closed()
        return answer


def is_let_in(broker: KorvetServer, name: str) -> bool:
    """Whether a login succeeds; else the connection ends without an answer, after which clients try again."""
    with connected(broker.port) as client:
        try:
            answer = client.log_in(name)
        except Closed:
            return False
        assert answer["error_code"] == "NONE"
        return True
