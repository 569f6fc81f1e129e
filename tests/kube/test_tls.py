"""Tests of TLS contexts made from memory."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

import pytest

from keepclose.kube.auth.credentials import ClientCertificate
from keepclose.kube.errors import ConfigError
from keepclose.kube.transport.aiohttp_transport import make_context
from support.certificates import Authority

AUTHORITY = Authority()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which temporary files are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_authority_is_trusted_alone() -> None:
    """Only the given authority is trusted, and names are checked."""
    context = make_context(authority=AUTHORITY.certificate)
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is True
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_insecure_checks_nothing() -> None:
    """Who asks not to check gets what he asked for."""
    context = make_context(insecure=True)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_without_an_authority_the_machine_s_count() -> None:
    """A server with a public certificate is checked too."""
    context = make_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("authority", [b"nonsense", b"-----BEGIN CERTIFICATE-----\nx\n", b"\xff"])
def test_an_authority_that_is_none_is_refused(authority: bytes) -> None:
    """The error says what an authority looks like."""
    with pytest.raises(ConfigError) as raised:
        make_context(authority=authority, source="/kc")
    assert str(raised.value) == (
        "/kc: certificate-authority: holds no certificate; "
        "it must be PEM, beginning with -----BEGIN CERTIFICATE-----"
    )


def test_a_key_leaves_no_file_behind(scratch: Path) -> None:
    """The file that the key passes through is gone, after a failure too."""
    pair = AUTHORITY.issue("me")
    make_context(certificate=ClientCertificate(*pair))
    with pytest.raises(ConfigError):
        make_context(certificate=ClientCertificate(pair.certificate, b"nonsense"))
    assert list(scratch.iterdir()) == []


def test_a_certificate_and_a_foreign_key_are_refused() -> None:
    """The two must belong together; the error does not show them."""
    chain, key = AUTHORITY.issue("a").certificate, AUTHORITY.issue("b").key
    with pytest.raises(ConfigError) as raised:
        make_context(certificate=ClientCertificate(chain, key), source="/kc")
    assert str(raised.value) == (
        "/kc: client-certificate, client-key: the client certificate and key cannot be used "
        "(key values mismatch); both must be PEM and belong together"
    )


def test_an_encrypted_key_is_refused_and_nobody_is_asked() -> None:
    """No prompt at the terminal: the error says how to decrypt the key."""
    pair = AUTHORITY.issue("me", password=b"secret")
    with pytest.raises(ConfigError) as raised:
        make_context(certificate=ClientCertificate(*pair), source="/kc")
    assert (
        str(raised.value) == "/kc: client-key: the key is encrypted; decrypt it with openssl pkey"
    )
