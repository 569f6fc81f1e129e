"""The proxy that the environment names for a server, as client-go reads it.

HTTPS_PROXY and HTTP_PROXY go by the scheme of the server, NO_PROXY names exceptions: names with
all below them, addresses and networks, or "*". This machine is never behind a proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def find_proxy(url: str, env: Mapping[str, str]) -> str:
    """Return the URL of the proxy for a server; "" means to go there directly."""
    parts = urlsplit(url)
    variable = f"{parts.scheme}_proxy"
    proxy = env.get(variable.upper()) or env.get(variable, "")
    host = parts.hostname or ""
    if not proxy or _is_this_machine(host):
        return ""
    exceptions = env.get("NO_PROXY") or env.get("no_proxy", "")
    if any(_covers(entry.strip(), host) for entry in exceptions.split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _covers(entry: str, host: str) -> bool:
    """Tell whether an exception is about the host; ports in exceptions are passed over."""
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


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
