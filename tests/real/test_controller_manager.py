"""The real EndpointSlice controllers work on our API server and agree with our planning."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keepclose.kube.client import Client
from keepclose.kube.errors import AlreadyExists, NotFound
from keepclose.kube.requests import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    LEASES,
    NAMESPACES,
    PODS,
    SERVICES,
)
from keepclose.model.core_kinds import ConfigMap
from support.real.apis import opened, service
from support.real.clusters import (
    address_of,
    create_nodes,
    create_pods,
    expected_places,
    node_of,
    places,
    read_slices,
    wait_for_places,
)
from support.real.controllers import CONTROLLERS, JSON, Manager, controller_manager
from support.real.embedded import Embedded, embedded_server, start_embedded

_NUMBERS = itertools.count(1)
ELECTION = (
    "--leader-elect=true",
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
)


class Cluster(NamedTuple):
    """Our server with real controllers."""

    server: Embedded
    manager: Manager


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run both for all tests of this file, and see that nothing went wrong meanwhile."""
    directory = tmp_path_factory.mktemp("cluster")
    with (
        embedded_server(directory / "data") as server,
        controller_manager(server.role("controller"), directory / "manager.log", JSON) as manager,
    ):

        async def prepare() -> None:
            async with opened(server.kubeconfig) as client:
                await create_nodes(client)

        asyncio.run(prepare())
        yield Cluster(server, manager)
        assert manager.process.poll() is None
        assert manager.repeated_errors() == {}
        assert manager.metric(r'endpoint_slice_controller_syncs\{result="success"') > 0
        assert manager.metric(r'endpoint_slice_controller_syncs\{result="error"') == 0


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """Connect as an administrator."""
    async with opened(cluster.server.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def place(client: Client) -> str:
    """Make a namespace for one test."""
    name = f"test-{next(_NUMBERS)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.mark.parametrize(
    ("spec", "annotations", "want_hints"),
    [
        pytest.param({}, {}, ((), ()), id="no hints without a wish"),
        pytest.param(
            {"trafficDistribution": "PreferSameZone"},
            {},
            (("zone-a",), ()),
            id="PreferSameZone gives each endpoint its zone",
        ),
        pytest.param(
            {"trafficDistribution": "PreferSameNode"},
            {},
            (("zone-a",), ("node-a",)),
            id="PreferSameNode gives each endpoint its zone and node",
        ),
        pytest.param(
            {},
            {"service.kubernetes.io/topology-mode": "Auto"},
            (("zone-a",), ()),
            id="topology mode Auto shares endpoints by CPU",
        ),
    ],
)
async def test_slices_carry_the_hints_that_we_plan(
    spec: dict[str, Any],
    annotations: dict[str, str],
    want_hints: tuple[tuple[str, ...], tuple[str, ...]],
    client: Client,
    place: str,
) -> None:
    """Addresses, nodes, zones and hints are those of our own planning, endpoint by endpoint."""
    new = service("web", **spec)
    new["metadata"]["annotations"] = annotations
    await client.create(SERVICES, new, namespace=place)
    await create_pods(client, place, "web", range(9))
    want = await expected_places(client, place, "web")
    assert len(want) == 9
    assert want[address_of(0)] == ("node-a", "zone-a", *want_hints)
    (piece,) = await wait_for_places(client, place, "web", want)
    assert piece.metadata.labels["endpointslice.kubernetes.io/managed-by"] == (
        "endpointslice-controller.k8s.io"
    )
    assert [(port.name, port.port) for port in piece.ports] == [("http", 8080)]


async def test_slices_follow_pods_and_services(client: Client, place: str) -> None:
    """A pod that goes leaves its slice; when the Service goes the collector takes the slices."""
    spec = {"trafficDistribution": "PreferSameZone"}
    await client.create(SERVICES, service("web", **spec), namespace=place)
    await create_pods(client, place, "web", range(3))
    await wait_for_places(client, place, "web", await expected_places(client, place, "web"))
    await client.delete(PODS, "web-1", namespace=place, grace_period=0)
    want = {
        address_of(number): (node_of(zone), zone, (zone,), ())
        for number, zone in ((0, "zone-a"), (2, "zone-c"))
    }
    (piece,) = await wait_for_places(client, place, "web", want)
    owner = piece.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.controller) == ("Service", "web", True)
    await client.delete(SERVICES, "web", namespace=place)
    await _wait_until_gone(client, place, "web")


async def test_many_pods_fill_several_slices(client: Client, place: str) -> None:
    """From 3 to 150 pods: slices hold at most a hundred endpoints, and all of them."""
    spec = {"trafficDistribution": "PreferSameZone"}
    await client.create(SERVICES, service("web", **spec), namespace=place)
    await create_pods(client, place, "web", range(3))
    await wait_for_places(client, place, "web", await expected_places(client, place, "web"))
    await create_pods(client, place, "web", range(3, 150))
    want = await expected_places(client, place, "web")
    assert len(want) == 150
    slices = await wait_for_places(client, place, "web", want)
    assert len(slices) >= 2
    assert max(len(piece.endpoints) for piece in slices) <= 100
    assert len(places(slices)) == sum(len(piece.endpoints) for piece in slices)


