"""Our webhook beside a real kube-controller-manager: our hints stay, and there is no war."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.requests import (
    ENDPOINT_SLICES,
    EVENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
)
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from support.real.apis import CLOCK, opened, pod, service, wait_until
from support.real.clusters import (
    ZONES,
    Place,
    address_of,
    create_nodes,
    create_pods,
    node_of,
    places,
    read_slices,
    wait_for_places,
)
from support.real.controllers import Manager, controller_manager
from support.real.programs import (
    ControlPlane,
    free_port,
    program,
    real_control_plane,
    wait_until_answering,
)

MANIFEST = Path(__file__).parent.parent.parent / "docs" / "howto" / "webhook.yaml"
ANNOTATION = "keepclose.dev/traffic-distribution"
REST_S = float(os.environ.get("KEEPCLOSE_REST_SECONDS", "15"))
_NUMBERS = itertools.count(1)
GATES = "TrafficDistributionCustomHeuristics=true"
REVIEWS = "keepclose_webhook_reviews_total"
UPDATES = r'endpoint_slice_controller_changes\{operation="update"'
SYNCS = r'endpoint_slice_controller_syncs\{result="success"'


class Cluster(NamedTuple):
    """A real control plane, and where the webhook is to answer."""

    plane: ControlPlane
    manager: Manager
    directory: Path
    port: int


class Hook(NamedTuple):
    """A running `keepclose controller --mode=webhook`."""

    process: subprocess.Popen[bytes]
    log: Path
    pages: str

    def metric(self, pattern: str) -> float:
        """Return the sum of the samples whose name and labels match."""
        with urllib.request.urlopen(f"{self.pages}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(one) for one in re.findall(rf"^{pattern}\S* (\S+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the control plane for all tests of this file, and see that nothing broke meanwhile."""
    directory = tmp_path_factory.mktemp("webhook")
    with (
        real_control_plane(directory) as plane,
        controller_manager(
            plane.kubeconfig, directory / "manager.log", "--max-endpoints-per-slice=4"
        ) as manager,
    ):

        async def prepare() -> None:
            async with opened(plane.kubeconfig) as client:
                await create_nodes(client)

        asyncio.run(prepare())
        yield Cluster(plane, manager, directory, free_port())
        assert manager.process.poll() is None
        assert manager.repeated_errors() == {}


@contextlib.contextmanager
def hooked(
    cluster: Cluster, *, reached_at: int = 0, kubeconfig: Path | None = None, gates: str = GATES
) -> Iterator[Hook]:
    """Run our webhook for the time of the block; the server may be told of another port."""
    pages = f"127.0.0.1:{free_port()}"
    log = cluster.directory / f"keepclose-{next(_NUMBERS)}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                Path(sys.executable).parent / "keepclose",
                "controller",
                "--mode=webhook",
                f"--kubeconfig={kubeconfig or cluster.plane.kubeconfig}",
                f"--webhook-address=127.0.0.1:{cluster.port}",
                f"--webhook-url=https://127.0.0.1:{reached_at or cluster.port}",
                f"--metrics-address={pages}",
                f"--feature-gates={gates}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_answering(f"http://{pages}/readyz", process, log)
            yield Hook(process, log, f"http://{pages}")
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0, log.read_text()[-3000:]


