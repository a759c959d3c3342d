"""A certificate's subject in Java's spelling, which Kafka's principals and rules use.

It follows RFC 2253: the last RDN comes first, and an attribute without a keyword is its OID with the hexadecimal DER
of its value. Source: X500Principal.getName, sun.security.x509.AVA.toRFC2253String
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {
    12: "utf-8",
    19: "utf-8",
    20: "latin-1",
    22: "utf-8",
    27: "utf-8",
    28: "utf-32-be",
    30: "utf-16-be",
}
"""ASN.1 tag of a string -> its encoding."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER.

    :raises ValueError: the certificate cannot be parsed.
    """
    from cryptography import x509

    name = x509.load_der_x509_certificate(certificate).subject.public_bytes()
    _, content, _ = next(_elements(name))
    rdns = [_rdn(rdn) for _, rdn, _ in _elements(content)]
    return ",".join(reversed(rdns))


def common_name(value: str) -> str:
    """The subject that consists of this common name."""
    return f"CN={_escaped(value)}"


def _rdn(content: bytes) -> str:
    return "+".join(_attribute(attribute) for _, attribute, _ in _elements(content))


def _attribute(content: bytes) -> str:
    (_, oid, _), (tag, value, whole) = _elements(content)
    dotted = _dotted(oid)
    keyword, encoding = _KEYWORDS.get(dotted), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        return f"{keyword or dotted}=#{whole.hex()}"
    return f"{keyword}={_escaped(value.decode(encoding, 'replace'))}"


def _escaped(text: str) -> str:
    """Escape a value as Java does: each special character, and spaces at both ends."""
    begin = len(text) - len(text.lstrip(" \r"))
    end = len(text.rstrip(" \r"))
    return "".join(_character(one, is_inside=begin <= at < end) for at, one in enumerate(text))


def _character(one: str, *, is_inside: bool) -> str:
    if one == "\0":
        return "\\00"
    return f"\\{one}" if one in _ESCAPED or not is_inside else one


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The consecutive DER elements of data, as (tag, content, whole element)."""
    at = 0
    while at < len(data):
        size, begin = data[at + 1], at + 2
        if size >= 0x80:
            begin += size & 0x7F
            size = int.from_bytes(data[at + 2 : begin])
        yield data[at], data[begin : begin + size], data[at : begin + size]
        at = begin + size


def _dotted(oid: bytes) -> str:
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
