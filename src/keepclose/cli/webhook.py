"""The options of `keepclose controller` that only a webhook has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keepclose.cli.exit import fail
from keepclose.cli.options import read_address

if TYPE_CHECKING:
    from keepclose.webhook.settings import WebhookSettings


def read_webhook(
    *,
    address: str,
    service: str,
    url: str,
    certificate_file: str,
    key_file: str,
    ca_file: str,
    namespace_selector: str,
    registers: bool,
) -> WebhookSettings:
    """Return the settings that the options make; end with exit code 2 where they make none."""
    from keepclose.webhook.settings import (
        WebhookSettings,
        parse_labels,
        parse_service,
        webhook_flaws,
    )

    host, port = read_address("--webhook-address", address)
    target = parse_service(service) if service else None
    if service and target is None:
        fail(f"--webhook-service: {service!r} must be NAMESPACE/NAME or NAMESPACE/NAME:PORT")
    labels = parse_labels(namespace_selector)
    if labels is None:
        fail(f"--webhook-namespace-selector: {namespace_selector!r} must be KEY=VALUE,...")
    settings = WebhookSettings(
        host=host,
        port=port,
        url=url,
        service=target,
        certificate_file=certificate_file,
        key_file=key_file,
        ca_file=ca_file,
        registers=registers,
        namespace_labels=labels,
    )
    flaws = webhook_flaws(settings)
    if flaws:
        fail("; ".join(flaws))
    return settings
