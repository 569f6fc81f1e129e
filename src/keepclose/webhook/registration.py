"""The MutatingWebhookConfiguration by which API servers find the webhook.

Its scope is minimal: creates and updates of slices that the built-in controller manages. The
failure policy is Ignore, so that a failing webhook never blocks a write. The configuration stays
when the webhook stops; slices are then written without its hints until a replica is back.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from keepclose.kube.requests import MUTATING_WEBHOOKS
from keepclose.model.well_known import MANAGED_BY_LABEL, SERVICE_NAME_LABEL
from keepclose.webhook.settings import WEBHOOK_PATH, WebhookSettings

CONFIGURATION: Final = "keepclose-hints"
WEBHOOK: Final = "hints.keepclose.dev"
TIMEOUT_S: Final = 2
CHECK_S: Final = 60.0
_log = structlog.get_logger(__name__)


def make_configuration(settings: WebhookSettings, *, managed_by: str, ca: bytes) -> dict[str, Any]:
    """Return the configuration; without a CA another component must inject the CA bundle."""
    client_config: dict[str, Any]
    if settings.service is not None:
        target = settings.service
        service = {"namespace": target.namespace, "name": target.name, "port": target.port}
        client_config = {"service": {**service, "path": WEBHOOK_PATH}}
    else:
        client_config = {
            "url": settings.url.removesuffix("/").removesuffix(WEBHOOK_PATH) + WEBHOOK_PATH
        }
    if ca:
        client_config["caBundle"] = base64.b64encode(ca).decode()
    namespaces = {"matchLabels": settings.namespace_labels} if settings.namespace_labels else {}
    webhook = {
        "name": WEBHOOK,
        "clientConfig": client_config,
        "rules": [
            {
                "operations": ["CREATE", "UPDATE"],
                "apiGroups": ["discovery.k8s.io"],
                "apiVersions": ["v1"],
                "resources": ["endpointslices"],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespaces,
        "objectSelector": {
            "matchLabels": {MANAGED_BY_LABEL: managed_by},
            "matchExpressions": [{"key": SERVICE_NAME_LABEL, "operator": "Exists"}],
        },
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
        "admissionReviewVersions": ["v1"],
        "reinvocationPolicy": "IfNeeded",
    }
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": CONFIGURATION},
        "webhooks": [webhook],
    }


class Registration:
    """Reconciles the configuration."""

    def __init__(
        self, client: Client, settings: WebhookSettings, *, managed_by: str, clock: Clock
    ) -> None:
        self._client = client
        self._settings = settings
        self._managed_by = managed_by
        self._clock = clock
        self.ca = b""
        """The CA certificates that API servers must trust, as PEM."""

    async def ensure(self) -> bool:
        """Create or correct the configuration; return whether that took a write."""
        desired = make_configuration(self._settings, managed_by=self._managed_by, ca=self.ca)
        try:
            present = await self._client.get(MUTATING_WEBHOOKS, CONFIGURATION)
        except NotFound:
            try:
                await self._client.create(MUTATING_WEBHOOKS, desired)
            except AlreadyExists:
                return False
            return True
        if not self.ca:
            _keep_bundle(present, desired)
        if present.get("webhooks") == desired["webhooks"]:
            return False
        try:
            await self._client.update_raw(
                MUTATING_WEBHOOKS, {**present, "webhooks": desired["webhooks"]}
            )
        except Conflict:
            return False
        return True

    async def keep(self) -> None:
        """Reconcile the configuration until cancelled; failures are logged and retried."""
        while self._settings.registers:
            try:
                if await self.ensure():
                    _log.info("webhook registered", configuration=CONFIGURATION)
            except KubeError as error:
                _log.warning(
                    "webhook not registered", configuration=CONFIGURATION, error=str(error)
                )
            await self._clock.sleep(CHECK_S)


def _keep_bundle(present: dict[str, Any], desired: dict[str, Any]) -> None:
    """Keep the CA bundle that another component, such as cert-manager, injected."""
    for webhook in present.get("webhooks") or ():
        bundle = webhook.get("clientConfig", {}).get("caBundle")
        if webhook.get("name") == WEBHOOK and bundle:
            desired["webhooks"][0]["clientConfig"]["caBundle"] = bundle
