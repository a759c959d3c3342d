"""A raw connection to a listener with SASL, which sends what a test wants."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import struct
from typing import Any, Self

from tests.oracle.messages import parse_answer, request_frame

PASSWORD = "right"
WITHIN_S = 60.0
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Session:
    """A raw connection to a port of loopback."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: str, version: int, **values: Any) -> None:
        self.socket.sendall(request_frame(api, version, values, 7))

    def receive(self, api: str, version: int) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        return parse_answer(api, version, self._read(size), 7)

    def ask(self, api: str, version: int, **values: Any) -> Any:
        self.send(api, version, **values)
        return self.receive(api, version)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed")
            data += piece
        return data

    def is_closed(self) -> bool:
        """Wait for the end of the connection; False if bytes come instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def is_served(self) -> bool:
        """Whether a request that needs a login is answered."""
        return bool(self.ask("metadata", 1, topics=[])["brokers"])

    # ------------------------------------------------------------------ logins

    def begin(self, mechanism: str) -> None:
        """Choose a mechanism."""
        answer = self.ask("sasl_handshake", 1, mechanism=mechanism)
        assert answer["error_code"] == "NONE", answer

    def step(self, token: bytes, version: int = 2) -> Any:
        return self.ask("sasl_authenticate", version, auth_bytes=token)

    def log_in(self, user: str = "alice", password: str = PASSWORD) -> Any:
        """Log in by PLAIN; the last answer."""
        self.begin("PLAIN")
        return self.step(f"\0{user}\0{password}".encode())

    def log_in_by_token(self, token: str) -> Any:
        """Log in by OAUTHBEARER; the last answer."""
        self.begin("OAUTHBEARER")
        answer = self.step(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        return self.step(b"\x01") if answer["error_code"] == "NONE" and answer["auth_bytes"] else answer

    def log_in_by_scram(self, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> Any:
        """Log in by SCRAM; the last answer."""
        self.begin(mechanism)
        return self.step(self.scram_final(user, password, mechanism))

    def scram_final(self, user: str, password: str, mechanism: str, nonce: str = "abc") -> bytes:
        """The final message of SCRAM, after the first one was sent and answered."""
        name = user.replace("=", "=3D").replace(",", "=2C")
        first = self.step(f"n,,n={name},r={nonce}".encode())
        assert first["error_code"] == "NONE", first
        return final_message(f"n={name},r={nonce}", bytes(first["auth_bytes"]), password, mechanism)


def final_message(bare: str, answer: bytes, password: str, mechanism: str) -> bytes:
    """The final message of a client to a server's first one."""
    told = dict(part.split("=", 1) for part in answer.decode().split(","))
    name, salt = _HASHES[mechanism], base64.b64decode(told["s"])
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, int(told["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    without_proof = f"c=biws,r={told['r']}"
    signed = f"{bare},{answer.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
