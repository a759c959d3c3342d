"""SCRAM-SHA-256 and SCRAM-SHA-512 on the server, without I/O (RFC 5802, RFC 7677).

An unknown user gets a salt and iterations like a known one, and fails at the same step with the same text. The salt is
derived from the namespace's secret, so it is the same at each try and each front-end.

Source: ScramSaslServer, ScramFormatter, ScramMessages
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from korvet.security.salted import HASHES, MIN_ITERATIONS, keys_of, salted_password
from korvet.store.security.users import Credential, CredentialKey

_STRONGEST_FIRST: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
TYPES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms by their numbers in Kafka's protocol (org.apache.kafka.clients.admin.ScramMechanism)."""
MAX_ITERATIONS: Final = 16384
"""The iterations of a credential, as in Kafka."""
_NONCE_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKAS_SALT = re.compile(rb"[0-9a-z]{22,26}")
_VALUE: Final = r"[^\x00=,]|=2C|=3D"
_EXTENSIONS: Final = r"(?:,[a-zA-Z]+=[^\x00,]+)*"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>(?:{_VALUE})+))?,(?P<bare>(?:m=[^\x00,]+,)?n=(?P<user>(?:{_VALUE})+),"
    rf"r=(?P<nonce>[\x21-\x2B\x2D-\x7E]+)(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<bare>c=(?P<binding>[a-zA-Z0-9+/=]+),r=(?P<nonce>[\x21-\x2B\x2D-\x7E]+){_EXTENSIONS}),"
    r"p=(?P<proof>[a-zA-Z0-9+/=]+)"
)


class LoginRefused(Exception):
    """The login failed. The message is for the log.

    :param client_text: the text for the client; by default none.
    """

    def __init__(self, reason: str, client_text: str | None = None) -> None:
        super().__init__(reason)
        self.client_text = client_text


