"""The reason why a client and a listener cannot talk, in one sentence that says what to set.

A listener that gets unexpected bytes closes the connection without a word. So the client probes it on separate
connections: does it speak TLS, does it speak without, and does it want a login.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial.errors import DecodeError

from korvet.cli.kafka.address import Address
from korvet.cli.kafka.errors import BrokerError, ConnectionLost, UnfitSettings
from korvet.cli.kafka.framing import NoFrame, Request, answer_to, decode, encode, receive_frame, request
from korvet.cli.kafka.login import Login
from korvet.cli.kafka.security import ClientSecurity

_TIMEOUT_S: Final = 3.0
_ALERT_S: Final = 1.0
_MOST_BYTES: Final = 1 << 16
_MOST_SHOWN: Final = 300
_NO_MECHANISM: Final = "?"
_UNTRUSTED: Final = {2, 18, 19, 20, 21}
"""OpenSSL's codes for a chain of certificates that ends at no trusted authority (x509_vfy.h)."""
_OTHER_NAME: Final = {62, 64}
_ALERT: Final = b"\x15\x03"
"""The first bytes of an alert of TLS 1.0 to 1.3."""
_TRUST: Final = "name the file of its authority as ssl.truststore.location, with ssl.truststore.type=PEM, in"
_FILE: Final = "the file of --command-config"
_SHOW: Final = f"name one as ssl.keystore.location, with ssl.keystore.type=PEM, in {_FILE}"


def tls_refusal(address: Address, error: ssl.SSLError) -> UnfitSettings | None:
    """The reason of a broken handshake, or of an alert after it; None if OpenSSL has none."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnfitSettings(_unverified(address, error))
    reason = (error.reason or "").upper()
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        what = "wants a certificate" if "REQUIRED" in reason else "does not take the certificate"
        return UnfitSettings(f"{address} {what} of this client ({_words(reason)}); {_SHOW}")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return UnfitSettings(_plain(address))
    if reason:
        return UnfitSettings(f"no TLS with {address}: {_words(reason)}")
    return None


def _unverified(address: Address, error: ssl.SSLCertVerificationError) -> str:
    subject = f"the certificate of {address}"
    if error.verify_code in _UNTRUSTED:
        return f"{subject} is not signed by an authority that is trusted here; {_TRUST} {_FILE}"
    if error.verify_code in _OTHER_NAME:
        return f"{subject} is for other names; connect by a name that it has, or have one made with this name"
    return f"{subject} is refused: {error.verify_message}; have the broker's operator renew it"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


def _plain(address: Address) -> str:
    return (
        f"{address} does not speak TLS; set security.protocol to PLAINTEXT, or SASL_PLAINTEXT with a login, in {_FILE}"
        ", or name the address of a listener with TLS"
    )


def _tls_wanted(address: Address) -> str:
    return f"{address} speaks TLS; set security.protocol to SSL, or SASL_SSL with a login, in {_FILE}"


def closed_handshake(address: Address) -> UnfitSettings | None:
    """The reason why a TLS handshake got no answer; None if the listener does not show it."""
    return UnfitSettings(_plain(address)) if _answer_to(address, None, request("api_versions", 0)) is not None else None


def closed_request(address: Address, security: ClientSecurity, start: bytes) -> BrokerError | None:
    """The reason why the first request got no answer; None if the listener does not show it.

    :param start: the bytes that came instead of a frame.
    """
    if security.tls is None and (start.startswith(_ALERT) or _speaks_tls(address)):
        return UnfitSettings(_tls_wanted(address))
    if security.tls is not None and (alerted := _alert(address, security.tls)) is not None:
        return alerted
    if security.login is not None:
        return None
    answer = _answer_to(address, security.tls, request("sasl_handshake", 1, mechanism=_NO_MECHANISM))
    if answer is None or not answer.mechanisms:
        return None
    protocol = "SASL_PLAINTEXT" if security.tls is None else "SASL_SSL"
    return UnfitSettings(
        f"{address} wants a login by {_offered(answer)}; set security.protocol={protocol}, "
        f"sasl.mechanism, and a name and password in {_FILE}"
    )


def refused_handshake(address: Address, login: Login, answer: Any, *, is_tls: bool) -> UnfitSettings:
    """The reason of an error of SaslHandshake."""
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        text = f"{address} takes no login by {login.mechanism}; set sasl.mechanism to {_offered(answer)} in {_FILE}"
    elif answer.error_code is ErrorCode.illegal_sasl_state:
        text = f"{address} takes no logins; set security.protocol={'SSL' if is_tls else 'PLAINTEXT'} in {_FILE}"
    else:
        text = f"{address} refused the login: {answer.error_code.name.upper()}"
    return UnfitSettings(text, answer.error_code)


def refused_login(address: Address, login: Login, code: ErrorCode, message: str | None) -> UnfitSettings:
    """The reason of an error of SaslAuthenticate."""
    if code is not ErrorCode.sasl_authentication_failed:
        return UnfitSettings(f"{address} refused the login: {code.name.upper()}: {_cut(message or '')}", code)
    subject = f"{address} refused the login of {login.who} by {login.mechanism}"
    if login.mechanism == "OAUTHBEARER":
        return UnfitSettings(f"{subject}: {_cut(message or '')}", code)
    return UnfitSettings(
        f"{subject}; check the name and the password, and whether this user has one for {login.mechanism}", code
    )


def _offered(answer: Any) -> str:
    return _cut(" or ".join(answer.mechanisms))


def _cut(text: str) -> str:
    """A server's text as far as it is shown."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _speaks_tls(address: Address) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, _TIMEOUT_S) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        # A listener that wants a certificate of its client speaks TLS, too.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _alert(address: Address, tls: ssl.SSLContext) -> BrokerError | None:
    """The reason of a listener that ends a connection right after the handshake, as TLS 1.3 does for certificates.

    A listener that has unread data of its client resets the connection, and its alert is lost. So send nothing. Some
    listeners send no alert (korvet's among them). A balancer without brokers does the same, so this may pass.
    """
    try:
        with (
            socket.create_connection(address, _ALERT_S) as plain,
            tls.wrap_socket(plain, server_hostname=address.host) as peer,
        ):
            is_closed = not peer.recv(1)
    except ssl.SSLError as error:
        return tls_refusal(address, error)
    except OSError as error:
        is_closed = isinstance(error, ConnectionResetError)
    if not is_closed:
        return None
    return ConnectionLost(
        f"{address} closed the connection after the TLS handshake: it may want a certificate of this client, or "
        f"another one, or have no broker at its end; {_SHOW}"
    )


def _answer_to(address: Address, tls: ssl.SSLContext | None, request: Request) -> Any:
    """The answer to a request on a new connection; None without an answer."""
    with suppress(OSError, NoFrame, DecodeError), socket.create_connection(address, _TIMEOUT_S) as plain:
        peer = plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host)
        with peer:
            peer.sendall(encode(request, 1, "korvet-cli"))
            return decode(answer_to(request), receive_frame(peer, _MOST_BYTES))
    return None
