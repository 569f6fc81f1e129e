"""Our client reads and writes the same way on a real kube-apiserver and on ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import yaml

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client, PatchType
from keepclose.kube.errors import ConfigError, Conflict, Invalid, NotFound
from keepclose.kube.requests import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    PODS,
    SERVICES,
    Kind,
)
from support.real.apis import Api, config_map, endpoint_slice, opened, pod, service

MANY = 1200
RAW_SERVICES: Kind[dict[str, Any]] = Kind("", "v1", "services", "Service", True, dict)


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    """Connect as an administrator."""
    async with opened(api.kubeconfig) as connected:
        yield connected


def test_a_kubeconfig_says_where_the_server_is(api: Api) -> None:
    """What either server's kubeconfig says becomes settings; an unknown context is refused."""
    settings = load_connection_settings(api.kubeconfig)
    assert settings.server.url == api.url
    assert settings.namespace == "default"
    assert settings.user.token
    assert settings.user.token not in repr(settings.user)
    with pytest.raises(ConfigError, match="nowhere"):
        load_connection_settings(api.kubeconfig, "nowhere")


async def test_the_server_shows_its_version(client: Client) -> None:
    """Paths that are no objects can be read too."""
    assert json.loads(await client.raw("GET", "/version"))["major"] == "1"
    assert await client.raw("GET", "/readyz") == b"ok"


async def test_services_are_created_read_changed_and_deleted(
    client: Client, namespace: str
) -> None:
    """A Service gets an address, keeps it through a replacement, and goes."""
    made = await client.create(
        SERVICES, service("web", trafficDistribution="PreferSameZone"), namespace=namespace
    )
    assert made.spec.traffic_distribution == "PreferSameZone"
    assert made.spec.cluster_ip.startswith("10.96.")
    whole = await client.get(RAW_SERVICES, "web", namespace=namespace)
    whole["spec"]["trafficDistribution"] = "PreferSameNode"
    changed = await client.update_raw(SERVICES, whole)
    assert changed.spec.traffic_distribution == "PreferSameNode"
    assert changed.spec.cluster_ip == made.spec.cluster_ip
    assert await client.get(SERVICES, "web", namespace=namespace) == changed
    await client.delete(SERVICES, "web", namespace=namespace)
    with pytest.raises(NotFound):
        await client.get(SERVICES, "web", namespace=namespace)


async def test_pods_get_their_status_apart_from_their_spec(client: Client, namespace: str) -> None:
    """The status subresource writes the status and nothing else."""
    made = await client.create(PODS, pod("web-1", "node-a", app="web"), namespace=namespace)
    assert (made.status.phase, made.spec.node_name) == ("Pending", "node-a")
    status = {
        "phase": "Running",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    patch = {"metadata": {"labels": {"app": "other"}}, "status": status}
    running = await client.patch(PODS, "web-1", patch, namespace=namespace, subresource="status")
    assert (running.status.phase, running.status.pod_ip) == ("Running", "10.1.0.1")
    await client.delete(PODS, "web-1", namespace=namespace, grace_period=0)
    with pytest.raises(NotFound):
        await client.get(PODS, "web-1", namespace=namespace)


async def test_slices_leases_and_config_maps(client: Client, namespace: str) -> None:
    """The other kinds that keepclose writes are stored as given."""
    made = await client.create(
        ENDPOINT_SLICES, endpoint_slice("web-a", "web", "10.1.0.1"), namespace=namespace
    )
    assert made.endpoints[0].addresses == ("10.1.0.1",)
    patch = {"endpoints": [{"addresses": ["10.1.0.2"], "hints": {"forZones": [{"name": "a"}]}}]}
    changed = await client.patch(ENDPOINT_SLICES, "web-a", patch, namespace=namespace)
    assert changed.endpoints[0].hints is not None
    assert changed.endpoints[0].hints.for_zones[0].name == "a"
    assert changed.metadata.generation == made.metadata.generation + 1
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 5}
    lease = {"metadata": {"name": "lock"}, "spec": spec}
    held = await client.create(LEASES, lease, namespace=namespace)
    assert held.spec.holder_identity == "me"
    assert (await client.update(LEASES, held)).spec.lease_duration_seconds == 5
    made_map = await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)
    assert made_map.data == {"value": "1"}
    kinds: list[tuple[Kind[Any], str]] = [
        (ENDPOINT_SLICES, "web-a"),
        (LEASES, "lock"),
        (CONFIG_MAPS, "m"),
    ]
    for kind, name in kinds:
        await client.delete(kind, name, namespace=namespace)
        assert (await client.list_all(kind, namespace=namespace)).items == []


async def test_many_objects_come_in_pages_of_one_version(client: Client, namespace: str) -> None:
    """Pages are one state, in order, without gaps, whatever is written between them."""
    await _create_many(client, namespace)
    want_names = [f"m-{number:04}" for number in range(MANY)]
    first = await client.list_page(CONFIG_MAPS, namespace=namespace, limit=500)
    assert (len(first.items), first.remaining) == (500, MANY - 500)
    await client.delete(CONFIG_MAPS, "m-1100", namespace=namespace)
    await client.create(CONFIG_MAPS, config_map("m-0900a"), namespace=namespace)
    second = await client.list_page(
        CONFIG_MAPS, namespace=namespace, limit=500, continue_token=first.continue_token
    )
    third = await client.list_page(
        CONFIG_MAPS, namespace=namespace, limit=500, continue_token=second.continue_token
    )
    pages = (first, second, third)
    assert [one.metadata.name for page in pages for one in page.items] == want_names
    assert {page.resource_version for page in pages} == {first.resource_version}
    assert third.continue_token == ""
    whole = await client.list_all(CONFIG_MAPS, namespace=namespace, page_size=500)
    want_names.remove("m-1100")
    assert [one.metadata.name for one in whole.items] == sorted([*want_names, "m-0900a"])
    assert all(one.metadata.name < other.metadata.name for one, other in pairwise(whole.items))


