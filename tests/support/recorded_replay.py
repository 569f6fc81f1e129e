"""Recorded clusters played again as live changes, through a running controller on a running server.

Nodes are created once. Each step is written as its difference from the step before: pods come, get
another status, are asked to end and go; Services are patched. What is compared is what the API
server has once the controller has seen every write and rests.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from keepclose.kube.errors import AlreadyExists
from keepclose.kube.requests import NAMESPACES, NODES, PODS, SERVICES, Kind
from keepclose.model.well_known import SERVICE_NAME_LABEL
from support.controllers import LONG_GRACE_S, World
from support.crowds import do_all
from support.recordings import (
    Raw,
    check_slices,
    largest_group,
    node_manifest,
    pod_manifest,
    service_manifest,
)

SERVICE_RANGES: Final = ("10.96.0.0/16", "fd00:96::/112")
"""What the recorded cluster IPs are from."""
FIRST_HEALTH_PORT: Final = 30_000
"""The lowest node ports are given to nobody who does not ask for them."""
_RAW_SLICES: Final[Kind[Raw]] = Kind(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, dict
)


class Replay:
    """One recorded cluster on a server, at one of its steps."""

    def __init__(self, world: World, cluster: Raw) -> None:
        self._client = world.client
        self._cluster = cluster
        self._pods: dict[str, dict[str, Raw]] = {}
        self._services: dict[str, Raw] = {}

    @property
    def rounds(self) -> int:
        """How many steps the Service with the most of them has."""
        return max(len(one["steps"]) for one in self._cluster["services"])

    async def prepare(self) -> None:
        """Create the nodes and the namespaces."""
        for node in self._cluster["nodes"]:
            await self._client.create(NODES, node_manifest(node))
        for service in self._cluster["services"]:
            name = service["service"]["metadata"]["namespace"]
            with suppress(AlreadyExists):
                await self._client.create(NAMESPACES, {"metadata": {"name": name}})

    def present(self, index: int) -> list[tuple[Raw, Raw, str]]:
        """Return each Service that has such a step, with the step and the namespace."""
        return [
            (service, service["steps"][index], service["service"]["metadata"]["namespace"])
            for service in self._cluster["services"]
            if index < len(service["steps"])
        ]

    async def take(self, index: int) -> None:
        """Write what this step changes, the Services beside their pods."""
        work: list[Coroutine[Any, Any, None]] = []
        for service, step, namespace in self.present(index):
            number = FIRST_HEALTH_PORT + self._cluster["services"].index(service)
            manifest = _with_health_port(service_manifest(service, step), number)
            work.append(self._write_service(manifest, namespace))
            old = self._pods.get(namespace, {})
            new = {pod["name"]: pod for pod in step["pods"]}
            work += [self._end_pod(namespace, name, grace=0) for name in old.keys() - new.keys()]
            work += [
                self._write_pod(namespace, old.get(name), pod)
                for name, pod in new.items()
                if old.get(name) != pod
            ]
            self._pods[namespace] = new
        await do_all(work)

    async def check(self, index: int) -> int:
        """Compare every Service with the recorded step; return how many there were."""
        page = await self._client.list_all(_RAW_SLICES)
        for service, step, namespace in self.present(index):
            slices = [
                one
                for one in page.items
                if one["metadata"]["namespace"] == namespace
                and one["metadata"]["labels"][SERVICE_NAME_LABEL] == "web"
            ]
            try:
                check_slices(step, slices, largest=largest_group(service, index))
            except AssertionError as error:
                error.add_note(f"{service['name']}, step {index}: {step['op']}")
                raise
        return len(self.present(index))

    async def _write_service(self, manifest: Raw, namespace: str) -> None:
        old = self._services.get(namespace)
        self._services[namespace] = manifest
        if old is None:
            await self._client.create(SERVICES, manifest, namespace=namespace)
        elif old != manifest:
            patch = {
                "metadata": {"annotations": _changes(old, manifest, "metadata", "annotations")},
                "spec": _changes(old, manifest, "spec"),
            }
            await self._client.patch(SERVICES, "web", patch, namespace=namespace)

    async def _write_pod(self, namespace: str, old: Raw | None, new: Raw) -> None:
        manifest = pod_manifest({**new, "terminating": False}, namespace)
        if old is None:
            await self._client.create(PODS, _startable(manifest), namespace=namespace)
        assert old is None or all(old[key] == new[key] for key in ("node", "ips", "labels"))
        if old is None or old["ready"] != new["ready"]:
            patch = {"status": manifest["status"]}
            await self._client.patch(
                PODS, new["name"], patch, namespace=namespace, subresource="status"
            )
        if new["terminating"] and not (old and old["terminating"]):
            await self._end_pod(namespace, new["name"], grace=LONG_GRACE_S)

    async def _end_pod(self, namespace: str, name: str, *, grace: int) -> None:
        await self._client.delete(PODS, name, namespace=namespace, grace_period=grace)


async def replay(world: World, cluster: Raw, *, starts_anew: bool = False) -> int:
    """Play a whole cluster and compare after each step; return how many steps agreed.

    The controller runs all the time, or is started for each step after the writes and goes on from
    what it finds.
    """
    live = Replay(world, cluster)
    await live.prepare()
    agreed = 0
    async with AsyncExitStack() as stack:
        if not starts_anew:
            controller = await stack.enter_async_context(world.controlled())
        for index in range(live.rounds):
            await live.take(index)
            if starts_anew:
                await stack.aclose()
                controller = await stack.enter_async_context(world.controlled())
            await world.settle(controller)
            agreed += await live.check(index)
    return agreed


def _changes(old: Raw, new: Raw, *path: str) -> Raw:
    """Return what a merge patch says there, one level deep."""
    for name in path:
        old, new = old.get(name) or {}, new.get(name) or {}
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return {**changed, **{key: None for key in old if key not in new}}


def _with_health_port(manifest: Raw, number: int) -> Raw:
    """Return the Service asking for this health check port if it needs one at all.

    Left to the server it may be a port that another Service was recorded with.
    """
    spec = manifest["spec"]
    if (spec.get("type"), spec.get("externalTrafficPolicy")) != ("LoadBalancer", "Local"):
        return manifest
    return {**manifest, "spec": {**spec, "healthCheckNodePort": number}}


def _startable(manifest: Raw) -> Raw:
    """Return a pod as it is created: with an image, and nothing known of how it runs."""
    (container,) = manifest["spec"]["containers"]
    spec = {**manifest["spec"], "containers": [{**container, "image": "example.dev/web"}]}
    return {"metadata": manifest["metadata"], "spec": spec}
