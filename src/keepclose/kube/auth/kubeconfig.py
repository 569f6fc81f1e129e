"""Connection settings from kubeconfig files, read and merged as kubectl does.

Files of KUBECONFIG are merged entry by entry: the first file that names a cluster, a user or a
context decides all of it. Paths in a file are relative to that file. A field that would change the
identity of the client and is not supported is rejected, never ignored.

The proxy of a server comes from the kubeconfig or the environment, as in client-go: HTTPS_PROXY or
HTTP_PROXY by the scheme of the server. NO_PROXY lists exceptions: domains, addresses, networks or
"*". Loopback addresses are never reached through a proxy.

The kubelet replaces the token in its file before it expires, so the file is read again and again.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from yarl import URL

from keepclose.kube.auth.credentials import unreadable
from keepclose.kube.auth.exec_plugin import EXEC_API_VERSIONS, ExecSpec
from keepclose.kube.auth.kubeconfig_fields import Fields
from keepclose.kube.connection import ConnectionSettings, ConnectionUser
from keepclose.kube.errors import ConfigError
from keepclose.kube.transport.aiohttp_transport import ServerAddress
from keepclose.kube.yaml_nodes import YamlError, YamlLimits
from keepclose.kube.yaml_values import read_yaml
from keepclose.system.files import MAX_SETTINGS_BYTES, read_input

# A kubeconfig of a thousand clusters, users and contexts has fewer than 20,000 nodes.
_LIMITS: Final = YamlLimits(nodes=200_000)
_UNSUPPORTED: Final = {
    "auth-provider": "use an exec plugin, as kubectl has demanded since 1.26",
    "as": "name a user of its own in the context",
    "as-uid": "name a user of its own in the context",
    "as-groups": "name a user of its own in the context",
    "as-user-extra": "name a user of its own in the context",
}
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def find_proxy(url: str, env: Mapping[str, str]) -> str:
    """Return the URL of the proxy for a server; "" means a direct connection."""
    parts = urlsplit(url)
    variable = f"{parts.scheme}_proxy"
    proxy = env.get(variable.upper()) or env.get(variable, "")
    host = parts.hostname or ""
    if not proxy or _is_loopback(host):
        return ""
    exceptions = env.get("NO_PROXY") or env.get("no_proxy", "")
    if any(_covers(entry.strip(), host) for entry in exceptions.split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _covers(entry: str, host: str) -> bool:
    """Return whether an exception covers the host; ports in exceptions are ignored."""
    if entry == "*":
        return True
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            return False
    name = entry.lower().removeprefix("*").lstrip(".").partition(":")[0]
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def load_kubeconfig(
    path: str | os.PathLike[str] | None = None,
    context: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ConnectionSettings:
    """Return the settings of a context, by default the current one.

    Without a path the files of KUBECONFIG are read, or ~/.kube/config. Raise ConfigError when no
    file exists or a setting cannot be used.
    """
    env = os.environ if env is None else env
    merged = _merge(_named_files(path, env))
    name = context or merged.current
    if not name:
        raise ConfigError(
            "no context is selected",
            file=merged.source,
            field="current-context",
            fix="select one with kubectl config use-context",
        )
    chosen = merged.find("contexts", name, "current-context" if context is None else "--context")
    cluster = merged.find("clusters", chosen.text("cluster", needed=True), chosen.path("cluster"))
    user_name = chosen.text("user")
    user = merged.find("users", user_name, chosen.path("user")) if user_name else None
    return ConnectionSettings(
        server=_read_server(cluster, user, env),
        user=ConnectionUser() if user is None else _read_user(user, cluster),
        namespace=chosen.text("namespace") or "default",
        source=chosen.file,
    )


def find_kubeconfigs(env: Mapping[str, str]) -> list[Path]:
    """Return the files that kubectl would look for, whether they exist or not."""
    listed = env.get("KUBECONFIG", "")
    if listed:
        return [Path(part).expanduser() for part in listed.split(os.pathsep) if part]
    home = env.get("HOME", "")
    return [(Path(home) if home else Path.home()) / ".kube" / "config"]


class _Merged:
    """The entries of all files, by section and name."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.current = ""
        self._entries: dict[str, dict[str, Fields]] = {
            "clusters": {},
            "users": {},
            "contexts": {},
        }

    def add(self, root: Fields) -> None:
        """Add the entries that earlier files do not have."""
        self.current = self.current or root.text("current-context")
        for section, entries in self._entries.items():
            seen: set[str] = set()
            for entry in root.maps(section):
                name = entry.text("name", needed=True)
                if name in seen:
                    raise entry.error("name", f"{name!r} appears twice", fix="remove one of them")
                seen.add(name)
                # NB: messages name an entry by its name, not by its index in the list.
                part = entry.map(section[:-1], path=f"{section}[{name}].{section[:-1]}")
                entries.setdefault(name, part)

    def find(self, section: str, name: str, asked_by: str) -> Fields:
        entries = self._entries[section]
        if name in entries:
            return entries[name]
        near = difflib.get_close_matches(name, entries, n=1)
        names = ", ".join(sorted(entries)) or "none"
        fix = f"did you mean {near[0]}?" if near else f"there are: {names}"
        why = f"there is no {section[:-1]} {name!r}"
        raise ConfigError(why, file=self.source, field=asked_by, fix=fix)