def make_credential(mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> Credential:
    """A credential for a password, with a new salt in the form of Kafka's tools."""
    salt = new_salt()
    return derive_credential(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def new_salt() -> bytes:
    """A random salt in the form of Kafka's tools."""
    return _base36(secrets.randbits(_NONCE_BITS)).encode()


def derive_credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """The credential for a salted password."""
    keys = keys_of(mechanism, salted)
    return Credential(salt, keys.stored, keys.server, iterations)


class Judge(Protocol):
    """The credentials that apply to one login."""

    def find(self, mechanism: str, user: str) -> tuple[Credential, bool]:
        """The credential of a user, or a false one; and whether it is true."""

    def best(self, user: str) -> tuple[str, Credential, bool]:
        """The strongest mechanism of a user's credentials, that credential, and whether it is true."""


def name_in(message: bytes) -> str:
    """The user name in a client's first message.

    :raises LoginRefused: the message is malformed.
    """
    found = _CLIENT_FIRST.fullmatch(_text_of(message))
    if found is None:
        raise LoginRefused("this is no first message of SCRAM without channel binding")
    return _unescaped(found["user"])


class _Shape(NamedTuple):
    """The part of a credential that a client can see. ``salt_bytes`` is 0 for salts in Kafka's form."""

    iterations: int
    salt_bytes: int


class Credentials:
    """The credentials of users, with false ones for unknown users.

    A false credential has the most common shape of its mechanism. Logins share one view, because finding the shapes
    takes a scan of all credentials.
    """

    def __init__(self, known: Mapping[CredentialKey, Credential], secret: bytes) -> None:
        self.known = known
        self._secret = secret
        self._shapes: dict[str, _Shape] = {}
        self._common_best = ""

    def find(self, mechanism: str, user: str) -> tuple[Credential, bool]:
        """The credential of a user, or a false one; and whether it is true."""
        false = self._false(mechanism, user)
        found = self.known.get(CredentialKey(mechanism, user))
        return (false, False) if found is None else (found, True)

    def best(self, user: str) -> tuple[str, Credential, bool]:
        """The strongest mechanism of a user's credentials, that credential, and true if it is real.

        An unknown user gets a false one of the most common mechanism.
        """
        for mechanism in _STRONGEST_FIRST:
            if CredentialKey(mechanism, user) in self.known:
                return mechanism, *self.find(mechanism, user)
        if not self._common_best:
            self._common_best = self._count_best()
        return self._common_best, *self.find(self._common_best, user)

    def _count_best(self) -> str:
        users = {name: {key.user for key in self.known if key.mechanism == name} for name in _STRONGEST_FIRST}
        counts, seen = dict.fromkeys(_STRONGEST_FIRST, 0), set[str]()
        for name in _STRONGEST_FIRST:
            counts[name] = len(users[name] - seen)
            seen |= users[name]
        return max(_STRONGEST_FIRST, key=lambda name: counts[name])

    def _false(self, mechanism: str, user: str) -> Credential:
        shape = self._shapes.get(mechanism)
        if shape is None:
            shape = self._shapes[mechanism] = self._common_shape(mechanism)
        noise = hmac.digest(self._secret, f"{mechanism}|{user}".encode(), "sha512")
        salt = _base36(int.from_bytes(noise[:17], "big") >> (17 * 8 - _NONCE_BITS)).encode()
        if shape.salt_bytes:
            salt = hashlib.shake_256(noise).digest(shape.salt_bytes)
        key = noise[: hashlib.new(HASHES[mechanism]).digest_size]
        return Credential(salt, key, key, shape.iterations)

    def _common_shape(self, mechanism: str) -> _Shape:
        shapes = Counter(_shape(one) for key, one in self.known.items() if key.mechanism == mechanism)
        return max(shapes, key=lambda shape: (shapes[shape], shape), default=_Shape(MIN_ITERATIONS, 0))


def _shape(credential: Credential) -> _Shape:
    is_kafkas = _KAFKAS_SALT.fullmatch(credential.salt)
    return _Shape(credential.iterations, 0 if is_kafkas else len(credential.salt))


class ScramServer:
    """One login. `step` takes the client's two messages and then sets ``user``.

    A login succeeds only if its user has the same credential at both steps. Set ``credentials`` to the current ones
    before the second.
    """

    def __init__(self, mechanism: str, credentials: Judge) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self.credentials = credentials
        self._credential: Credential | None = None
        self._is_known = False
        self.name = self._bare = self._first = self._nonce = self._binding = ""
        self.user: str | None = None

    def step(self, message: bytes) -> bytes:
        """The answer to a client's message.

        :raises LoginRefused: the login has failed.
        """
        text = _text_of(message)
        if self._credential is None:
            return self._begin(text)
        credential, self._credential = self._credential, None
        return self._end(text, credential)

    def _begin(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None or self._bare:
            raise LoginRefused("this is no first message of SCRAM without channel binding")
        self.name = _unescaped(found["user"])
        if found["authzid"] and _unescaped(found["authzid"]) != self.name:
            raise LoginRefused("the authorization id is another user")
        if ",tokenauth=true" in found["extensions"]:
            raise LoginRefused("delegation tokens are not served")
        self._credential, self._is_known = self.credentials.find(self._mechanism, self.name)
        self._bare, self._binding = found["bare"], text[: found.start("bare")]
        self._nonce = found["nonce"] + _base36(secrets.randbits(_NONCE_BITS))
        salt = base64.b64encode(self._credential.salt).decode()
        self._first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._first.encode()

    def _end(self, text: str, credential: Credential) -> bytes:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise LoginRefused("this is no final message of SCRAM")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise LoginRefused("the nonce is another one")
        if _decoded(found["binding"]) != self._binding.encode():
            raise LoginRefused("the channel binding is another one")
        signed = f"{self._bare},{self._first},{found['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proof = _decoded(found["proof"]).ljust(len(signature), b"\0")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=False))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not (is_right and len(proof) == len(signature) and self._is_known):
            raise LoginRefused("invalid credentials")
        if self.credentials.find(self._mechanism, self.name) != (credential, True):
            raise LoginRefused("its credential has changed since the first step")
        self.user = self.name
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, self._hash))


def _text_of(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise LoginRefused("a SCRAM message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise LoginRefused("a SCRAM message is not base64") from None


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
