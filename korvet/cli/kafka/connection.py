"""One blocking connection to a broker: TCP, TLS, the login, and then one request at a time."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial.errors import DecodeError

from korvet.cli.kafka.address import Address
from korvet.cli.kafka.errors import BrokerError, ConnectionLost, UnfitSettings
from korvet.cli.kafka.framing import (
    MAX_FRAME_BYTES,
    NoFrame,
    Request,
    answer_to,
    decode,
    encode,
    receive_frame,
    request,
)
from korvet.cli.kafka.login import Login
from korvet.cli.kafka.misfit import closed_handshake, closed_request, refused_handshake, refused_login, tls_refusal
from korvet.cli.kafka.security import ClientSecurity
from korvet.security.scram_client import UntrustedServer

_SHARE_OF_SESSION: Final = 0.9
"""The part of a session after which the client logs in again (KIP-368); librdkafka takes the same."""
_LOGIN_FRAME_BYTES: Final = 1 << 19


class Connection:
    """A connection that is logged in if the settings say so.

    :raises BrokerError: if no broker answers, or TLS or the login fails.
    """

    def __init__(self, address: Address, security: ClientSecurity) -> None:
        self.address = address
        self.is_open = True
        self.is_introduced = False
        self._security = security
        self._correlation_id = 0
        self._has_answered = False
        self._login_due = float("inf")
        # The peer is not authenticated yet.
        self._most_bytes = MAX_FRAME_BYTES if security.login is None else _LOGIN_FRAME_BYTES
        self._socket = _opened(address, security)
        if security.login is not None:
            self._log_in(security.login)

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def ask(self, request: Request, answer: Any = None) -> Any:
        """Send a request and wait for its answer.

        :param answer: the class of the answer, if it is another one than kio's.
        :raises BrokerError: if the connection breaks, or the answer does not fit the schema.
        """
        return self.ask_all([request], answer)[0]

    def ask_all(self, requests: Sequence[Request], answer: Any = None) -> list[Any]:
        """As `ask`, of requests of one API that do not wait for each other's answers."""
        if self._security.login is not None and time.monotonic() > self._login_due:
            self._log_in(self._security.login)
        return self._ask(requests, answer)

    def _ask(self, requests: Sequence[Request], answer: Any = None) -> list[Any]:
        name = requests[0].schema.__name__.removesuffix("Request")
        try:
            responses = self._exchange(requests, answer or answer_to(requests[0]), name)
        except BaseException:
            # Else the next request would get this one's late answer.
            self.close()
            raise
        self._has_answered = True
        return responses

    def _exchange(self, requests: Sequence[Request], answer: Any, name: str) -> list[Any]:
        try:
            for request in requests:
                self._correlation_id += 1
                self._socket.sendall(encode(request, self._correlation_id, self._security.client_id))
            return [decode(answer, receive_frame(self._socket, self._most_bytes)) for _ in requests]
        except TimeoutError:
            raise ConnectionLost(
                f"{self.address} did not answer {name} within {self._security.timeout_s:g} s"
            ) from None
        except NoFrame as error:
            raise self._unanswered(name, error.start) from None
        except ssl.SSLError as error:
            lost = ConnectionLost(f"lost the connection to {self.address} during {name}: {error.reason or error}")
            raise tls_refusal(self.address, error) or lost from None
        except ConnectionResetError:
            raise self._unanswered(name, b"") from None
        except OSError as error:
            raise ConnectionLost(f"lost the connection to {self.address} during {name}: {error}") from None
        except DecodeError as error:
            raise BrokerError(f"the answer of {self.address} to {name} cannot be decoded: {error}") from None

    def _unanswered(self, name: str, start: bytes) -> BrokerError:
        """The error for a connection that ended, or went on with no frame."""
        reason = None if self._has_answered else closed_request(self.address, self._security, start)
        if reason is not None:
            return reason
        if start:
            size = int.from_bytes(start)
            return BrokerError(f"{self.address} does not speak Kafka's protocol (a frame of {size} bytes)")
        return ConnectionLost(
            f"{self.address} closed the connection during {name}: is it a Kafka broker, and does it support this "
            "request?"
        )

    def _log_in(self, login: Login) -> None:
        """Log in, at first or again (KIP-368).

        :raises UnfitSettings: if the broker does not let the user in, or does not prove that it knows the user.
        """
        began = time.monotonic()
        try:
            lifetime_s = self._authenticate(login)
        except BaseException as error:
            self.close()
            if isinstance(error, UntrustedServer):
                raise UnfitSettings(f"{self.address} is no broker to log in at: {error}") from None
            raise
        self._most_bytes = MAX_FRAME_BYTES
        self._login_due = began + _SHARE_OF_SESSION * lifetime_s if lifetime_s else float("inf")

    def _authenticate(self, login: Login) -> float:
        """Exchange the messages of a login; returns the seconds of the session, 0 if it has no end."""
        (offered,) = self._ask([request("sasl_handshake", 1, mechanism=login.mechanism)])
        if offered.error_code is not ErrorCode.none:
            raise refused_handshake(self.address, login, offered, is_tls=self._security.tls is not None)
        exchange = login.begin()
        message = next(exchange)
        while True:
            (answer,) = self._ask([request("sasl_authenticate", 2, auth_bytes=message)])
            if answer.error_code is not ErrorCode.none:
                raise refused_login(self.address, login, answer.error_code, answer.error_message)
            try:
                message = exchange.send(answer.auth_bytes)
            except StopIteration:
                return float(answer.session_lifetime.total_seconds())


def _opened(address: Address, security: ClientSecurity) -> socket.socket:
    try:
        plain = socket.create_connection(address, timeout=security.timeout_s)
    except (OSError, UnicodeError) as error:
        raise BrokerError(
            f"no broker answers at {address}: {getattr(error, 'strerror', None) or error}; "
            "start one with 'korvet serve', or name another with --bootstrap-server"
        ) from None
    if security.tls is None:
        return plain
    try:
        return security.tls.wrap_socket(plain, server_hostname=address.host)
    except TimeoutError:
        plain.close()
        raise BrokerError(f"{address} did not answer in a TLS handshake; does it speak TLS?") from None
    except OSError as error:
        plain.close()
        refusal = None
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            refusal = tls_refusal(address, error)
        raise (
            refusal or closed_handshake(address) or BrokerError(f"{address} ended the TLS handshake: {error.strerror}")
        ) from None
    except ValueError as error:
        plain.close()
        raise BrokerError(f"no TLS with {address}: {error}") from None
    except BaseException:
        plain.close()
        raise
