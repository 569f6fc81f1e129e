"""The options of `keepclose controller --mode=webhook`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app
from keepclose.webhook.settings import (
    ServiceTarget,
    WebhookSettings,
    parse_labels,
    parse_service,
)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(
            [], "--mode=webhook needs --webhook-service or --webhook-url", id="no way to reach it"
        ),
        pytest.param(
            ["--webhook-service=a/b", "--webhook-url=https://a"],
            "--webhook-url and --webhook-service exclude each other",
            id="two ways to reach it",
        ),
        pytest.param(
            ["--webhook-service=web"],
            "--webhook-service: 'web' must be NAMESPACE/NAME or NAMESPACE/NAME:PORT",
            id="no Service",
        ),
        pytest.param(
            ["--webhook-url=http://a"],
            "--webhook-url: 'http://a' must be https://HOST[:PORT]",
            id="no TLS",
        ),
        pytest.param(
            ["--webhook-url=https://a:99999"],
            "--webhook-url: 'https://a:99999' must be https://HOST[:PORT]",
            id="no port",
        ),
        pytest.param(
            ["--webhook-url=https://a/other"],
            "--webhook-url: the path must be /hints, or none",
            id="another path",
        ),
        pytest.param(
            ["--webhook-url=https://a", "--webhook-tls-cert-file=c"],
            "--webhook-tls-cert-file and --webhook-tls-private-key-file go together",
            id="a certificate without a key",
        ),
        pytest.param(
            ["--webhook-url=https://a", "--webhook-ca-file=c"],
            "--webhook-ca-file needs --webhook-tls-cert-file",
            id="an authority without a certificate",
        ),
        pytest.param(
            ["--webhook-url=https://a", "--webhook-address=9443"],
            "--webhook-address: '9443' must be HOST:PORT",
            id="no address",
        ),
        pytest.param(
            ["--webhook-url=https://a", "--webhook-namespace-selector=a"],
            "--webhook-namespace-selector: 'a' must be KEY=VALUE,...",
            id="no labels",
        ),
        pytest.param(
            ["--webhook-url=https://a", "--default-subsetting=Prefer"],
            "--default-subsetting needs --mode=replace: a webhook cannot create slices",
            id="subsets by default",
        ),
        pytest.param(
            ["--mode=replace", "--webhook-url=https://a"],
            "the options --webhook-* need --mode=webhook",
            id="the other mode",
        ),
    ],
)
def test_options_that_cannot_work(arguments: list[str], want: str) -> None:
    """The message names the option, and the exit code is 2."""
    done = CliRunner().invoke(app, ["controller", "--mode=webhook", *arguments])
    assert (done.exit_code, done.stderr) == (2, f"error: {want}\n")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("net/hooks", ServiceTarget("net", "hooks", 443), id="the usual port"),
        pytest.param("net/hooks:8443", ServiceTarget("net", "hooks", 8443), id="another port"),
        pytest.param("net/hooks:0", None, id="no port"),
        pytest.param("net/hooks:99999", None, id="too large a port"),
        pytest.param("hooks", None, id="no namespace"),
    ],
)
def test_services_are_named_with_their_namespace(text: str, want: ServiceTarget | None) -> None:
    """A namespace, a name and perhaps a port."""
    assert parse_service(text) == want


def test_labels_are_read() -> None:
    """Pairs with commas between them; nothing means no labels."""
    assert parse_labels("") == {}
    assert parse_labels("team=a,example.dev/x=") == {"team": "a", "example.dev/x": ""}
    assert parse_labels("team=a,,") is None


def test_where_a_webhook_is_at_home() -> None:
    """Its Lease and Secret stand beside its Service, and its certificate is for that name."""
    settings = WebhookSettings(service=ServiceTarget("net", "hooks"))
    assert (settings.namespace, settings.hosts[0]) == ("net", "hooks.net.svc")
    outside = WebhookSettings(url="https://[fd00::1]:9443")
    assert (outside.namespace, outside.hosts) == ("kube-system", ("fd00::1",))
