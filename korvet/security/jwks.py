"""The public keys that sign tokens (RFC 7517), and the key for a token. Without I/O.

A token names its key (``kid``). Each algorithm accepts keys of its own kind only, so a public key never serves as the
secret of an HMAC. Keys of unknown kinds, for encryption, too short or too long, are left out.

Source: VerificationJwkSelector of jose4j; RFC 7518, RFC 8037, RFC 8725
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

MOST_KEYS: Final = 100
"""The keys of an issuer."""
_LEAST_RSA_BITS: Final = 2048
_MOST_RSA_BITS: Final = 16_384

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey


def _is_rsa(key: PublicKey) -> bool:
    return isinstance(key, rsa.RSAPublicKey)


def _is_on(curve: type[ec.EllipticCurve]) -> Callable[[PublicKey], bool]:
    return lambda key: isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, curve)


def _is_edwards(key: PublicKey) -> bool:
    return isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)


_FITS: Final[Mapping[str, Callable[[PublicKey], bool]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), _is_rsa),
    "ES256": _is_on(ec.SECP256R1),
    "ES384": _is_on(ec.SECP384R1),
    "ES512": _is_on(ec.SECP521R1),
    "EdDSA": _is_edwards,
}
_PUBLIC: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "RSA": (RSAAlgorithm, ("n", "e")),
    "EC": (ECAlgorithm, ("crv", "x", "y")),
    "OKP": (OKPAlgorithm, ("crv", "x")),
}
"""The reader of each key type, and the members passed to it: never a private key's."""


class KeysUnreadable(Exception):
    """The text is no usable key set. The message is for the log."""


class Key(NamedTuple):
    """A public key. ``name`` and ``algorithm`` are None if the set omits them."""

    name: str | None
    algorithm: str | None
    public: PublicKey


class KeySet(NamedTuple):
    """The keys of one read, in the set's order."""

    keys: Sequence[Key]

    def find(self, name: str | None, algorithm: str) -> Key | None:
        """The key for a token's ``kid`` and ``alg``, or None; without a ``kid``, the only key that fits."""
        fitting = [
            key
            for key in self.keys
            if _FITS[algorithm](key.public)
            and key.algorithm in (None, algorithm)
            and (name is None or key.name == name)
        ]
        return fitting[0] if len(fitting) == 1 or (name is not None and fitting) else None


def parse_jwks(text: bytes) -> KeySet:
    """The keys of a JSON Web Key Set.

    :raises KeysUnreadable: the text is no key set, has too many keys, or none that can verify a token.
    """
    try:
        listed = json.loads(text)["keys"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise KeysUnreadable("it is no JSON Web Key Set") from None
    if not isinstance(listed, list):
        raise KeysUnreadable("it is no JSON Web Key Set")
    if len(listed) > MOST_KEYS:
        raise KeysUnreadable(f"it has {len(listed)} keys; the most are {MOST_KEYS}")
    keys = [key for one in listed if (key := _parse_key(one)) is not None]
    if not keys:
        raise KeysUnreadable("it has no key that can verify a token")
    return KeySet(keys)


def _parse_key(jwk: Any) -> Key | None:
    if not isinstance(jwk, dict) or jwk.get("use") not in (None, "sig"):
        return None
    name, algorithm, kind = jwk.get("kid"), jwk.get("alg"), jwk.get("kty")
    if not isinstance(name, str | None) or not isinstance(algorithm, str | None) or kind not in ("RSA", "EC", "OKP"):
        return None
    reader, members = _PUBLIC[kind]
    try:
        public: Any = reader.from_jwk({"kty": kind, **{member: jwk[member] for member in members}})
    except Exception:
        # The library raises its own errors for keys that it rejects.
        return None
    if isinstance(public, rsa.RSAPublicKey) and not _LEAST_RSA_BITS <= public.key_size <= _MOST_RSA_BITS:
        return None
    return Key(name, algorithm, public)
