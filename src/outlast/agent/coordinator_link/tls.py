"""TLS on both ends of a coordinator's connections, from the settings."""

from __future__ import annotations

import ssl
from importlib.util import find_spec

from outlast.settings.settings import Settings
from outlast.transport.commission import Tls


def client_tls(settings: Settings) -> ssl.SSLContext | None:
    """How to connect to a coordinator; None: without TLS. Raises ValueError, in one line."""
    if not settings.tls:
        return None
    if not settings.tls_cert and find_spec("cryptography") is None:
        raise ValueError("--tls makes a certificate with the package 'cryptography': pip install 'outlast[tls]'")
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # ssl's own errors are among them
        raise ValueError(f"tls_ca {settings.tls_ca} cannot be used ({_reason(error)}): give CA certificates") from error
    if not settings.tls_ca:
        # No authority vouches for the certificate; the proof of the token does, for it covers the certificate.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def server_tls(settings: Settings) -> Tls | None:
    """The certificate for our coordinator, tried here: there, nobody would be left to tell the user."""
    if not settings.tls:
        return None
    if settings.tls_cert:
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            trial.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # "": never ask at the terminal
        except OSError as error:
            files = f"tls_cert {settings.tls_cert} with tls_key {settings.tls_key}"
            raise ValueError(
                f"{files} cannot be used ({_reason(error)}): give a certificate and its key, without a password"
            ) from error
    return Tls(settings.tls_cert, settings.tls_key, settings.tls_ca)


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
