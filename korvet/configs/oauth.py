"""The broker configs of OAUTHBEARER, under Kafka's names (SaslConfigs). Only the config file sets them."""

from __future__ import annotations

from typing import Final

from korvet.configs.types import Check, Config, Kind, at_least, is_key_url, one_of

OAUTH_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
NAMESPACE_CLAIM: Final = "korvet.sasl.oauthbearer.namespace.claim.name"
TOKEN_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""The signature algorithms of tokens, all asymmetric."""


def _config(name: str, kind: Kind, default: str | None, documentation: str, check: Check | None = None) -> Config:
    return Config(name=name, kind=kind, default=default, documentation=documentation, check=check, read_only=True)


OAUTH_CONFIGS: Final = (
    _config(OAUTH_URL, Kind.STRING, None,
            "The JSON Web Key Set of the issuer of tokens, by https: or file:. OAUTHBEARER needs it.", is_key_url),
    _config("sasl.oauthbearer.jwks.endpoint.refresh.ms", Kind.LONG, "3600000", "Time between two reads of the keys.",
            at_least(1000)),
    _config("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Kind.LONG, "100",
            "Pause after a failure to read the keys; it doubles with each further one.", at_least(1)),
    _config("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Kind.LONG, "10000",
            "The longest pause after a failure to read the keys.", at_least(1)),
    _config("sasl.oauthbearer.expected.issuer", Kind.STRING, None, "The issuer that a token must name."),
    _config("sasl.oauthbearer.allow.unverified.issuer", Kind.BOOLEAN, "false",
            "Whether OAUTHBEARER may be used without an expected issuer."),
    _config("sasl.oauthbearer.expected.audience", Kind.LIST, None, "Audiences of which a token must name one."),
    _config("sasl.oauthbearer.allow.unverified.audience", Kind.BOOLEAN, "false",
            "Whether OAUTHBEARER may be used without expected audiences."),
    _config("sasl.oauthbearer.clock.skew.seconds", Kind.INT, "30", "How much the issuer's clock may differ.",
            at_least(0)),
    _config("sasl.oauthbearer.sub.claim.name", Kind.STRING, "sub", "The claim of a token that names the user."),
    _config(NAMESPACE_CLAIM, Kind.STRING, None,
            "The claim of a token that names the tenant. With it a token opens no other namespace."),
    _config("sasl.oauthbearer.scope.claim.name", Kind.STRING, "scope",
            "The claim of a token that names its scopes. Korvet checks only their form."),
    _config("korvet.sasl.oauthbearer.algorithms", Kind.LIST, ",".join(TOKEN_ALGORITHMS),
            "Algorithms by which tokens may be signed.", one_of(*TOKEN_ALGORITHMS)),
    _config("korvet.sasl.oauthbearer.without.tls", Kind.BOOLEAN, "false",
            "Whether OAUTHBEARER may be used without TLS, which shows tokens to the network."),
)  # fmt: skip
