"""Certificates' subjects as Java writes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from korvet.security.distinguished_name import common_name, subject_of
from tests.support.certificates import Authority
from tests.support.tools import find_tool

PROGRAM = Path(__file__).with_name("Subjects.java")


def of(oid: x509.ObjectIdentifier, value: str, kind: _ASN1Type | None = None) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(oid, value, kind)])


def subjects() -> list[x509.Name]:
    """Subjects with each keyword, each kind of string, and each special character."""
    cn = NameOID.COMMON_NAME
    mail = of(NameOID.EMAIL_ADDRESS, "a@b.de")
    usual = [of(NameOID.COUNTRY_NAME, "DE"), of(NameOID.STATE_OR_PROVINCE_NAME, "NRW"), of(NameOID.LOCALITY_NAME, "K")]
    usual += [of(NameOID.ORGANIZATION_NAME, "Acme, Inc"), of(NameOID.ORGANIZATIONAL_UNIT_NAME, "Ops"), mail]
    parts = (NameOID.STREET_ADDRESS, NameOID.USER_ID, NameOID.DOMAIN_COMPONENT, NameOID.TITLE, NameOID.SERIAL_NUMBER)
    several = x509.RelativeDistinguishedName([x509.NameAttribute(cn, "b"), x509.NameAttribute(NameOID.USER_ID, "a")])
    values = (
        "tenant-a+x", " both ends ", "  two", "#hash#", 'a"b\\c<d>e;f=g', "grün 漢 😀", "nul\0here", " ", "tab\there",
        "é" * 20, "a  b", "line\nbreak", "/", "*", "cr\r",
    )  # fmt: skip
    kinds = (_ASN1Type.UTF8String, _ASN1Type.PrintableString, _ASN1Type.IA5String, _ASN1Type.T61String)
    return [
        x509.Name([*usual, of(cn, "tenant-a+x")]),
        x509.Name([of(oid, "value") for oid in parts]),
        x509.Name([*usual, several]),
        *(x509.Name([of(cn, value)]) for value in values),
        *(x509.Name([of(cn, "plain", kind)]) for kind in kinds),
    ]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("names"))


def test_subjects_are_written_as_java_writes_them(authority: Authority) -> None:
    java = find_tool("java")
    files = [authority.client(subject).cert for subject in subjects()]
    ended = subprocess.run(
        [java, str(PROGRAM), *map(str, files)], capture_output=True, text=True, timeout=120, check=True
    )
    certificates = [x509.load_pem_x509_certificate(file.read_bytes()) for file in files]
    own = [subject_of(one.public_bytes(Encoding.DER)).replace("\r", "\\r") for one in certificates]
    assert "\n".join(own) == ended.stdout.removesuffix("\n")


def test_common_name_cannot_pretend_to_be_more_parts() -> None:
    assert common_name("a,O=b") == r"CN=a\,O\=b"
