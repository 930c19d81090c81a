"""A certificate authority of a site, and a certificate for servers on loopback."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path


class Authority(NamedTuple):
    """The authority's certificate, and a context for servers whose certificate it signed."""

    ca_file: Path
    server: ssl.SSLContext


def make_authority(folder: Path, names: tuple[str, ...] = ("localhost",)) -> Authority:
    """Make both; the certificate is for 127.0.0.1 and the names."""
    key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
    root = _start(issuer, issuer, key.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    root = root.add_extension(usage, critical=True)
    root = root.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    alternatives = [*(x509.DNSName(name) for name in names), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = _start(subject, issuer, server_key.public_key())
    leaf = leaf.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    leaf = leaf.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    ca_file, chain = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(root.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    chain.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + leaf.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return Authority(ca_file, server)


def _start(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
