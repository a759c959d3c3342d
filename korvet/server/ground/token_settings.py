"""The settings of OAUTHBEARER, from ``[broker]`` under Kafka's names, and the token validator that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from korvet.configs.oauth import NAMESPACE_CLAIM, OAUTH_URL
from korvet.configs.values import BrokerValues
from korvet.errors import ConfigError
from korvet.security.tokens import TokenRules, Tokens

if TYPE_CHECKING:
    from korvet.security.key_source import SourceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The claims that tokens must have, and the source of the keys that signed them."""

    rules: TokenRules
    source: SourceSettings

    def open(self) -> Tokens:
        """The token validator."""
        from korvet.security.key_source import KeySource

        return Tokens(self.rules, KeySource(self.source))


def token_settings(broker: Mapping[str, str]) -> TokenSettings | None:
    """The settings; None if there is no ``sasl.oauthbearer.jwks.endpoint.url``.

    :raises ConfigError: if a setting is not in its range, or one is missing.
    """
    values = BrokerValues(broker)
    if not values.text(OAUTH_URL):
        return None
    from korvet.security.key_source import SourceSettings

    def seconds(name: str) -> float:
        return values.integer(f"sasl.oauthbearer.jwks.endpoint.{name}.ms") / 1000

    rules = TokenRules(
        algorithms=values.words("korvet.sasl.oauthbearer.algorithms"),
        issuer=values.text("sasl.oauthbearer.expected.issuer"),
        audience=tuple(filter(None, values.words("sasl.oauthbearer.expected.audience"))),
        clock_skew_s=values.integer("sasl.oauthbearer.clock.skew.seconds"),
        sub_claim=values.text("sasl.oauthbearer.sub.claim.name"),
        scope_claim=values.text("sasl.oauthbearer.scope.claim.name"),
        namespace_claim=values.text(NAMESPACE_CLAIM),
    )
    for name, is_set in (("issuer", rules.issuer), ("audience", rules.audience)):
        if not is_set and not values.boolean(f"sasl.oauthbearer.allow.unverified.{name}"):
            raise ConfigError(
                f"OAUTHBEARER needs sasl.oauthbearer.expected.{name}, so that tokens for others let nobody in; or set "
                f"sasl.oauthbearer.allow.unverified.{name}"
            )
    if not rules.algorithms or not rules.sub_claim:
        raise ConfigError("korvet.sasl.oauthbearer.algorithms and sasl.oauthbearer.sub.claim.name may not be empty")
    source = SourceSettings(
        url=values.text(OAUTH_URL),
        refresh_s=seconds("refresh"),
        backoff_s=seconds("retry.backoff"),
        most_backoff_s=seconds("retry.backoff.max"),
    )
    return TokenSettings(rules=rules, source=source)
