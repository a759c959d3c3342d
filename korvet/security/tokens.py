"""The tokens of OAUTHBEARER: JSON Web Tokens signed with one of the issuer's keys.

Only keys of the configured set count. Keys in a token's header (``jku``, ``x5u``, ``jwk``, ``x5c``) are never read, and
critical extensions (``crit``) are refused. The algorithm must be in the configured list; all of these are asymmetric.

Source: BrokerJwtValidator, ClaimValidationUtils; KIP-768, RFC 7519, RFC 8725. As in Kafka's newest sources, not in 4.1,
issuer and audience have to be configured, and a scope's text holds words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from korvet.security.key_source import KeySource

MOST_BYTES: Final = 65_536
"""The longest token."""
_MOST_NAME: Final = 1000
_MOST_HEADER_BYTES: Final = 16_384
_LONGEST_USER_BYTES: Final = 512
"""The longest user name, the same as with a password."""
_FORM: Final = re.compile(r"[-_A-Za-z0-9]+\.[-_A-Za-z0-9]+\.[-_A-Za-z0-9]+")
_SHOWN: Final = 64
_LATEST_S: Final = 2**53
"""Above this, a float is no longer exact to the second."""


class InvalidToken(Exception):
    """The token is invalid. The message is for the log."""


class Token(NamedTuple):
    """The claims of a valid token: the user, and the expiry in Unix seconds.

    ``namespace`` is empty if the token names none, and None if no claim is configured for it.
    """

    user: str
    expires_at: float
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The required claims. An empty issuer or audience is not checked."""

    algorithms: tuple[str, ...]
    issuer: str = ""
    audience: tuple[str, ...] = ()
    clock_skew_s: int = 30
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    namespace_claim: str = ""


class Tokens:
    """Verifies tokens.

    :param keys: the issuer's keys.
    """

    def __init__(self, rules: TokenRules, keys: KeySource) -> None:
        self.keys = keys
        self._rules = rules

    async def verify(self, token: str) -> Token:
        """Verify a token; waits for the keys if they are being read.

        :raises InvalidToken: the token is invalid.
        """
        if len(token) > MOST_BYTES:
            raise InvalidToken(f"it has {len(token)} bytes; the most are {MOST_BYTES}")
        if not _FORM.fullmatch(token):
            raise InvalidToken("it is no signed JSON Web Token")
        algorithm, name = self._header(token)
        key = await self.keys.find(name, algorithm)
        if key is None:
            shown = "names no key, and several would fit or none" if name is None else f"has the key {name[:_SHOWN]!r}"
            raise InvalidToken(f"it {shown}, and the issuer's keys have none such for {algorithm}")
        return self._token(self._claims(token, key.public, algorithm))

    def _header(self, token: str) -> tuple[str, str | None]:
        """The algorithm and the key's name."""
        import jwt

        if token.index(".") > _MOST_HEADER_BYTES:
            raise InvalidToken(f"its header has more than {_MOST_HEADER_BYTES} bytes")
        try:
            header: Any = jwt.get_unverified_header(token)
        except Exception:
            # The library's JSON parser raises further errors, such as for deep nesting.
            raise InvalidToken("its header cannot be read") from None
        algorithm, name = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._rules.algorithms:
            raise InvalidToken("its algorithm is not enabled")
        if "crit" in header:
            raise InvalidToken("its header has extensions that are not known")
        if not isinstance(name, str | None) or len(name or "") > _MOST_NAME:
            raise InvalidToken(f"its key's name is no text, or longer than {_MOST_NAME} characters")
        return algorithm, name

    def _claims(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        import jwt

        rules = self._rules
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=rules.issuer or None,
                audience=rules.audience or None,
                leeway=rules.clock_skew_s,
                options={
                    "require": ["exp", "iat"],
                    "verify_aud": bool(rules.audience),
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except jwt.PyJWTError as error:
            raise InvalidToken(str(error)) from None
        except Exception:
            # Infinite times, or deep nesting.
            raise InvalidToken("its claims cannot be read") from None
        return claims

    def _token(self, claims: dict[str, Any]) -> Token:
        rules = self._rules
        user = claims.get(rules.sub_claim)
        if not isinstance(user, str) or not user.strip():
            raise InvalidToken(f"its claim {rules.sub_claim!r} is no text, or blank")
        if len(user.encode(errors="surrogatepass")) > _LONGEST_USER_BYTES or not user.isprintable():
            raise InvalidToken(
                f"its claim {rules.sub_claim!r} has more than {_LONGEST_USER_BYTES} bytes, or characters that cannot "
                "be shown"
            )
        if not _are_scopes(claims.get(rules.scope_claim, [])):
            raise InvalidToken(f"its claim {rules.scope_claim!r} is no list of different scopes")
        for name in ("exp", "iat", "nbf"):
            claim = claims.get(name, 0)
            if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim < _LATEST_S:
                raise InvalidToken(f"its claim {name!r} is no number of seconds since 1970")
        if claims["exp"] < max(claims["iat"], claims.get("nbf", 0)):
            raise InvalidToken("it expires before it was issued, or before it counts")
        return Token(user.strip(), float(claims["exp"]), self._namespace(claims))

    def _namespace(self, claims: dict[str, Any]) -> str | None:
        if not (claim := self._rules.namespace_claim):
            return None
        namespace = claims.get(claim, "")
        if not isinstance(namespace, str) or len(namespace) > _LONGEST_USER_BYTES:
            raise InvalidToken(f"its claim {claim!r} is no text, or too long")
        return namespace


def _are_scopes(claim: Any) -> bool:
    """True for a text of distinct words (RFC 6749, 3.3), or a list of distinct texts that are not blank."""
    scopes = claim.split() if isinstance(claim, str) else claim
    if not isinstance(scopes, list) or not all(isinstance(one, str) and one.strip() for one in scopes):
        return False
    return len({one.strip() for one in scopes}) == len(scopes)
