"""The options of `keepclose controller` that only a webhook has."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from keepclose.controller.webhooksettings import WebhookSettings


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
    from keepclose.controller.webhooksettings import (
        WebhookSettings,
        parse_labels,
        parse_service,
        webhook_flaws,
    )

    host, port = read_address(address, option="--webhook-address", form="HOST:PORT")
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


def read_address(text: str, *, option: str, form: str) -> tuple[str, int]:
    """Return host and port of an option's value; end with exit code 2 where it has none."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        fail(f"{option}: {text!r} must be {form}")
    return host.strip("[]") or "127.0.0.1", int(port)


def fail(text: str) -> NoReturn:
    """Say what is wrong and end with exit code 2."""
    typer.echo(f"error: {text}", err=True)
    sys.exit(2)
