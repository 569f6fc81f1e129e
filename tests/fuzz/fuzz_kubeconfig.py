"""Kubeconfig files: only ConfigError may come of one."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from keepclose.kube.auth.kubeconfig import load_kubeconfig
from keepclose.kube.errors import ConfigError

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-kubeconfig-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def seeds() -> Iterator[bytes]:
    """Yield a file with every field, and a few short ones."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [
            {
                "name": "k",
                "cluster": {
                    "server": "https://127.0.0.1:6443",
                    "certificate-authority-data": "AAEC",
                    "tls-server-name": "a",
                    "proxy-url": "http://127.0.0.1:1",
                    "insecure-skip-tls-verify": False,
                },
            }
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "token": "t",
                    "client-certificate-data": "AAEC",
                    "client-key-data": "AAEC",
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "x",
                        "args": ["a"],
                        "env": [{"name": "A", "value": "b"}],
                        "interactiveMode": "Never",
                        "provideClusterInfo": True,
                    },
                },
            }
        ],
    }
    yield yaml.safe_dump(config).encode()
    config["users"] = [{"name": "u", "user": {"username": "a", "password": "b"}}]
    yield yaml.safe_dump(config).encode()
    yield b"contexts: [{name: c, context: {cluster: k}}]\ncurrent-context: c\nclusters: []\n"
    yield b"&a [*a]\n"
    yield b"a: [b\n"


def check(data: bytes) -> None:
    """Load the file."""
    file = _FOLDER / "config"
    file.write_bytes(data)
    with contextlib.suppress(ConfigError):
        load_kubeconfig(file, env={})
