"""Kubeconfigs: what kubectl and the parts of keepclose need to reach the server, in one file each.

`kubeconfig` is the administrator's, `<role>.kubeconfig` that of another role, and
`node-<name>.kubeconfig` that of a node. Each holds its own token and the CA, so it can be copied
to another machine as it is. A file that says the right thing already is not written again.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import yaml

from keepclose.apiserver.auth.credentials import Tokens
from keepclose.apiserver.auth.users import NODE_PREFIX, Role, role_user
from keepclose.system.private_files import (
    make_private_directory,
    read_private,
    write_private,
)

CLUSTER: Final = "keepclose"


def write_kubeconfigs(
    directory: Path, tokens: Tokens, *, server: str, ca: bytes | None
) -> dict[Role, Path]:
    """Write the kubeconfig of every role and return where they are.

    `server` is the address with its scheme; `ca` is the CA as PEM, None for plain HTTP.
    """
    paths: dict[Role, Path] = {}
    for role in Role:
        name = "kubeconfig" if role is Role.ADMIN else f"{role}.kubeconfig"
        paths[role] = directory / name
        text = render_kubeconfig(
            server=server, ca=ca, user=role_user(role).name, token=tokens.of_role(role)
        )
        _write(paths[role], text)
    return paths


def write_node_kubeconfig(
    directory: Path, tokens: Tokens, node_name: str, *, server: str, ca: bytes | None
) -> Path:
    """Write the kubeconfig of a node, making its token if it has none, and return where it is."""
    token = tokens.of_node(node_name)
    path = directory / f"node-{node_name}.kubeconfig"
    _write(path, render_kubeconfig(server=server, ca=ca, user=NODE_PREFIX + node_name, token=token))
    return path


def render_kubeconfig(*, server: str, ca: bytes | None, user: str, token: str) -> str:
    """Return a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }
    return yaml.safe_dump(document, sort_keys=False, width=2**20)


def _write(path: Path, text: str) -> None:
    content = text.encode()
    make_private_directory(path.parent)
    if read_private(path) != content:
        write_private(path, content)
