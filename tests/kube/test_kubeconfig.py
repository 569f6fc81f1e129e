"""Tests of reading and merging kubeconfigs, and of what is said about bad ones."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepclose.kube.auth.kubeconfig import load_kubeconfig
from keepclose.kube.errors import ConfigError

Config = dict[str, Any]


def encoded(text: str) -> str:
    """Return a text in base64."""
    return base64.b64encode(text.encode()).decode()


def config(
    *,
    cluster: Config | None = None,
    user: Config | None = None,
    context: Config | None = None,
    name: str = "dev",
) -> Config:
    """Return a kubeconfig with one cluster, user and context of that name."""
    server = {"server": f"https://{name}.example"}
    chosen = {"cluster": name, "user": name, **(context or {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": server if cluster is None else cluster}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": chosen}],
    }


def write(file: Path, content: Config | str) -> Path:
    """Write a kubeconfig."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def test_everything_of_a_context_is_read(tmp_path: Path) -> None:
    """Server, trust, proxy, namespace and user come from the current context."""
    (tmp_path / "ca.pem").write_text("CA")
    file = write(
        tmp_path / "config",
        config(
            cluster={
                "server": "https://10.0.0.1:6443/k8s/",
                "certificate-authority": "ca.pem",
                "tls-server-name": "kubernetes",
                "proxy-url": "http://proxy:3128",
            },
            user={
                "token": "t",
                "client-certificate-data": encoded("CHAIN"),
                "client-key-data": encoded("KEY"),
            },
            context={"namespace": "shop"},
        ),
    )
    settings = load_kubeconfig(file, env={})
    server, user = settings.server, settings.user
    assert (server.url, server.authority) == ("https://10.0.0.1:6443/k8s/", b"CA")
    assert (server.server_name, server.proxy) == ("kubernetes", "http://proxy:3128")
    assert server.insecure is False
    assert (user.token, user.certificate, user.key) == ("t", b"CHAIN", b"KEY")
    assert (settings.namespace, settings.source) == ("shop", str(file))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Relative paths start at the folder of the kubeconfig, absolute ones stay."""
    user = {
        "tokenFile": "token",
        "client-certificate": "/abs/c.pem",
        "client-key": "../k.pem",
    }
    file = write(tmp_path / "sub" / "config", config(user=user))
    found = load_kubeconfig(file, env={}).user
    assert found.token_file == f"{tmp_path}/sub/token"
    assert found.certificate_file == "/abs/c.pem"
    assert found.key_file == f"{tmp_path}/sub/../k.pem"


def test_data_comes_before_files(tmp_path: Path) -> None:
    """Where both are there, -data counts and the file is not even read."""
    cluster = {
        "server": "https://x",
        "certificate-authority": "missing",
        "certificate-authority-data": encoded("DATA"),
    }
    file = write(tmp_path / "config", config(cluster=cluster))
    assert load_kubeconfig(file, env={}).server.authority == b"DATA"


def test_the_context_can_be_chosen(tmp_path: Path) -> None:
    """A context named by the caller counts, whatever is current."""
    both = config(name="a")
    for section in ("clusters", "users", "contexts"):
        both[section] += config(name="b")[section]
    file = write(tmp_path / "config", both)
    assert load_kubeconfig(file, env={}).server.url == "https://a.example"
    assert load_kubeconfig(file, "b", env={}).server.url == "https://b.example"


def test_files_are_found_as_kubectl_finds_them(tmp_path: Path) -> None:
    """KUBECONFIG comes before the home folder; missing files of it are passed over."""
    home = {"HOME": str(tmp_path)}
    write(tmp_path / ".kube" / "config", config(name="home"))
    other = write(tmp_path / "other", config(name="other"))
    assert load_kubeconfig(env=home).server.url == "https://home.example"
    env = {**home, "KUBECONFIG": f"{tmp_path}/missing::{other}"}
    assert load_kubeconfig(env=env).server.url == "https://other.example"
    with pytest.raises(ConfigError, match="/gone: no kubeconfig found"):
        load_kubeconfig(env={**home, "KUBECONFIG": "/gone"})


def test_the_first_file_that_names_something_decides(tmp_path: Path) -> None:
    """Files are merged entry by entry; an entry is never mixed of two files."""
    first = config(name="a", cluster={"server": "https://first"})
    first["users"] = []
    second = config(name="a", cluster={"server": "https://second", "tls-server-name": "s"})
    second["users"] = [{"name": "a", "user": {"tokenFile": "token"}}]
    second["current-context"] = "b"
    one = write(tmp_path / "1" / "config", first)
    two = write(tmp_path / "2" / "config", second)
    settings = load_kubeconfig(env={"KUBECONFIG": f"{one}:{two}"})
    assert (settings.server.url, settings.server.server_name) == ("https://first", "")
    assert settings.user.token_file == f"{tmp_path}/2/token"


@pytest.mark.parametrize(
    ("cluster", "want_url"),
    [
        ({"server": "localhost:8080"}, "http://localhost:8080"),
        ({"server": "10.0.0.1:6443", "insecure-skip-tls-verify": True}, "https://10.0.0.1:6443"),
        (
            {"server": "10.0.0.1:6443", "certificate-authority-data": encoded("CA")},
            "https://10.0.0.1:6443",
        ),
    ],
)
def test_a_server_without_a_scheme(tmp_path: Path, cluster: Config, want_url: str) -> None:
    """Whether TLS is meant follows from the other settings."""
    file = write(tmp_path / "config", config(cluster=cluster))
    assert load_kubeconfig(file, env={}).server.url == want_url


def test_the_environment_may_name_a_proxy(tmp_path: Path) -> None:
    """Without proxy-url the variables count."""
    file = write(tmp_path / "config", config())
    env = {"HTTPS_PROXY": "http://p:3128"}
    assert load_kubeconfig(file, env=env).server.proxy == "http://p:3128"


def test_a_context_needs_no_user(tmp_path: Path) -> None:
    """A context without a user is an anonymous one."""
    file = write(tmp_path / "config", config(context={"user": None}))
    assert load_kubeconfig(file, env={}).user.field == ""


def test_a_program_is_read(tmp_path: Path) -> None:
    """Command, arguments, variables, hint and the cluster's data come along."""
    cluster = {
        "server": "https://x",
        "certificate-authority-data": encoded("CA"),
        "tls-server-name": "s",
        "extensions": [
            {"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}},
        ],
    }
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/login",
        "args": ["--quiet"],
        "env": [{"name": "REGION", "value": "eu"}],
        "installHint": "get it\n",
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
    }
    file = write(tmp_path / "config", config(cluster=cluster, user={"exec": program}))
    spec = load_kubeconfig(file, env={}).user.exec
    assert spec is not None
    assert spec.command == f"{tmp_path}/bin/login"
    assert (spec.args, spec.env, spec.install_hint) == (
        ("--quiet",),
        (("REGION", "eu"),),
        "get it",
    )
    assert spec.cluster == {
        "server": "https://x",
        "certificate-authority-data": encoded("CA"),
        "tls-server-name": "s",
        "config": {"audience": "a"},
    }
    assert (spec.source, spec.field) == (str(file), "users[dev].user.exec")


