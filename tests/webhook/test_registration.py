"""The configuration by which API servers find the webhook."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from keepclose.kube.client import Client
from keepclose.kube.requests import MUTATING_WEBHOOKS
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.webhook.registration import Registration, make_configuration
from keepclose.webhook.settings import ServiceTarget, WebhookSettings

BY_SERVICE = WebhookSettings(service=ServiceTarget("net", "hooks", 8443))
BY_URL = WebhookSettings(url="https://10.0.0.1:9443")


def configured(settings: WebhookSettings, ca: bytes = b"CA") -> dict[str, Any]:
    """Return the one webhook of a configuration."""
    made = make_configuration(settings, managed_by=ENDPOINTSLICE_CONTROLLER, ca=ca)
    assert made["metadata"] == {"name": "keepclose-hints"}
    (webhook,) = made["webhooks"]
    found: dict[str, Any] = webhook
    return found


class Stand:
    """A registration on a cluster in memory."""

    def __init__(self, settings: WebhookSettings = BY_SERVICE, ca: bytes = b"CA") -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        client = Client(self.cluster, clock=self.clock)
        self.registration = Registration(
            client, settings, managed_by=ENDPOINTSLICE_CONTROLLER, clock=self.clock
        )
        self.registration.ca = ca

    @property
    def stored(self) -> dict[str, Any]:
        """What the cluster has."""
        return self.cluster.objects(MUTATING_WEBHOOKS)[NamespacedName("", "keepclose-hints")]


def test_the_webhook_is_asked_for_as_little_as_can_be() -> None:
    """Creates and updates of the built-in controller's slices; failures let writes through."""
    found = configured(BY_SERVICE)
    assert found["failurePolicy"] == "Ignore"
    assert found["sideEffects"] == "None"
    assert found["timeoutSeconds"] == 2
    assert found["matchPolicy"] == "Equivalent"
    assert found["reinvocationPolicy"] == "IfNeeded"
    assert found["namespaceSelector"] == {}
    assert found["objectSelector"] == {
        "matchLabels": {
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"
        },
        "matchExpressions": [{"key": "kubernetes.io/service-name", "operator": "Exists"}],
    }
    (rule,) = found["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["endpointslices"])


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param(
            BY_SERVICE,
            {"service": {"namespace": "net", "name": "hooks", "port": 8443, "path": "/hints"}},
            id="a Service",
        ),
        pytest.param(BY_URL, {"url": "https://10.0.0.1:9443/hints"}, id="a URL"),
        pytest.param(
            WebhookSettings(url="https://a:1/"), {"url": "https://a:1/hints"}, id="a bare path"
        ),
        pytest.param(
            WebhookSettings(url="https://a:1/hints"), {"url": "https://a:1/hints"}, id="our path"
        ),
    ],
)
def test_how_the_webhook_is_reached(settings: WebhookSettings, want: dict[str, Any]) -> None:
    """The path is always that of the server, and the authority goes with it."""
    bundle = base64.b64encode(b"CA").decode()
    assert configured(settings)["clientConfig"] == {**want, "caBundle": bundle}
    assert configured(settings, b"")["clientConfig"] == want


def test_namespaces_can_be_chosen() -> None:
    """Labels of namespaces narrow the webhook down to them."""
    settings = WebhookSettings(url="https://a:1", namespace_labels={"team": "a"})
    assert configured(settings)["namespaceSelector"] == {"matchLabels": {"team": "a"}}


async def test_the_configuration_is_created_once_and_corrected() -> None:
    """What is right is not written again; what another client changed is; its labels stay."""
    stand = Stand()
    assert await stand.registration.ensure()
    assert not await stand.registration.ensure()
    changed = {**stand.stored, "metadata": {**stand.stored["metadata"], "labels": {"a": "b"}}}
    changed["webhooks"] = [{**changed["webhooks"][0], "failurePolicy": "Fail"}]
    stand.cluster.put(MUTATING_WEBHOOKS, changed)
    assert await stand.registration.ensure()
    assert stand.stored["webhooks"][0]["failurePolicy"] == "Ignore"
    assert stand.stored["metadata"]["labels"] == {"a": "b"}


async def test_an_authority_that_an_injector_put_in_stays() -> None:
    """Without one of our own, the bundle that an injector wrote is kept."""
    stand = Stand(ca=b"")
    await stand.registration.ensure()
    injected = {**stand.stored}
    injected["webhooks"] = [
        {
            **injected["webhooks"][0],
            "clientConfig": {**injected["webhooks"][0]["clientConfig"], "caBundle": "Q0E="},
        }
    ]
    stand.cluster.put(MUTATING_WEBHOOKS, injected)
    assert not await stand.registration.ensure()
    assert stand.stored["webhooks"][0]["clientConfig"]["caBundle"] == "Q0E="
