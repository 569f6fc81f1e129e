"""How a webhook is reached and trusted, and what is wrong with what was asked for."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

PATH: Final = "/hints"
DEFAULT_PORT: Final = 443
_SERVICE: Final = re.compile(r"([a-z0-9-]+)/([a-z0-9-]+)(?::([0-9]{1,5}))?")
_LABEL: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]*)=([A-Za-z0-9._-]*)")


class ServiceTarget(msgspec.Struct, frozen=True):
    """The Service in front of the webhook's pods."""

    namespace: str
    name: str
    port: int = DEFAULT_PORT


class WebhookSettings(msgspec.Struct, frozen=True):
    """Everything that only a webhook can be told.

    Without files a certificate is made and kept in a Secret, so that all replicas have the same.
    """

    host: str = "0.0.0.0"  # noqa: S104 - the API server must reach it
    port: int = 9443
    url: str = ""
    service: ServiceTarget | None = None
    certificate_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    registers: bool = True
    namespace_labels: dict[str, str] = {}

    @property
    def home(self) -> str:
        """The namespace of what the webhook keeps: its Secret and its Lease."""
        return "kube-system" if self.service is None else self.service.namespace

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which API servers know the webhook, for a certificate."""
        if self.service is not None:
            base = f"{self.service.name}.{self.service.namespace}.svc"
            return (base, f"{base}.cluster.local")
        return (urlsplit(self.url).hostname or "localhost",)


def webhook_flaws(settings: WebhookSettings) -> list[str]:
    """Return what cannot work, named by the option that sets it; empty when all is well."""
    flaws: list[str] = []
    is_self_made = not settings.certificate_file
    if settings.url and settings.service is not None:
        flaws.append("--webhook-url and --webhook-service exclude each other")
    if (settings.registers or is_self_made) and not (settings.url or settings.service):
        flaws.append("--mode=webhook needs --webhook-service or --webhook-url")
    if settings.url:
        flaws += _url_flaws(settings.url)
    if bool(settings.certificate_file) != bool(settings.key_file):
        flaws.append("--webhook-tls-cert-file and --webhook-tls-private-key-file go together")
    if settings.ca_file and is_self_made:
        flaws.append("--webhook-ca-file needs --webhook-tls-cert-file")
    return flaws


def parse_service(text: str) -> ServiceTarget | None:
    """Return the Service that NAMESPACE/NAME or NAMESPACE/NAME:PORT names, None if it is none."""
    match = _SERVICE.fullmatch(text)
    if match is None:
        return None
    namespace, name, port = match.groups()
    number = DEFAULT_PORT if port is None else int(port)
    return ServiceTarget(namespace, name, number) if 0 < number < 65536 else None


def parse_labels(text: str) -> dict[str, str] | None:
    """Return the labels that KEY=VALUE,... names, None if it names none; "" is no labels."""
    if not text:
        return {}
    matches = [_LABEL.fullmatch(part) for part in text.split(",")]
    found: dict[str, str] = {}
    for match in matches:
        if match is None:
            return None
        found[match.group(1)] = match.group(2)
    return found


def _url_flaws(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment or parts.username:
        return [f"--webhook-url: {url!r} must be https://HOST[:PORT]"]
    if parts.path not in ("", "/", PATH):
        return [f"--webhook-url: the path must be {PATH}, or none"]
    return []