async def _create_many(client: Client, namespace: str) -> None:
    async def create(numbers: range) -> None:
        for number in numbers:
            await client.create(CONFIG_MAPS, config_map(f"m-{number:04}"), namespace=namespace)

    await asyncio.gather(*(create(range(start, MANY, 8)) for start in range(8)))


async def test_selectors(client: Client, namespace: str) -> None:
    """Labels and fields select, alone and together."""
    for name, node, tier in (("a", "n1", "front"), ("b", "n1", "back"), ("c", "n2", "front")):
        await client.create(PODS, pod(name, node, tier=tier), namespace=namespace)

    async def names(labels: str, fields: str) -> list[str]:
        page = await client.list_page(
            PODS, namespace=namespace, label_selector=labels, field_selector=fields
        )
        return [one.metadata.name for one in page.items]

    assert await names("tier=front", "") == ["a", "c"]
    assert await names("tier in (back,middle)", "") == ["b"]
    assert await names("!tier", "") == []
    assert await names("", "spec.nodeName=n1") == ["a", "b"]
    assert await names("tier!=back", "spec.nodeName=n1") == ["a"]
    assert await names("", "metadata.name=c") == ["c"]


async def test_patches_of_all_types(client: Client, namespace: str) -> None:
    """A JSON patch follows its operations, merge replaces lists, strategic merges them by key."""
    await client.create(SERVICES, service("web"), namespace=namespace)
    operation = {"op": "replace", "path": "/spec/ports/0/targetPort", "value": 9090}
    one = await client.patch(SERVICES, "web", [operation], namespace=namespace, type=PatchType.JSON)
    assert [port.target_port for port in one.spec.ports] == [9090]
    admin = {"spec": {"ports": [{"name": "admin", "port": 81}]}}
    two = await client.patch(SERVICES, "web", admin, namespace=namespace, type=PatchType.STRATEGIC)
    assert {port.name for port in two.spec.ports} == {"http", "admin"}
    three = await client.patch(SERVICES, "web", admin, namespace=namespace)
    assert [port.name for port in three.spec.ports] == ["admin"]
    stale = {"metadata": {"resourceVersion": one.metadata.resource_version, "labels": {"a": "b"}}}
    with pytest.raises(Conflict):
        await client.patch(SERVICES, "web", stale, namespace=namespace)
    failing = [{"op": "test", "path": "/metadata/name", "value": "other"}]
    with pytest.raises(Invalid):
        await client.patch(SERVICES, "web", failing, namespace=namespace, type=PatchType.JSON)


async def test_apply_conflicts_until_forced(client: Client, namespace: str) -> None:
    """A field of another manager is refused, and taken over by force."""
    mine = service("web", trafficDistribution="PreferSameZone")
    made = await client.apply(SERVICES, "web", mine, namespace=namespace, field_manager="me")
    again = await client.apply(SERVICES, "web", mine, namespace=namespace, field_manager="me")
    assert again.metadata.resource_version == made.metadata.resource_version
    other = {"metadata": {"name": "web"}, "spec": {"trafficDistribution": "PreferSameNode"}}
    with pytest.raises(Conflict) as caught:
        await client.apply(SERVICES, "web", other, namespace=namespace, field_manager="you")
    (cause,) = caught.value.causes
    assert (cause.reason, cause.field) == ("FieldManagerConflict", ".spec.trafficDistribution")
    assert '"me"' in cause.message
    forced = await client.apply(
        SERVICES, "web", other, namespace=namespace, field_manager="you", force=True
    )
    assert forced.spec.traffic_distribution == "PreferSameNode"
    assert [port.name for port in forced.spec.ports] == ["http"]


async def test_a_dry_run_leaves_no_trace(client: Client, namespace: str) -> None:
    """What a dry run answers is complete, and nothing is stored."""
    shown = await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace, dry_run=True)
    assert shown.metadata.uid
    assert shown.data == {"value": "1"}
    assert (await client.list_all(CONFIG_MAPS, namespace=namespace)).items == []


async def test_deleting_only_what_was_meant(client: Client, namespace: str) -> None:
    """An object that is another one by now, or has changed, is not deleted."""
    made = await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "m", namespace=namespace, uid="another")
    await client.patch(CONFIG_MAPS, "m", {"data": {"value": "2"}}, namespace=namespace)
    version = made.metadata.resource_version
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "m", namespace=namespace, resource_version=version)
    await client.delete(CONFIG_MAPS, "m", namespace=namespace, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAPS, "m", namespace=namespace)


async def test_objects_outside_namespaces(client: Client, namespace: str) -> None:
    """Namespaces themselves are read without a namespace."""
    found = await client.get(NAMESPACES, namespace)
    assert (found.metadata.namespace, found.is_terminating) == ("", False)


def test_two_users_have_two_tokens(api: Api) -> None:
    """Both kubeconfigs name a token, and the weak one another than the administrator's."""
    strong, weak = (
        yaml.safe_load(path.read_text())["users"][0]["user"]["token"]
        for path in (api.kubeconfig, api.weak_kubeconfig)
    )
    assert strong
    assert weak
    assert strong != weak