async def test_endpoints_without_a_selector_are_mirrored(client: Client, place: str) -> None:
    """The mirroring controller makes slices of Endpoints that a person wrote."""
    new = service("db")
    del new["spec"]["selector"]
    await client.create(SERVICES, new, namespace=place)
    subset = {
        "addresses": [{"ip": "192.168.7.1"}, {"ip": "192.168.7.2"}],
        "ports": [{"name": "http", "port": 5432}],
    }
    written = {"metadata": {"name": "db"}, "subsets": [subset]}
    await client.create(ENDPOINTS, written, namespace=place)
    want = {f"192.168.7.{last}": ("", "", (), ()) for last in (1, 2)}
    (piece,) = await wait_for_places(client, place, "db", want)
    assert piece.metadata.labels["endpointslice.kubernetes.io/managed-by"] == (
        "endpointslicemirroring-controller.k8s.io"
    )
    await client.delete(ENDPOINTS, "db", namespace=place)
    await _wait_until_gone(client, place, "db")


async def test_a_slice_that_somebody_deletes_comes_back(client: Client, place: str) -> None:
    """The controller sees the deletion by its watch and writes the slice anew."""
    await client.create(SERVICES, service("web"), namespace=place)
    await create_pods(client, place, "web", range(3))
    want = await expected_places(client, place, "web")
    (piece,) = await wait_for_places(client, place, "web", want)
    name = piece.metadata.name
    await client.delete(ENDPOINT_SLICES, name, namespace=place)
    (again,) = await wait_for_places(client, place, "web", want)
    assert again.metadata.name != name


async def test_protobuf_and_leader_election(tmp_path: Path) -> None:
    """With its defaults, protobuf and a lease, one manager leads and another takes over."""
    with embedded_server(tmp_path / "data") as server:
        one = controller_manager(server.role("controller"), tmp_path / "one.log", *ELECTION)
        two = controller_manager(server.role("controller"), tmp_path / "two.log", *ELECTION)
        with one as first:
            async with opened(server.kubeconfig) as client:
                await create_nodes(client)
                spec = {"trafficDistribution": "PreferSameZone"}
                await client.create(SERVICES, service("web", **spec), namespace="default")
                await create_pods(client, "default", "web", range(3))
                want = await expected_places(client, "default", "web")
                await wait_for_places(client, "default", "web", want)
                holder = await _holder(client)
                with two as second:
                    first.process.kill()
                    first.process.wait(20)
                    await create_pods(client, "default", "web", range(3, 6))
                    want = await expected_places(client, "default", "web")
                    await wait_for_places(client, "default", "web", want)
                    assert await _holder(client) not in ("", holder)
                    assert first.repeated_errors() == second.repeated_errors() == {}


async def test_controllers_survive_a_crash_of_the_server(tmp_path: Path) -> None:
    """After kill -9 and a new start at the same port the controllers simply go on."""
    killed = start_embedded(tmp_path / "data")
    port = int(killed.url.rpartition(":")[2])
    try:
        with controller_manager(killed.kubeconfig, tmp_path / "manager.log", JSON) as manager:
            async with opened(killed.kubeconfig) as client:
                await create_nodes(client)
                await client.create(SERVICES, service("web"), namespace="default")
                await create_pods(client, "default", "web", range(3))
                want = await expected_places(client, "default", "web")
                await wait_for_places(client, "default", "web", want)
                killed.process.kill()
                killed.process.wait(20)
            with embedded_server(tmp_path / "data", port=port) as server:
                async with opened(server.kubeconfig) as client:
                    await client.delete(PODS, "web-0", namespace="default", grace_period=0)
                    del want[address_of(0)]
                    await wait_for_places(client, "default", "web", want)
                    assert manager.process.poll() is None
    finally:
        killed.process.kill()
        killed.process.wait(20)
        assert killed.process.stdout is not None
        killed.process.stdout.close()


async def _holder(client: Client) -> str:
    lease = await client.get(LEASES, "kube-controller-manager", namespace="kube-system")
    return lease.spec.holder_identity or ""


async def _wait_until_gone(client: Client, namespace: str, service: str) -> None:
    left = await read_slices(client, namespace, service)
    for _ in range(900):
        if not left:
            return
        await asyncio.sleep(0.1)
        left = await read_slices(client, namespace, service)
    pytest.fail(f"still there: {left}")


async def test_objects_of_every_cluster_are_not_fought_over(tmp_path: Path) -> None:
    """What kube-controller-manager publishes in namespaces stays, and default/kubernetes too."""
    authority = tmp_path / "other-ca.crt"
    controllers = (
        *CONTROLLERS,
        "endpoints-controller",
        "serviceaccount-controller",
        "root-ca-certificate-publisher-controller",
    )
    with embedded_server(tmp_path / "data", "--advertise-address", "192.0.2.7") as server:
        # Another bundle than the server publishes: its own certificate, twice.
        authority.write_text(2 * (server.directory / "pki" / "ca.crt").read_text())
        flags = (JSON, f"--root-ca-file={authority}")
        async with opened(server.kubeconfig) as client:
            services = await client.list_all(SERVICES)
            slices = await client.list_all(ENDPOINT_SLICES)
            endpoints = await client.list_all(ENDPOINTS)
            with controller_manager(
                server.kubeconfig, tmp_path / "manager.log", *flags, controllers=controllers
            ) as manager:
                first = await _published(client, "first", authority.read_text())
                await _published(client, "second", authority.read_text())
                again = await _published(client, "first", authority.read_text())
                assert again == first
                assert manager.repeated_errors() == {}
            assert (await client.list_all(SERVICES)).items == services.items
            assert (await client.list_all(ENDPOINT_SLICES)).items == slices.items
            assert (await client.list_all(ENDPOINTS)).items == endpoints.items


async def _published(client: Client, namespace: str, bundle: str) -> ConfigMap:
    """Return the ConfigMap of a namespace, made if need be, once it holds the bundle."""
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(NotFound):
                found = await client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=namespace)
                if found.data.get("ca.crt") == bundle:
                    return found
            await asyncio.sleep(0.05)
