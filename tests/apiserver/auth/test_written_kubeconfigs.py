"""Kubeconfigs for people and for the parts of keepclose."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from keepclose.apiserver.auth.certificates import (
    render_kubeconfig,
    write_kubeconfigs,
    write_node_kubeconfig,
)
from keepclose.apiserver.auth.credentials import InvalidNodeNameError, Tokens
from keepclose.apiserver.auth.users import UserRole

SERVER = "https://127.0.0.1:6443"
CA = b"-----BEGIN CERTIFICATE-----\n"


def test_a_kubeconfig_holds_all_that_a_client_needs() -> None:
    """One cluster with its CA, one user with its token, one context, and that is the current."""
    text = render_kubeconfig(server=SERVER, ca=CA, user="keepclose:viewer", token="t" * 43)
    assert yaml.safe_load(text) == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "keepclose",
                "cluster": {
                    "server": SERVER,
                    "certificate-authority-data": base64.b64encode(CA).decode(),
                },
            }
        ],
        "users": [{"name": "keepclose:viewer", "user": {"token": "t" * 43}}],
        "contexts": [
            {
                "name": "keepclose",
                "context": {"cluster": "keepclose", "user": "keepclose:viewer"},
            }
        ],
        "current-context": "keepclose",
    }


def test_plain_http_needs_no_ca() -> None:
    """Without TLS there is nothing to trust."""
    text = render_kubeconfig(server="http://127.0.0.1:8080", ca=None, user="u", token="t")  # noqa: S106
    assert yaml.safe_load(text)["clusters"][0]["cluster"] == {"server": "http://127.0.0.1:8080"}


def test_every_role_has_a_private_file(tmp_path: Path) -> None:
    """The administrator's is named plainly; each has the token of its role."""
    tokens = Tokens(tmp_path / "tokens")
    paths = write_kubeconfigs(tmp_path, tokens, server=SERVER, ca=CA)
    assert paths == {
        UserRole.ADMIN: tmp_path / "kubeconfig",
        UserRole.CONTROLLER: tmp_path / "controller.kubeconfig",
        UserRole.VIEWER: tmp_path / "viewer.kubeconfig",
        UserRole.LAB: tmp_path / "lab.kubeconfig",
    }
    for role, path in paths.items():
        written = yaml.safe_load(path.read_text())
        assert written["users"][0]["user"]["token"] == tokens.of_role(role)
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_node_has_a_file_on_request(tmp_path: Path) -> None:
    """The node's token is made with its kubeconfig; a bad name makes neither."""
    tokens = Tokens(tmp_path / "tokens")
    path = write_node_kubeconfig(tmp_path, tokens, "n1", server=SERVER, ca=CA)
    assert path == tmp_path / "node-n1.kubeconfig"
    assert yaml.safe_load(path.read_text())["users"] == [
        {"name": "system:node:n1", "user": {"token": tokens.of_node("n1")}}
    ]
    with pytest.raises(InvalidNodeNameError):
        write_node_kubeconfig(tmp_path, tokens, "../n1", server=SERVER, ca=CA)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["node-n1.kubeconfig", "tokens"]


def test_a_file_is_written_again_only_when_it_changes(tmp_path: Path) -> None:
    """The same content keeps the file; another address replaces it."""
    tokens = Tokens(tmp_path / "tokens")
    path = write_kubeconfigs(tmp_path, tokens, server=SERVER, ca=CA)[UserRole.ADMIN]
    before = path.stat().st_ino
    write_kubeconfigs(tmp_path, tokens, server=SERVER, ca=CA)
    assert path.stat().st_ino == before
    write_kubeconfigs(tmp_path, tokens, server="https://127.0.0.1:7443", ca=CA)
    assert "https://127.0.0.1:7443" in path.read_text()
