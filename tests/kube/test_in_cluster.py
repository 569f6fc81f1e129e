"""Tests of the settings of a pod, and of the choice between them and a kubeconfig."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings, load_in_cluster
from keepclose.kube.errors import ConfigError

ENV = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """Return a folder as a kubelet mounts it."""
    folder = tmp_path / "account"
    folder.mkdir()
    for name, text in (("token", "abc\n"), ("ca.crt", "PEM"), ("namespace", "shop\n")):
        (folder / name).write_text(text)
    return folder


def test_a_pod_knows_its_server(account: Path) -> None:
    """Address, authority, token file and namespace come from environment and mount."""
    settings = load_in_cluster(ENV, account=account)
    assert settings.server.url == "https://10.96.0.1:443"
    assert settings.server.authority == b"PEM"
    assert settings.user.token_file == str(account / "token")
    assert settings.namespace == "shop"


def test_an_address_of_ipv6_stands_in_brackets(account: Path) -> None:
    """The URL of a server with an IPv6 address is a valid one, and the namespace may be absent."""
    (account / "namespace").unlink()
    settings = load_in_cluster({**ENV, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account=account)
    assert settings.server.url == "https://[fd00::1]:443"
    assert settings.namespace == "default"


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_missing_file_is_named(account: Path, name: str) -> None:
    """Without token or authority nothing works, so it is said at once."""
    (account / name).unlink()
    with pytest.raises(ConfigError) as raised:
        load_in_cluster(ENV, account=account)
    assert str(raised.value).startswith(f"cannot read {account / name}: no such file or directory")


def test_outside_of_a_pod_it_is_said_so() -> None:
    """Without the variables of a pod the fix is to name a kubeconfig."""
    with pytest.raises(ConfigError, match=r"not in a pod: .*; name a kubeconfig instead"):
        load_in_cluster({})


def write_kubeconfig(folder: Path) -> Path:
    """Write a small kubeconfig where kubectl looks for it."""
    file = folder / ".kube" / "config"
    file.parent.mkdir(parents=True)
    file.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: k}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://file.example'}}]\n"
    )
    return file


def test_a_kubeconfig_comes_before_the_pod(account: Path, tmp_path: Path) -> None:
    """The pod's account is used only where no kubeconfig found or asked for."""
    env = {**ENV, "HOME": str(tmp_path / "home")}
    assert load_connection_settings(env=env, account=account).server.url == "https://10.96.0.1:443"
    file = write_kubeconfig(tmp_path / "home")
    assert load_connection_settings(env=env, account=account).server.url == "https://file.example"
    env["HOME"] = str(tmp_path)
    assert (
        load_connection_settings(file, env=env, account=account).server.url
        == "https://file.example"
    )
    with pytest.raises(ConfigError, match="no kubeconfig found"):
        load_connection_settings(context="c", env=env, account=account)


def test_outside_of_a_pod_a_kubeconfig_is_needed(tmp_path: Path) -> None:
    """Without both the error is about the kubeconfig, which most people mean."""
    with pytest.raises(ConfigError) as raised:
        load_connection_settings(env={"HOME": str(tmp_path)}, account=tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}/.kube/config: no kubeconfig found; name one with --kubeconfig or in KUBECONFIG"
    )
