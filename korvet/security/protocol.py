"""How a listener protects its connections, under korvet's names and Kafka's. Source: SecurityProtocol"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Security(StrEnum):
    """What a listener demands of its connections."""

    PLAINTEXT = "plaintext"
    TLS = "tls"
    SASL_PLAINTEXT = "sasl_plaintext"
    SASL_TLS = "sasl_tls"

    @property
    def has_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self in (Security.TLS, Security.SASL_TLS)

    @property
    def has_sasl(self) -> bool:
        """Whether its clients log in."""
        return self in (Security.SASL_PLAINTEXT, Security.SASL_TLS)

    @classmethod
    def parse(cls, text: str) -> Security:
        """The value of a name of `NAMES`."""
        return NAMES[text]


NAMES: Final = {one.value: one for one in Security} | {"ssl": Security.TLS, "sasl_ssl": Security.SASL_TLS}
"""All names, Kafka's ``ssl`` and ``sasl_ssl`` included."""


MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""The mechanisms of logins that a listener may have."""


class ClientAuth(StrEnum):
    """Whether a client shows a certificate. Source: SslClientAuth"""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class NamespaceFrom(StrEnum):
    """What tells the namespace of a listener's clients."""

    SNI = "sni"
    PRINCIPAL = "principal"
