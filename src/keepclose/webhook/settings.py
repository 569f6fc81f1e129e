"""The settings of a webhook: how API servers reach and trust it; and their validation."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

WEBHOOK_PATH: Final = "/hints"
DEFAULT_PORT: Final = 443
_SERVICE: Final = re.compile(r"([a-z0-9-]+)/([a-z0-9-]+)(?::([0-9]{1,5}))?")
_LABEL: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]*)=([A-Za-z0-9._-]*)")


class ServiceTarget(msgspec.Struct, frozen=True):
    """The Service in front of the webhook's pods."""

    namespace: str
    name: str
    port: int = DEFAULT_PORT


class WebhookSettings(msgspec.Struct, frozen=True):
    """The settings that only a webhook has.

    Without certificate files a certificate is generated and shared through a Secret.
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
    def namespace(self) -> str:
        """The namespace of the webhook's Secret and Lease."""
        return "kube-system" if self.service is None else self.service.namespace

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names by which API servers call the webhook, for its certificate."""
        if self.service is not None:
            base = f"{self.service.name}.{self.service.namespace}.svc"
            return (base, f"{base}.cluster.local")
        return (urlsplit(self.url).hostname or "localhost",)


def webhook_settings_errors(settings: WebhookSettings) -> list[str]:
    """Return the validation errors, each with the option that sets the value."""
    errors: list[str] = []
    is_generated = not settings.certificate_file
    if settings.url and settings.service is not None:
        errors.append("--webhook-url and --webhook-service exclude each other")
    if (settings.registers or is_generated) and not (settings.url or settings.service):
        errors.append("--mode=webhook needs --webhook-service or --webhook-url")
    if settings.url:
        errors += _url_errors(settings.url)
    if bool(settings.certificate_file) != bool(settings.key_file):
        errors.append("--webhook-tls-cert-file and --webhook-tls-private-key-file go together")
    if settings.ca_file and is_generated:
        errors.append("--webhook-ca-file needs --webhook-tls-cert-file")
    return errors


def parse_service(text: str) -> ServiceTarget | None:
    """Return the Service of NAMESPACE/NAME or NAMESPACE/NAME:PORT, None for any other text."""
    match = _SERVICE.fullmatch(text)
    if match is None:
        return None
    namespace, name, port = match.groups()
    number = DEFAULT_PORT if port is None else int(port)
    return ServiceTarget(namespace, name, number) if 0 < number < 65536 else None


def parse_labels(text: str) -> dict[str, str] | None:
    """Return the labels of KEY=VALUE,..., none for ""; None for any other text."""
    if not text:
        return {}
    matches = [_LABEL.fullmatch(part) for part in text.split(",")]
    labels: dict[str, str] = {}
    for match in matches:
        if match is None:
            return None
        labels[match.group(1)] = match.group(2)
    return labels


def _url_errors(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment or parts.username:
        return [f"--webhook-url: {url!r} must be https://HOST[:PORT]"]
    if parts.path not in ("", "/", WEBHOOK_PATH):
        return [f"--webhook-url: the path must be {WEBHOOK_PATH}, or none"]
    return []
