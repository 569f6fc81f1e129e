"""Requests about Services and EndpointSlices of one namespace, as plain HTTP."""

from __future__ import annotations

from typing import Any, Final

from keepclose.testing.api_server import Api, Reply

JsonObject = dict[str, Any]
MERGE_PATCH: Final = "application/merge-patch+json"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"


def service_body(
    name: str = "web", *, annotations: dict[str, str] | None = None, **spec: Any
) -> JsonObject:
    """Return a Service over app=web with the port http 80 -> 8080; spec as the API writes it."""
    wanted = {
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        **spec,
    }
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": wanted}


def slice_body(name: str = "web-1", *, hints: Any = None, service: str = "web") -> JsonObject:
    """Return a slice with one endpoint on node n1 in zone-a, with these hints."""
    endpoint: JsonObject = {"addresses": ["192.0.2.1"], "nodeName": "n1", "zone": "zone-a"}
    if hints is not None:
        endpoint["hints"] = hints
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


class ProposalApi:
    """One namespace of an API server."""

    def __init__(self, plain: Api, namespace: str = "default") -> None:
        self.plain = plain
        self.services = f"/api/v1/namespaces/{namespace}/services"
        self.slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    async def post_service(self, name: str = "web", **spec: Any) -> Reply:
        """Create a Service; annotations may be among the words."""
        return await self.plain.call("POST", self.services, service_body(name, **spec))

    async def patch_service(self, name: str = "web", **spec: Any) -> Reply:
        """Change fields of a Service's spec; None removes one."""
        path = f"{self.services}/{name}"
        return await self.plain.call("PATCH", path, {"spec": spec}, type=MERGE_PATCH)

    async def label_service(self, name: str = "web", **labels: str) -> Reply:
        """Change labels of a Service and nothing else."""
        path, patch = f"{self.services}/{name}", {"metadata": {"labels": labels}}
        return await self.plain.call("PATCH", path, patch, type=MERGE_PATCH)

    async def distribution(self, name: str = "web") -> str | None:
        """Return the traffic distribution of a stored Service."""
        found = await self.plain.get(f"{self.services}/{name}")
        value: str | None = found["spec"].get("trafficDistribution")
        return value

    async def post_slice(self, name: str = "web-1", hints: Any = None) -> Reply:
        """Create a slice with one endpoint."""
        return await self.plain.call("POST", self.slices, slice_body(name, hints=hints))

    async def put_slice(self, name: str = "web-1", hints: Any = None) -> Reply:
        """Replace a slice by one whose endpoint has these hints."""
        return await self.plain.call("PUT", f"{self.slices}/{name}", slice_body(name, hints=hints))

    async def hints(self, name: str = "web-1") -> JsonObject | None:
        """Return the stored hints of the slice's only endpoint."""
        found = await self.plain.get(f"{self.slices}/{name}")
        (endpoint,) = found["endpoints"]
        value: JsonObject | None = endpoint.get("hints")
        return value
