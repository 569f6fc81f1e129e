"""The MutatingWebhookConfiguration by which API servers find the webhook.

It asks for as little as it can: creates and updates of slices that the built-in controller manages.
Whatever fails lets the write through as it is. The configuration stays when the webhook stops;
slices are then written without our hints until one is back.
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
from keepclose.webhook.settings import PATH, WebhookSettings

CONFIGURATION: Final = "keepclose-hints"
WEBHOOK: Final = "hints.keepclose.dev"
TIMEOUT_S: Final = 2
CHECK_S: Final = 60.0
_log = structlog.get_logger(__name__)


def make_configuration(settings: WebhookSettings, *, managed_by: str, ca: bytes) -> dict[str, Any]:
    """Return the configuration; without a CA it leaves trust to whoever puts one in."""
    client_config: dict[str, Any]
    if settings.service is not None:
        target = settings.service
        service = {"namespace": target.namespace, "name": target.name, "port": target.port}
        client_config = {"service": {**service, "path": PATH}}
    else:
        client_config = {"url": settings.url.removesuffix("/").removesuffix(PATH) + PATH}
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
    """Keeps the configuration as it should be."""

    def __init__(
        self, client: Client, settings: WebhookSettings, *, managed_by: str, clock: Clock
    ) -> None:
        self._client = client
        self._settings = settings
        self._managed_by = managed_by
        self._clock = clock
        self.ca = b""
        """The authorities that API servers are to trust, as PEM."""

    async def ensure(self) -> bool:
        """Create or correct the configuration; return whether that took a write."""
        wanted = make_configuration(self._settings, managed_by=self._managed_by, ca=self.ca)
        try:
            present = await self._client.get(MUTATING_WEBHOOKS, CONFIGURATION)
        except NotFound:
            try:
                await self._client.create(MUTATING_WEBHOOKS, wanted)
            except AlreadyExists:
                return False
            return True
        if not self.ca:
            _keep_bundle(present, wanted)
        if present.get("webhooks") == wanted["webhooks"]:
            return False
        try:
            await self._client.update_raw(
                MUTATING_WEBHOOKS, {**present, "webhooks": wanted["webhooks"]}
            )
        except Conflict:
            return False
        return True

    async def keep(self) -> None:
        """Look after the configuration until cancelled; failures are told and tried again."""
        while self._settings.registers:
            try:
                if await self.ensure():
                    _log.info("registered the webhook", configuration=CONFIGURATION)
            except KubeError as error:
                _log.warning(
                    "cannot register the webhook", configuration=CONFIGURATION, error=str(error)
                )
            await self._clock.sleep(CHECK_S)


def _keep_bundle(present: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Keep the authority that somebody else put in, as injectors do."""
    for one in present.get("webhooks") or ():
        bundle = one.get("clientConfig", {}).get("caBundle")
        if one.get("name") == WEBHOOK and bundle:
            wanted["webhooks"][0]["clientConfig"]["caBundle"] = bundle
