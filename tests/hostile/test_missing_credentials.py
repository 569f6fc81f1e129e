"""Credentials that vanished from a data directory: made anew, and never without a word."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from keepclose.apiserver.auth.certificates import CertificateAuthority
from keepclose.apiserver.auth.credentials import Tokens
from keepclose.apiserver.auth.users import UserRole


@pytest.mark.parametrize("role", list(UserRole))
def test_a_token_that_vanished_is_told(tmp_path: Path, role: UserRole) -> None:
    """Whoever holds the token before is refused from now on, and the log says why."""
    with capture_logs() as first:
        before = Tokens(tmp_path).of_role(role)
    (tmp_path / role).unlink()
    with capture_logs() as logs:
        assert Tokens(tmp_path).of_role(role) != before
    assert first == []
    assert [(one["log_level"], one["file"]) for one in logs] == [("warning", str(tmp_path / role))]


def test_a_certificate_authority_that_vanished_is_told(tmp_path: Path) -> None:
    """A new one, which no kubeconfig elsewhere knows, is not made silently."""
    with capture_logs() as first:
        CertificateAuthority(tmp_path, now=time.time()).ensure_server_certificate()
        CertificateAuthority(tmp_path, now=time.time())
    (tmp_path / "ca.crt").unlink()
    with capture_logs() as logs:
        CertificateAuthority(tmp_path, now=time.time())
    assert first == []
    assert [(one["log_level"], one["file"]) for one in logs] == [
        ("warning", str(tmp_path / "ca.crt"))
    ]


def test_a_certificate_authority_that_ends_is_told(tmp_path: Path) -> None:
    """Also where only the clock says so: what clients hold is of no use from then on."""
    CertificateAuthority(tmp_path, now=time.time())
    with capture_logs() as logs:
        CertificateAuthority(tmp_path, now=time.time() + 20 * 366 * 86400)
    assert [(one["log_level"], one["file"]) for one in logs] == [
        ("warning", str(tmp_path / "ca.crt"))
    ]
