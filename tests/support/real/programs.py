"""The real programs that these tests run beside ours, and how each is started and ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from support.ports import reserved_port

READY_SECONDS = 90.0
_PORTS = contextlib.ExitStack()
atexit.register(_PORTS.close)


def _version() -> str:
    text = (Path(__file__).parents[2] / "real" / "go.mod").read_text()
    match = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v[0-9.]+)", text, re.MULTILINE)
    assert match is not None
    return match.group(1)


def program(name: str) -> Path:
    """Return the path of a real program, or skip the test that needs it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "keepclose"
    cache = Path(os.environ.get("KEEPCLOSE_CACHE", default)) / "real" / _version()
    path = cache / name
    if not path.exists():
        pytest.skip(f"{name} is not there; run: make real")
    return path


def free_port() -> int:
    """Return a port that nobody has, and that nobody is given until these tests end."""
    return _PORTS.enter_context(reserved_port())


@contextlib.contextmanager
def running(arguments: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the time of the block; its output goes to the log."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(one) for one in arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_answering(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the URL answers 200; fail with the end of the log when the program ended."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(url, timeout=2, context=context) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    pytest.fail(f"{url} does not answer:\n{log.read_text(errors='replace')[-3000:]}")


class ControlPlane(NamedTuple):
    """A running kube-apiserver."""

    url: str
    token: str
    kubeconfig: Path
    # Of somebody who is known and may do nothing.
    stranger: Path
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def real_control_plane(directory: Path, *flags: str) -> Iterator[ControlPlane]:
    """Run etcd and kube-apiserver with one all-powerful token and one without any rights."""
    program("kube-apiserver")
    with running_etcd(directory) as etcd, running_apiserver(directory, etcd, *flags) as plane:
        yield plane


@contextlib.contextmanager
def running_etcd(directory: Path) -> Iterator[str]:
    """Run etcd and give its URL."""
    client, peer = free_port(), free_port()
    log = directory / "etcd.log"
    endpoint = f"http://127.0.0.1:{client}"
    arguments: list[str | Path] = [
        program("etcd"),
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={endpoint}",
        f"--advertise-client-urls={endpoint}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--unsafe-no-fsync",
    ]
    with running(arguments, log) as process:
        wait_until_answering(f"{endpoint}/health", process, log)
        yield endpoint


@contextlib.contextmanager
def running_apiserver(
    directory: Path, etcd: str, *flags: str, port: int = 0
) -> Iterator[ControlPlane]:
    """Run kube-apiserver; a second run in the same directory has the same tokens and keys."""
    port = port or free_port()
    token, weak_token = _keep_tokens(directory / "tokens.csv")
    key = directory / "sa.key"
    if not key.exists():
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
    log = directory / "kube-apiserver.log"
    arguments: list[str | Path] = [
        program("kube-apiserver"),
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={directory / 'certs'}",
        f"--token-auth-file={directory / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--disable-admission-plugins=ServiceAccount",
        *flags,
    ]
    with running(arguments, log) as process:
        url = f"https://127.0.0.1:{port}"
        wait_until_answering(f"{url}/readyz", process, log)
        kubeconfig, stranger = directory / "kubeconfig", directory / "stranger.kubeconfig"
        ca = directory / "certs" / "apiserver.crt"
        write_kubeconfig(kubeconfig, url, token, ca)
        write_kubeconfig(stranger, url, weak_token, ca)
        yield ControlPlane(url, token, kubeconfig, stranger, process)


def _keep_tokens(path: Path) -> list[str]:
    """Return the tokens of the administrator and the stranger, made at the first call."""
    if not path.exists():
        users = ("admin,admin,system:masters", "stranger,stranger,strangers")
        path.write_text("".join(f"{secrets.token_hex(16)},{user}\n" for user in users))
    return [line.split(",")[0] for line in path.read_text().splitlines()]


def write_kubeconfig(path: Path, url: str, token: str, ca: Path) -> None:
    """Write a kubeconfig with a token."""
    path.write_text(
        f"""apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: test, user: {{token: "{token}"}}}}]
"""
    )