def test_a_bare_command_is_looked_for_in_path(tmp_path: Path) -> None:
    """A command without a slash stays as it is, and the cluster is not told unasked."""
    program = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws"}
    cluster = {"server": "https://x", "insecure-skip-tls-verify": True}
    file = write(tmp_path / "config", config(cluster=cluster, user={"exec": program}))
    spec = load_kubeconfig(file, env={}).user.exec
    assert spec is not None
    assert (spec.command, spec.cluster) == ("aws", None)
    program["provideClusterInfo"] = True  # type: ignore[assignment]
    write(file, config(cluster=cluster, user={"exec": program}))
    spec = load_kubeconfig(file, env={}).user.exec
    assert spec is not None
    assert spec.cluster == {"server": "https://x", "insecure-skip-tls-verify": True}


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws"}


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(
            {**config(), "current-context": ""},
            "current-context: no context is selected; select one with kubectl config use-context",
            id="no context",
        ),
        pytest.param(
            {**config(), "current-context": "prod"},
            "current-context: there is no context 'prod'; there are: dev",
            id="an unknown context",
        ),
        pytest.param(
            {**config(), "current-context": "dew"},
            "current-context: there is no context 'dew'; did you mean dev?",
            id="a misspelt context",
        ),
        pytest.param(
            config(context={"cluster": "prod"}),
            "contexts[dev].context.cluster: there is no cluster 'prod'; there are: dev",
            id="an unknown cluster",
        ),
        pytest.param(
            {**config(), "users": None},
            "contexts[dev].context.user: there is no user 'dev'; there are: none",
            id="an unknown user",
        ),
        pytest.param(
            config(context={"cluster": ""}),
            "contexts[dev].context.cluster: is missing; add it",
            id="a context without a cluster",
        ),
        pytest.param(
            config(cluster={}), "clusters[dev].cluster.server: is missing; add it", id="no server"
        ),
        pytest.param(
            config(cluster={"server": "unix:///run/x"}),
            "clusters[dev].cluster.server: 'unix:///run/x' is not an HTTP URL; "
            "begin it with https://",
            id="a strange server",
        ),
        pytest.param(
            config(cluster={"server": "https://x", "proxy-url": "socks5://p"}),
            "clusters[dev].cluster.proxy-url: 'socks5://p' is not supported; name an http proxy",
            id="a proxy of another kind",
        ),
        pytest.param(
            config(cluster={"server": "https://x", "certificate-authority-data": "%"}),
            "clusters[dev].cluster.certificate-authority-data: is not base64; "
            "encode the file with base64 -w0",
            id="bad base64",
        ),
        pytest.param(
            config(
                cluster={
                    "server": "https://x",
                    "certificate-authority-data": encoded("CA"),
                    "insecure-skip-tls-verify": True,
                }
            ),
            "clusters[dev].cluster.insecure-skip-tls-verify: cannot be combined with "
            "certificate-authority; remove one of the two",
            id="trust and no trust",
        ),
        pytest.param(
            config(cluster={"server": "https://x", "insecure-skip-tls-verify": "true"}),
            "clusters[dev].cluster.insecure-skip-tls-verify: expected true or false, got a text; "
            "write true or false, without quotes",
            id="a flag in quotes",
        ),
        pytest.param(
            config(user={"token": 12345}),
            "users[dev].user.token: expected a text, got a number; put it in quotes",
            id="a token that YAML takes for a number",
        ),
        pytest.param(
            config(user={"token": {"a": 1}}),
            "users[dev].user.token: expected a text, got a map",
            id="a token that is a map",
        ),
        pytest.param(
            config(user={"token": "t", "username": "u"}),
            "users[dev].user.username: cannot be combined with a token; remove one of the two",
            id="two ways to be somebody",
        ),
        pytest.param(
            config(user={"auth-provider": {"name": "gcp"}}),
            "users[dev].user.auth-provider: is not supported; "
            "use an exec plugin, as kubectl has demanded since 1.26",
            id="an auth provider",
        ),
        pytest.param(
            config(user={"as": "root"}),
            "users[dev].user.as: is not supported; name a user of its own in the context",
            id="impersonation",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
            "users[dev].user.exec.apiVersion: 'client.authentication.k8s.io/v1alpha1' is not "
            "supported; it must be one of client.authentication.k8s.io/v1, "
            "client.authentication.k8s.io/v1beta1",
            id="an old program",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "command": None}}),
            "users[dev].user.exec.command: is missing; add it",
            id="a program without a command",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "interactiveMode": "Always"}}),
            "users[dev].user.exec.interactiveMode: there is no terminal for the plugin; "
            "set it to IfAvailable or Never",
            id="a program that needs a terminal",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "args": ["-n", 5]}}),
            "users[dev].user.exec.args[1]: expected a text, got a number; put it in quotes",
            id="an argument that is no text",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "args": "-n"}}),
            "users[dev].user.exec.args: expected a list, got a text",
            id="arguments that are no list",
        ),
        pytest.param(
            {**config(), "clusters": ["x"]},
            "clusters[0]: expected a map, got a text",
            id="a cluster that is no map",
        ),
        pytest.param(
            {**config(), "contexts": [{"name": "dev", "context": True}]},
            "contexts[0].context: expected a map, got a boolean",
            id="a context that is no map",
        ),
        pytest.param(
            {**config(), "users": [{"name": "dev"}, {"name": "dev"}]},
            "users[1].name: 'dev' appears twice; remove one of them",
            id="a name that stands twice",
        ),
        pytest.param(
            "current-context: 2026-01-31",
            "current-context: there is no context '2026-01-31'; there are: none",
            id="a name that looks like a date is a text, as kubectl reads it",
        ),
        pytest.param("- a", "is not a kubeconfig: expected a map", id="a list"),
        pytest.param(
            "a: b: c",
            "line 1: is not YAML: mapping values are not allowed",
            id="broken YAML",
        ),
        pytest.param("\x01", "is not YAML: ", id="control characters"),
        pytest.param("", "current-context: no context is selected; ", id="an empty file"),
    ],
)
def test_what_is_wrong_is_said_with_file_field_and_fix(
    tmp_path: Path, content: Config | str, want: str
) -> None:
    """Each mistake is told by the file, the path of the field, what is wrong and the fix."""
    file = write(tmp_path / "config", content)
    with pytest.raises(ConfigError) as raised:
        load_kubeconfig(file, env={})
    assert str(raised.value).startswith(f"{file}: {want}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing files, folders, binaries, and files that a kubeconfig names."""
    with pytest.raises(ConfigError, match=r"cannot read .*/none: no such file or directory"):
        load_kubeconfig(tmp_path / "none", env={})
    with pytest.raises(ConfigError, match=r"cannot read .*: is a directory"):
        load_kubeconfig(tmp_path, env={})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"/binary: is not UTF-8 text"):
        load_kubeconfig(tmp_path / "binary", env={})
    cluster = {"server": "https://x", "certificate-authority": "ca.pem"}
    file = write(tmp_path / "config", config(cluster=cluster))
    with pytest.raises(ConfigError) as raised:
        load_kubeconfig(file, env={})
    assert str(raised.value) == (
        f"{file}: clusters[dev].cluster.certificate-authority: cannot read {tmp_path}/ca.pem: "
        "no such file or directory; check the path and who may read it"
    )


def test_a_context_asked_for_by_hand_is_blamed_on_the_option(tmp_path: Path) -> None:
    """The error is about the option, not about the file's own choice."""
    file = write(tmp_path / "config", config())
    with pytest.raises(ConfigError, match="--context: there is no context 'x'"):
        load_kubeconfig(file, "x", env={})


def test_secrets_do_not_show(tmp_path: Path) -> None:
    """Neither settings nor users print their secrets."""
    program = {**EXEC, "env": [{"name": "SECRET", "value": "hidden"}]}
    user = {"token": "hidden", "client-key-data": encoded("hidden"), "exec": program}
    file = write(tmp_path / "config", config(user=user))
    assert "hidden" not in repr(load_kubeconfig(file, env={}))
