"""The certificate of a process that serves: the user's, or one made for its life alone."""

from __future__ import annotations

import ssl
import tempfile
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path

from outlast.transport.commission import Tls


def server_side(files: Tls) -> tuple[ssl.SSLContext, bytes]:
    """The context to serve with, and the digest of the certificate that the token's proofs bind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert:
        context.load_cert_chain(files.cert, files.key or None)
        pem = Path(files.cert).read_text()
        first = pem[pem.index("-----BEGIN CERTIFICATE") : pem.index("-----END CERTIFICATE-----") + 25]
        return context, sha256(ssl.PEM_cert_to_DER_cert(first)).digest()
    certificate, key = _self_made()
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # mode 600; ssl reads files only
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context, sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).digest()


def _self_made() -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outlast")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
