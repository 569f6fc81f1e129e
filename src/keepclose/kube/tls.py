"""TLS contexts from PEM in memory: whom we trust, and the certificate that we show.

The ssl module loads a private key from a file only. The key is written to a file that nobody else
may read, and that file is gone before the context is used.
"""

from __future__ import annotations

import os
import ssl
import tempfile

from keepclose.kube.auth.credentials import ClientCertificate
from keepclose.kube.errors import ConfigError


def make_context(
    *,
    authority: bytes = b"",
    insecure: bool = False,
    certificate: ClientCertificate | None = None,
    source: str = "",
) -> ssl.SSLContext:
    """Return a context for clients; without an authority the machine's own ones are trusted.

    `source` names in errors the file that the settings came from.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority:
        _trust(context, authority, source=source)
    else:
        context.load_default_certs()
    if certificate is not None:
        _show(context, certificate, source=source)
    return context


def _trust(context: ssl.SSLContext, authority: bytes, *, source: str) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode("ascii", errors="ignore"))
        loaded = bool(context.get_ca_certs()) or context.cert_store_stats()["x509"] > 0
    except (ssl.SSLError, ValueError):
        loaded = False
    if not loaded:
        raise ConfigError(
            "holds no certificate",
            file=source,
            field="certificate-authority",
            fix="it must be PEM, beginning with -----BEGIN CERTIFICATE-----",
        )


def _show(context: ssl.SSLContext, certificate: ClientCertificate, *, source: str) -> None:
    descriptor, path = tempfile.mkstemp(prefix="keepclose-", suffix=".pem")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.chain.rstrip() + b"\n" + certificate.key)
        context.load_cert_chain(path, password=_refuse_password)
    except _EncryptedKeyError:
        raise ConfigError(
            "the key is encrypted",
            file=source,
            field="client-key",
            fix="decrypt it with openssl pkey",
        ) from None
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"the client certificate and key cannot be used ({_reason(error)})",
            file=source,
            field="client-certificate, client-key",
            fix="both must be PEM and belong together",
        ) from error
    finally:
        os.unlink(path)  # noqa: PTH108


class _EncryptedKeyError(Exception):
    pass


def _refuse_password() -> str:
    # NB: without this the ssl module asks at the terminal, and the program hangs.
    raise _EncryptedKeyError


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return reason.lower().replace("_", " ")
