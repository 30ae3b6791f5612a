"""A certificate authority of a test's own, a server's certificate and a client's."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(folder: Path, *, server_name: str = "localhost") -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _sign("test authority", ca_key.public_key(), "test authority", ca_key, authority=True)
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for who, name in (("server", server_name), ("client", "collector")):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(name, key.public_key(), "test authority", ca_key)
        (folder / f"{who}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{who}.key").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
    return Certificates(
        ca=folder / "ca.pem",
        server_cert=folder / "server.pem",
        server_key=folder / "server.key",
        client_cert=folder / "client.pem",
        client_key=folder / "client.key",
    )


def _sign(
    subject: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.DNSName(subject.replace(" ", "-"))]
    if subject == "localhost":
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(by, hashes.SHA256())
    )
