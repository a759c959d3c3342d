"""Certificates for tests: an authority of its own, and what it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_numbers = count(1)
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """An authority whose certificate is in the file ``cert``."""

    def __init__(self, directory: Path, name: x509.Name, key: ec.EllipticCurvePrivateKey, cert: Path) -> None:
        self._directory = directory
        self._name = name
        self._key = key
        self.cert = cert

    @classmethod
    def make(cls, directory: Path) -> Authority:
        """A new authority, whose files are in a directory."""
        number = next(_numbers)
        name = common(f"authority {number}")
        key = ec.generate_private_key(ec.SECP256R1())
        authority = cls(directory, name, key, directory / f"ca-{number}.pem")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        usage = _usage(signs_certificates=True)
        certificate = authority._builder(name, key).add_extension(basic, True).add_extension(usage, True)
        authority.cert.write_bytes(_pem(certificate.sign(key, hashes.SHA256())))
        return authority

    def server(self, names: Sequence[str] = ("127.0.0.1", "localhost"), *, ends_in_days: float = 1) -> Pair:
        """A server's certificate for some host names and addresses."""
        return self._issue(common(names[0]), names, ends_in_days)

    def client(self, subject: str | x509.Name, *, ends_in_days: float = 1) -> Pair:
        """A client's certificate: its whole subject, or its common name."""
        return self._issue(common(subject) if isinstance(subject, str) else subject, (), ends_in_days)

    def revoke(self, *clients: Pair, ends_in_days: float = 1) -> bytes:
        """The list of revoked certificates, in PEM."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - 2 * _DAY).next_update(now + ends_in_days * _DAY)
        for client in clients:
            number = x509.load_pem_x509_certificate(client.cert.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - _DAY).build()
            builder = builder.add_revoked_certificate(revoked)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _issue(self, subject: x509.Name, names: Sequence[str], ends_in_days: float) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key, ends_in_days).add_extension(_usage(signs_certificates=False), True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
        )
        number = next(_numbers)
        pair = Pair(cert=self._directory / f"cert-{number}.pem", key=self._directory / f"key-{number}.pem")
        pair.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, ends_in_days: float = 1
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + ends_in_days * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )


def common(name: str) -> x509.Name:
    """A subject that is only a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
