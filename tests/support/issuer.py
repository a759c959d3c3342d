"""An issuer of tokens for tests: its keys, its key set in a file or by https, and the tokens that it signs."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.certificates import Pair

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"
RULES = {"sasl.oauthbearer.expected.issuer": ISSUER, "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}"}
"""What a broker expects of this issuer's tokens."""

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def make_key(algorithm: str = "ES256") -> PrivateKey:
    """A key for an algorithm."""
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm.startswith("ES"):
        curves: dict[str, ec.EllipticCurve] = {"256": ec.SECP256R1(), "384": ec.SECP384R1(), "512": ec.SECP521R1()}
        return ec.generate_private_key(curves[algorithm[2:]])
    return rsa.generate_private_key(65537, 2048)


def public_jwk(key: PrivateKey, name: str | None, **more: Any) -> dict[str, Any]:
    """The public part of a key, as a key set lists it."""
    public: Any = key.public_key()
    writers: dict[type, Any] = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    writer = next((one for kind, one in writers.items() if isinstance(key, kind)), OKPAlgorithm)
    jwk: dict[str, Any] = json.loads(writer.to_jwk(public))
    jwk.pop("key_ops", None)
    return {**jwk, **({} if name is None else {"kid": name}), **more}


def claims(user: str = "alice", lasts_s: float = 3600, **changed: Any) -> dict[str, Any]:
    """The claims of a valid token; a changed one is left out if it is None."""
    now = time.time()
    told = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": int(now), "exp": int(now + lasts_s), **changed}
    return {name: value for name, value in told.items() if value is not None}


def part(told: Any) -> str:
    """A part of a token."""
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


class Issuer:
    """An issuer with one key, whose set is in the file ``path``."""

    def __init__(self, path: Path, algorithm: str = "ES256") -> None:
        self.path = path
        self.algorithm = algorithm
        self.name = ""
        self._number = 0
        self._listed: list[dict[str, Any]] = []
        self.rotate()

    @property
    def url(self) -> str:
        return self.path.as_uri()

    @property
    def settings(self) -> dict[str, str]:
        """The broker settings that trust this issuer."""
        return {"sasl.oauthbearer.jwks.endpoint.url": self.url, **RULES}

    def rotate(self, *, keeps_old: bool = False) -> None:
        """Sign with a new key, and list that alone or beside the former ones."""
        self._number += 1
        self.name, self.key = f"key-{self._number}", make_key(self.algorithm)
        self._listed = [*(self._listed if keeps_old else ()), public_jwk(self.key, self.name)]
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(self.key_set()))
        beside.replace(self.path)

    def key_set(self) -> dict[str, Any]:
        return {"keys": self._listed}

    def sign(self, told: dict[str, Any], header: dict[str, Any] | None = None) -> str:
        """A token with these claims."""
        text = json.dumps(told).encode()
        return jwt.api_jws.encode(text, self.key, self.algorithm, {"kid": self.name, "typ": "JWT", **(header or {})})

    def token(self, user: str = "alice", lasts_s: float = 3600, **changed: Any) -> str:
        """A token for a user."""
        return self.sign(claims(user, lasts_s, **changed))


Answer = Callable[[BaseHTTPRequestHandler], None]


class KeyServer:
    """An https server whose answers a function writes; it counts the requests."""

    def __init__(self, pair: Pair, answer: Answer) -> None:
        self.requests = 0
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                try:
                    outer.answer(self)
                except OSError:
                    # The client has enough.
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}/keys"

    @contextmanager
    def running(self) -> Iterator[KeyServer]:
        """Serve for the time of the block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def answer_with(body: bytes, status: int = 200, **headers: str) -> Answer:
    """An answer with a body and a length."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer
