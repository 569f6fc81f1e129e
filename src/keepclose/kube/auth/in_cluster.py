"""Connection settings of a pod: the service account that the kubelet mounts into it.

The kubelet replaces the token in its file before it expires, so the file is read again and again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from keepclose.kube.auth.credentials import unreadable
from keepclose.kube.auth.kubeconfig import find_kubeconfigs, load_kubeconfig
from keepclose.kube.connection import ConnectionSettings, ConnectionUser
from keepclose.kube.errors import ConfigError
from keepclose.kube.transport.aiohttp_transport import ServerAddress
from keepclose.system.files import MAX_SETTINGS_BYTES, read_input

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_in_cluster(
    env: Mapping[str, str] | None = None, *, account: Path = ACCOUNT
) -> ConnectionSettings:
    """Return the settings of the pod of this process; raise ConfigError outside of a pod."""
    env = os.environ if env is None else env
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError(
            "not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
            fix="name a kubeconfig instead",
        )
    token, authority = account / "token", account / "ca.crt"
    for file in (token, authority):
        _read(file)
    try:
        namespace = _read(account / "namespace").decode(errors="replace").strip()
    except ConfigError:
        namespace = ""
    return ConnectionSettings(
        server=ServerAddress(
            url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            authority=_read(authority),
            source=str(account),
        ),
        user=ConnectionUser(token_file=str(token)),
        namespace=namespace or "default",
        source=str(account),
    )


def load_connection_settings(
    path: str | os.PathLike[str] | None = None,
    context: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    account: Path = ACCOUNT,
) -> ConnectionSettings:
    """Return the settings that kubectl would use: a kubeconfig if there is one, else the pod's."""
    env = os.environ if env is None else env
    is_pod = bool(env.get("KUBERNETES_SERVICE_HOST")) and (account / "token").exists()
    is_explicit = path is not None or context is not None
    if is_pod and not is_explicit and not any(file.exists() for file in find_kubeconfigs(env)):
        return load_in_cluster(env, account=account)
    return load_kubeconfig(path, context, env)


def _read(file: Path) -> bytes:
    try:
        return read_input(file, most=MAX_SETTINGS_BYTES)
    except OSError as error:
        raise unreadable(str(file), error) from error