@pytest.fixture
def hook(cluster: Cluster) -> Iterator[Hook]:
    """Run our webhook for one test; it must log no error."""
    with hooked(cluster) as one:
        yield one
        text = one.log.read_text()
        assert "Traceback" not in text, text
        assert '"level": "error"' not in text, text


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """Connect as an administrator."""
    async with opened(cluster.plane.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def place(client: Client) -> str:
    """Make a namespace for one test."""
    name = f"test-{next(_NUMBERS)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


class Writes:
    """The writes of slices in a namespace that the server stored, seen by a watch."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.losses: list[str] = []

    def hear(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Note a change and what kind it is."""
        one = new or old
        assert one is not None
        kind = "create" if old is None else "delete" if new is None else "update"
        if old is not None and new is not None:
            if old.endpoints == new.endpoints:
                kind = "metadata"
            hinted = {one.addresses for one in old.endpoints if one.hints and one.is_ready}
            bare = [one for one in new.endpoints if not one.hints and one.is_ready]
            self.losses += [str(one.addresses) for one in bare if one.addresses in hinted]
        self.seen.append((kind, one.metadata.name))

    @property
    def kinds(self) -> Counter[str]:
        """How many writes of each kind there were."""
        return Counter(kind for kind, _ in self.seen)


@contextlib.asynccontextmanager
async def counted(client: Client, namespace: str) -> AsyncIterator[Writes]:
    """Count the stored writes of slices for the time of the block."""
    cache: Cache[EndpointSlice] = Cache()
    reflector = Reflector(client, ENDPOINT_SLICES, cache, clock=CLOCK, namespace=namespace)
    task = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    writes = Writes()
    cache.subscribe(writes.hear)
    writes.seen.clear()
    try:
        yield writes
    finally:
        task.cancel()
        await asyncio.wait((task,))


def close(numbers: range, *, nodes: bool = False) -> dict[str, Place]:
    """Return the places of pods that are hinted for where they are."""
    found: dict[str, Place] = {}
    for number in numbers:
        zone = ZONES[number % len(ZONES)]
        found[address_of(number)] = (
            node_of(zone),
            zone,
            (zone,),
            (node_of(zone),) if nodes else (),
        )
    return found


def bare(numbers: range) -> dict[str, Place]:
    """Return the places of pods without hints."""
    return {address: (*place[:2], (), ()) for address, place in close(numbers).items()}


async def create_service(
    client: Client, namespace: str, value: str, *, name: str = "web", **spec: Any
) -> None:
    """Create a Service that asks by annotation."""
    new = service(name, **spec)
    new["metadata"]["annotations"] = {ANNOTATION: value}
    await client.create(SERVICES, new, namespace=namespace)


async def annotate(client: Client, namespace: str, value: str | None) -> None:
    """Have the Service ask, or with None ask no more."""
    patch = {"metadata": {"annotations": {ANNOTATION: value}}}
    await client.patch(SERVICES, "web", patch, namespace=namespace)


async def set_ready(client: Client, namespace: str, name: str, *, ready: bool) -> None:
    """Say of a pod whether it is ready, with the time from which a trigger time is made."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    word = "True" if ready else "False"
    condition = {"type": "Ready", "status": word, "lastTransitionTime": now}
    patch = {"status": {"conditions": [condition]}}
    await client.patch(PODS, name, patch, namespace=namespace, subresource="status")


async def provoke(cluster: Cluster, client: Client, namespace: str, name: str = "web") -> None:
    """Have the manager sync a Service once more, and return when it has."""
    before = cluster.manager.metric(SYNCS)
    patch = {"metadata": {"annotations": {"example.dev/touched": str(next(_NUMBERS))}}}
    await client.patch(SERVICES, name, patch, namespace=namespace)
    await wait_until(lambda: cluster.manager.metric(SYNCS) > before, "the manager syncs")
    await settle(cluster)


async def settle(cluster: Cluster) -> None:
    """Return when the manager has synced nothing for longer than it waits after a slice."""
    seen, since = -1.0, CLOCK.monotonic()
    while CLOCK.monotonic() - since < 2.0:
        now = cluster.manager.metric("endpoint_slice_controller_(?:syncs|changes)")
        if now != seen:
            seen, since = now, CLOCK.monotonic()
        await asyncio.sleep(0.1)


async def hinted_zones(client: Client, namespace: str, name: str = "web") -> Counter[str]:
    """Return how many ready endpoints are hinted for each zone; "" counts those for none."""
    found = places(await read_slices(client, namespace, name))
    return Counter(zones[0] if len(zones) == 1 else "" for _, _, zones, _ in found.values())


async def wait_for_zones(client: Client, namespace: str, want: dict[str, int]) -> None:
    """Return when so many endpoints are hinted for each zone."""
    found: Counter[str] = Counter()
    for _ in range(900):
        found = await hinted_zones(client, namespace)
        if found == Counter(want):
            return
        await asyncio.sleep(0.1)
    assert found == Counter(want)


@pytest.mark.parametrize("value", ["PreferSameZone", "PreferSameNode"])
async def test_hints_stay_ours_while_pods_come_and_go(
    value: str, cluster: Cluster, hook: Hook, client: Client, place: str
) -> None:
    """No ready endpoint that was hinted is ever without hints, and all end up hinted."""
    nodes = value == "PreferSameNode"
    async with counted(client, place) as writes:
        await create_service(client, place, value)
        await create_pods(client, place, "web", range(9))
        await wait_for_places(client, place, "web", close(range(9), nodes=nodes))
        for number in range(3):
            await client.delete(PODS, f"web-{number}", namespace=place, grace_period=0)
        await create_pods(client, place, "web", range(9, 12))
        want = close(range(3, 12), nodes=nodes)
        slices = await wait_for_places(client, place, "web", want)
        await settle(cluster)
        assert places(await read_slices(client, place, "web")) == want
    assert len(slices) >= 3
    assert writes.losses == []
    assert hook.metric("keepclose_hint_losses_total") == 0


async def test_an_allocation_over_several_slices(
    cluster: Cluster, hook: Hook, client: Client, place: str
) -> None:
    """Balanced lends endpoints to zones with few, follows pods and nodes, and comes to rest."""
    await create_service(client, place, "keepclose.dev/Balanced")
    for number in range(9):
        zone = ZONES[0] if number < 7 else ZONES[number - 6]
        await client.create(PODS, pod(f"web-{number}", node_of(zone), app="web"), namespace=place)
        status = {
            "phase": "Running",
            "podIP": address_of(number),
            "podIPs": [{"ip": address_of(number)}],
        }
        await client.patch(
            PODS, f"web-{number}", {"status": status}, namespace=place, subresource="status"
        )
        await set_ready(client, place, f"web-{number}", ready=True)
    await wait_for_zones(client, place, {"zone-a": 3, "zone-b": 3, "zone-c": 3})
    for number in range(3):
        await client.delete(PODS, f"web-{number}", namespace=place, grace_period=0)
    await wait_for_zones(client, place, {"zone-a": 2, "zone-b": 2, "zone-c": 2})
    await settle(cluster)
    assert await hinted_zones(client, place) == {"zone-a": 2, "zone-b": 2, "zone-c": 2}
    try:
        cpu = {"status": {"allocatable": {"cpu": "16"}, "capacity": {"cpu": "16"}}}
        await client.patch(NODES, "node-a", cpu, subresource="status")
        await wait_for_zones(client, place, {"zone-a": 4, "zone-b": 1, "zone-c": 1})
    finally:
        cpu = {"status": {"allocatable": {"cpu": "4"}, "capacity": {"cpu": "4"}}}
        await client.patch(NODES, "node-a", cpu, subresource="status")
    await wait_for_zones(client, place, {"zone-a": 2, "zone-b": 2, "zone-c": 2})
    await settle(cluster)
    async with counted(client, place) as writes:
        await provoke(cluster, client, place)
    assert writes.seen == []
    assert hook.metric("keepclose_hint_losses_total") == 0


async def test_a_change_costs_one_write_and_updates_without_effect(
    cluster: Cluster, hook: Hook, client: Client, place: str
) -> None:
    """The slice that changes is stored once; the others are asked for and found unchanged."""
    await create_service(client, place, "PreferSameZone")
    await create_pods(client, place, "web", range(9))
    slices = await wait_for_places(client, place, "web", close(range(9)))
    await settle(cluster)
    async with counted(client, place) as writes:
        for ready in (False, True, False):
            writes.seen.clear()
            asked = cluster.manager.metric(UPDATES)
            synced = cluster.manager.metric(SYNCS)
            await set_ready(client, place, "web-4", ready=ready)
            await settle(cluster)
            assert [kind for kind, _ in writes.seen] == ["update"]
            # A second sync comes where the manager hears of its own write before the answer to it.
            # It may write the changed slice by its old version, and a conflict is no update.
            syncs = cluster.manager.metric(SYNCS) - synced
            assert syncs in (1, 2)
            updates = cluster.manager.metric(UPDATES) - asked
            assert updates in (syncs * len(slices), syncs * len(slices) - (syncs - 1))
    want = close(range(9))
    del want[address_of(4)]
    assert places(await read_slices(client, place, "web")) == want
    assert hook.metric("keepclose_hint_writes_total") == 0


async def test_nothing_is_written_at_rest(
    cluster: Cluster, hook: Hook, client: Client, place: str
) -> None:
    """After every Service was synced once more there is not one write, nor even a request."""
    values = {"a": "PreferSameZone", "b": "PreferSameNode", "c": "keepclose.dev/Balanced"}
    for name, value in values.items():
        await create_service(client, place, value, name=name)
        await create_pods(client, place, name, range(9))
    for name, value in values.items():
        want = close(range(9), nodes=value == "PreferSameNode")
        await wait_for_places(client, place, name, want)
    await settle(cluster)
    async with counted(client, place) as writes:
        asked = cluster.manager.metric(UPDATES)
        for name in values:
            await provoke(cluster, client, place, name)
        provoked = cluster.manager.metric(UPDATES) - asked
        assert provoked == sum([len(await read_slices(client, place, name)) for name in values])
        assert writes.seen == []
        asked, shown = cluster.manager.metric(UPDATES), hook.metric(REVIEWS)
        written = hook.metric("keepclose_hint_writes_total")
        await asyncio.sleep(REST_S)
        assert writes.seen == []
        assert cluster.manager.metric(UPDATES) == asked
        assert hook.metric(REVIEWS) == shown
        assert hook.metric("keepclose_hint_writes_total") == written


@pytest.mark.parametrize(
    ("spec", "want_after"),
    [
        pytest.param({}, bare(range(6)), id="no hints where nothing else was asked for"),
        pytest.param(
            {"trafficDistribution": "PreferSameZone"},
            close(range(6)),
            id="those of the field where it is set",
        ),
    ],
)
async def test_services_opt_in_and_out(  # noqa: PLR0917 - fixtures
    spec: dict[str, str],
    want_after: dict[str, Place],
    cluster: Cluster,
    hook: Hook,
    client: Client,
    place: str,
) -> None:
    """The annotation sets hints on slices that exist; without it they are the manager's again."""
    await client.create(SERVICES, service("web", **spec), namespace=place)
    await create_pods(client, place, "web", range(6))
    await wait_for_places(client, place, "web", want_after)
    want = close(range(6), nodes=True)
    for _ in range(2):
        await annotate(client, place, "PreferSameNode")
        await wait_for_places(client, place, "web", want)
        await settle(cluster)
        assert places(await read_slices(client, place, "web")) == want
        await annotate(client, place, None)
        await wait_for_places(client, place, "web", want_after)
        await settle(cluster)
        assert places(await read_slices(client, place, "web")) == want_after
    assert hook.metric("keepclose_hint_losses_total") == 0


async def test_writes_go_through_while_the_webhook_is_dead(
    cluster: Cluster, client: Client, place: str
) -> None:
    """Killed, it holds nothing up; back, it sets what was missed, and is trusted as before."""
    await create_service(client, place, "PreferSameZone")
    with hooked(cluster) as hook:
        await create_pods(client, place, "web", range(3))
        await wait_for_places(client, place, "web", close(range(3)))
        await settle(cluster)
        registered = await client.get(MUTATING_WEBHOOKS, "keepclose-hints")
        hook.process.kill()
        hook.process.wait(60)
    await create_pods(client, place, "web", range(3, 6))
    await wait_for_places(client, place, "web", bare(range(6)))
    with hooked(cluster) as hook:
        await wait_for_places(client, place, "web", close(range(6)))
        await settle(cluster)
        assert places(await read_slices(client, place, "web")) == close(range(6))
        again = await client.get(MUTATING_WEBHOOKS, "keepclose-hints")
        assert again == registered
        (only,) = again["webhooks"]
        assert (only["failurePolicy"], only["sideEffects"]) == ("Ignore", "None")


async def test_a_webhook_that_cannot_be_reached_makes_no_war(
    cluster: Cluster, client: Client, place: str
) -> None:
    """Where the server asks at a port that nobody has, hints are set more and more rarely."""
    await create_service(client, place, "PreferSameZone")
    await create_pods(client, place, "web", range(3))
    with hooked(cluster, reached_at=free_port()) as hook:
        async with counted(client, place) as writes:
            await asyncio.sleep(12)
            # Set at about 0, 1, 4 and 9 seconds, and removed as often.
            assert 2 <= len(writes.seen) <= 10
        assert 2 <= hook.metric("keepclose_hint_writes_total") <= 5
        assert hook.metric("keepclose_hint_losses_total") >= 1
        assert "hints removed without a review" in hook.log.read_text()


def grant(plane: ControlPlane, directory: Path) -> None:
    """Apply the manifest and give its roles to the stranger, who has no other rights."""
    # Whoever is reached by a URL is at home in kube-system.
    (own,) = [one for one in MANIFEST.read_text().split("---") if "\nkind: Role\n" in one]
    at_home = directory / "role.yaml"
    at_home.write_text(own.replace("namespace: keepclose", "namespace: kube-system"))
    role, user = "keepclose-webhook", "--user=stranger"
    for command in (
        ("apply", "-f", str(MANIFEST)),
        ("apply", "-f", str(at_home)),
        ("create", "clusterrolebinding", "try", f"--clusterrole={role}", user),
        ("create", "rolebinding", "try", "-n", "kube-system", f"--role={role}", user),
        ("delete", "mutatingwebhookconfiguration,secret", "-n", "kube-system", "--all"),
    ):
        kubectl = [str(program("kubectl")), f"--kubeconfig={plane.kubeconfig}"]
        subprocess.run([*kubectl, *command], check=True, capture_output=True)


async def test_the_rights_on_the_page_are_enough(
    cluster: Cluster, client: Client, place: str, tmp_path: Path
) -> None:
    """The manifest is accepted, and with its roles alone hints and conditions are written."""
    grant(cluster.plane, tmp_path)
    gates = f"{GATES},ServiceTrafficDistributionStatus=true,NodeLevelTopology=true"
    with hooked(cluster, kubeconfig=cluster.plane.stranger, gates=gates) as hook:
        await create_service(client, place, "example.dev/Nobody")
        await create_pods(client, place, "web", range(3))
        reasons: set[str] = set()
        for _ in range(900):
            page = await client.list_all(EVENTS, namespace=place)
            reasons = {one.reason for one in page.items}
            if reasons:
                break
            await asyncio.sleep(0.1)
        assert reasons == {"HintsNotSet"}
        await annotate(client, place, "PreferSameNode")
        await wait_for_places(client, place, "web", close(range(3), nodes=True))
        await settle(cluster)
        found = await client.get(SERVICES, "web", namespace=place)
        assert hook.metric(REVIEWS) > 0
        assert hook.metric("keepclose_hint_writes_total") > 0
        assert "forbidden" not in hook.log.read_text().lower()
    assert {one.type: one.status for one in found.status.conditions} == {
        "keepclose.dev/TrafficDistributionAccepted": "True",
        "keepclose.dev/TrafficDistributionProgrammed": "True",
    }