def _named_files(path: str | os.PathLike[str] | None, env: Mapping[str, str]) -> list[Path]:
    """Return the files that exist; an explicit path is returned as it is."""
    if path is not None:
        return [Path(path).expanduser()]
    named = find_kubeconfigs(env)
    existing = [file for file in named if file.exists()]
    if existing:
        return existing
    raise ConfigError(
        "no kubeconfig found",
        file=os.pathsep.join(map(str, named)),
        fix="name one with --kubeconfig or in KUBECONFIG",
    )


def _merge(files: list[Path]) -> _Merged:
    merged = _Merged(os.pathsep.join(map(str, files)))
    for file in files:
        merged.add(_read_file(file))
    return merged


def _read_file(file: Path) -> Fields:
    try:
        text = read_input(file, most=MAX_SETTINGS_BYTES).decode()
    except OSError as error:
        raise unreadable(str(file), error) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", file=str(file)) from error
    try:
        loaded, _ = read_yaml(text, _LIMITS)
    except YamlError as error:
        line = "" if error.line is None else f"line {error.line + 1}"
        raise ConfigError(f"is not YAML: {error.problem}", file=str(file), field=line) from error
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError("is not a kubeconfig: expected a map", file=str(file))
    return Fields(loaded, file=str(file))


def _read_server(cluster: Fields, user: Fields | None, env: Mapping[str, str]) -> ServerAddress:
    url = cluster.text("server", needed=True)
    authority = cluster.secret("certificate-authority")
    insecure = cluster.flag("insecure-skip-tls-verify")
    if authority and insecure:
        raise cluster.error(
            "insecure-skip-tls-verify",
            "cannot be combined with certificate-authority",
            fix="remove one of the two",
        )
    if "://" not in url:
        has_certificate = user is not None and bool(user.text("client-certificate-data"))
        url = f"{'https' if authority or insecure or has_certificate else 'http'}://{url}"
    if not url.startswith(("http://", "https://")):
        raise cluster.error("server", f"{url!r} is not an HTTP URL", fix="begin it with https://")
    _check_url(cluster, "server", url)
    proxy = cluster.text("proxy-url")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise cluster.error("proxy-url", f"{proxy!r} is not supported", fix="name an http proxy")
    if proxy:
        _check_url(cluster, "proxy-url", proxy)
    return ServerAddress(
        url=url,
        authority=authority,
        insecure=insecure,
        server_name=cluster.text("tls-server-name"),
        proxy=proxy or find_proxy(url, env),
        source=cluster.file,
    )


def _check_url(cluster: Fields, field: str, url: str) -> None:
    """Reject an address without a host, or with an impossible host or port."""
    try:
        host = URL(url).host
    except ValueError:
        host = None
    if not host:
        fix = "write it as https://HOST:PORT, with a port up to 65535"
        raise cluster.error(field, f"{url!r} is not an HTTP URL", fix=fix)


def _read_user(user: Fields, cluster: Fields) -> ConnectionUser:
    for field, fix in _UNSUPPORTED.items():
        if user.has(field):
            raise user.error(field, "is not supported", fix=fix)
    token, username = user.text("token"), user.text("username")
    if (token or user.text("tokenFile")) and username:
        raise user.error("username", "cannot be combined with a token", fix="remove one of the two")
    plugin = user.map("exec") if user.has("exec") else None
    return ConnectionUser(
        token=token,
        token_file=user.file_path("tokenFile"),
        username=username,
        password=user.text("password"),
        certificate=user.data("client-certificate-data"),
        certificate_file=user.file_path("client-certificate"),
        key=user.data("client-key-data"),
        key_file=user.file_path("client-key"),
        exec=None if plugin is None else _read_plugin(plugin, cluster),
        field=user.path(),
    )


def _read_plugin(plugin: Fields, cluster: Fields) -> ExecSpec:
    version = plugin.text("apiVersion", needed=True)
    if version not in EXEC_API_VERSIONS:
        fix = f"it must be one of {', '.join(EXEC_API_VERSIONS)}"
        raise plugin.error("apiVersion", f"{version!r} is not supported", fix=fix)
    if plugin.text("interactiveMode") == "Always":
        fix = "set it to IfAvailable or Never"
        raise plugin.error("interactiveMode", "there is no terminal for the plugin", fix=fix)
    command = plugin.text("command", needed=True)
    # A bare name is looked up in PATH; a path is relative to the file, as all others are.
    if os.sep in command:
        command = plugin.file_path("command")
    info: dict[str, Any] | None = None
    if plugin.flag("provideClusterInfo"):
        info = _describe_cluster(cluster)
    return ExecSpec(
        api_version=version,
        command=command,
        args=plugin.texts("args"),
        env=tuple(
            (pair.text("name", needed=True), pair.text("value")) for pair in plugin.maps("env")
        ),
        install_hint=plugin.text("installHint").strip(),
        cluster=info,
        source=plugin.file,
        field=plugin.path(),
    )


def _describe_cluster(cluster: Fields) -> dict[str, Any]:
    """Return the cluster info that an exec plugin receives."""
    info: dict[str, Any] = {"server": cluster.text("server")}
    for field in ("tls-server-name", "proxy-url"):
        if cluster.text(field):
            info[field] = cluster.text(field)
    if cluster.flag("insecure-skip-tls-verify"):
        info["insecure-skip-tls-verify"] = True
    authority = cluster.encoded("certificate-authority")
    if authority:
        info["certificate-authority-data"] = authority
    for extension in cluster.maps("extensions"):
        if extension.text("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.value("extension")
    return info


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
