"""A listener's security protocol, under korvet's names and Kafka's. Source: SecurityProtocol"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Security(StrEnum):
    """A listener's protection of connections."""

    PLAINTEXT = "plaintext"
    TLS = "tls"
    SASL_PLAINTEXT = "sasl_plaintext"
    SASL_TLS = "sasl_tls"

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self in (Security.TLS, Security.SASL_TLS)

    @property
    def has_sasl(self) -> bool:
        """True if clients log in."""
        return self in (Security.SASL_PLAINTEXT, Security.SASL_TLS)

    @classmethod
    def parse(cls, text: str) -> Security:
        """The value for one of `NAMES`."""
        return NAMES[text]


NAMES: Final = {one.value: one for one in Security} | {"ssl": Security.TLS, "sasl_ssl": Security.SASL_TLS}
"""All names, Kafka's ``ssl`` and ``sasl_ssl`` included."""


MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""The SASL mechanisms that a listener may offer."""


class ClientAuth(StrEnum):
    """A listener's demand for client certificates. Source: SslClientAuth"""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class NamespaceFrom(StrEnum):
    """The source of the namespace of a listener's clients."""

    SNI = "sni"
    PRINCIPAL = "principal"
