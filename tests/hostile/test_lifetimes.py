"""Ends of objects: grace periods beyond all clocks, full namespaces, large graphs of owners."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.controllers.garbage_collector import GarbageCollector
from keepclose.apiserver.registry.deletion import DeleteOptions, Propagation
from keepclose.apiserver.registry.registry import strategies
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.deleting import Deleter, DeleteRequest
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.storage.errors import Missing
from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import Served, serving

JsonObject = dict[str, Any]
PODS = "/api/v1/namespaces/shop/pods"
# Linear is 4, quadratic 16.
MAX_GROWTH = 9.0


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve the namespace `shop` from a new directory."""
    async with serving(tmp_path / "data") as served:
        await served.create("/api/v1/namespaces", {"metadata": {"name": "shop"}})
        yield served


def pod(name: str, grace: int) -> JsonObject:
    """Return a Pod on a node with a grace period."""
    containers = [{"name": "main", "image": "web:1"}]
    spec = {"containers": containers, "nodeName": "n1", "terminationGracePeriodSeconds": grace}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("grace", "year"),
    [
        pytest.param(9_223_372_036, "23", id="the longest period of a kube-apiserver"),
        pytest.param(9_223_372_037, "17", id="a second more, which ends in the past"),
        pytest.param(2**40, "1", id="a period of 35,000 years"),
        pytest.param(2**62, "20", id="a period beyond all calendars"),
        pytest.param(2**63 - 1, "20", id="the largest number"),
        pytest.param(-(2**63), "20", id="the smallest number"),
    ],
)
async def test_a_pod_of_any_grace_period_is_deleted(api: Served, grace: int, year: str) -> None:
    """A deletion is marked by the arithmetic of a kube-apiserver, whatever the period is."""
    await api.create(PODS, pod("p", grace))
    reply = await api.call("DELETE", f"{PODS}/p")
    assert reply.status == 200, reply.message
    assert reply.json["metadata"]["deletionTimestamp"].startswith(year)


@pytest.mark.parametrize("grace", [10**12, 2**62, 2**63 - 1])
async def test_a_grace_period_that_a_client_asks_for_may_be_any(api: Served, grace: int) -> None:
    """A period of a query is taken like that of the pod, and can be shortened."""
    await api.create(PODS, pod("p", 30))
    assert (await api.call("DELETE", f"{PODS}/p?gracePeriodSeconds={grace}")).status == 200
    assert (await api.call("DELETE", f"{PODS}/p?gracePeriodSeconds=0")).status in (200, 404)


async def test_a_namespace_ends_whatever_the_grace_of_its_pods(api: Served) -> None:
    """A namespace with a pod of an endless grace period goes, and its pod with it."""
    await api.create(PODS, pod("p", 2**62))
    assert (await api.call("DELETE", "/api/v1/namespaces/shop")).status == 200
    await api.until_gone("/api/v1/namespaces/shop")


class Bed:
    """A store, and the garbage collector that follows it, one change after the other."""

    def __init__(self) -> None:
        """Begin with nothing stored."""
        self.store = Store.open(None)
        kinds = strategies()
        self.deleter = Deleter(self.store, kinds)
        self.collector = GarbageCollector(self.store, kinds, self.deleter.delete_dependent)
        stores = ("configmaps", "namespaces")
        limit = 10**9
        self._followed = [self.store.subscribe(one, since=None, limit=limit) for one in stores]

    def create(self, name: str, *, owners: tuple[str, ...] = (), **metadata: Any) -> None:
        """Store a ConfigMap in the namespace `shop`; the uid is made of the name."""
        references = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": f"uid-{owner}"}
            | {"blockOwnerDeletion": True}
            for owner in owners
        ]
        common = {"name": name, "namespace": "shop", "uid": f"uid-{name}", **metadata}
        if references:
            common["ownerReferences"] = references
        self.store.create(
            "configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": common}
        )

    def leave_namespace(self) -> None:
        """Store the namespace `shop` as one that is being deleted."""
        metadata = {"name": "shop", "uid": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}
        common = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self.store.create("namespaces", {**common, "spec": {"finalizers": ["kubernetes"]}})

    def delete(self, name: str, propagation: Propagation) -> None:
        """Delete a ConfigMap as a client does."""
        target = RequestTarget(BY_KIND["v1", "ConfigMap"], "shop", name)
        self.deleter.delete(target, DeleteRequest(DeleteOptions(propagation_policy=propagation)))

    def settle(self) -> None:
        """Handle all changes, and those that they lead to."""
        while changes := [one for followed in self._followed for one in followed.take()]:
            for change in changes:
                self.collector.handle(change)

    def left(self) -> int:
        """Return how many ConfigMaps are left."""
        return self.store.count("configmaps")


def name_of(number: int) -> str:
    """Return a name that sorts by its number."""
    return f"c{number:06}"


def fill_star(bed: Bed, count: int) -> None:
    """Store one owner of all others."""
    bed.create("root")
    for number in range(count):
        bed.create(name_of(number), owners=("root",))


def fill_chain(bed: Bed, count: int) -> None:
    """Store objects of which each owns the next."""
    bed.create("root")
    before = "root"
    for number in range(count):
        bed.create(name_of(number), owners=(before,))
        before = name_of(number)


def fill_cycle(bed: Bed, count: int) -> None:
    """Store objects that own each other in a circle, of which the root is part."""
    names = ["root", *(name_of(number) for number in range(count))]
    for name, owner in zip(names, [names[-1], *names[:-1]], strict=True):
        bed.create(name, owners=(owner,))


@pytest.mark.parametrize("fill", [fill_star, fill_chain, fill_cycle])
@pytest.mark.parametrize("propagation", list(Propagation))
def test_graphs_of_owners_are_collected_in_linear_time(
    fill: Callable[[Bed, int], None], propagation: Propagation
) -> None:
    """Four times as many dependents take about four times as long, and all of them go."""

    def cost(count: int) -> float:
        bed = Bed()
        fill(bed, count)
        bed.settle()
        begun = time.process_time()
        bed.delete("root", propagation)
        bed.settle()
        spent = time.process_time() - begun
        assert bed.left() == (count if propagation is Propagation.ORPHAN else 0)
        bed.store.close()
        return spent

    assert_linear(cost, 750)


def test_a_namespace_of_held_objects_ends_in_linear_time() -> None:
    """Objects that finalizers hold are not looked at again with each one that goes."""

    def cost(count: int) -> float:
        bed = Bed()
        bed.store.create(
            "namespaces",
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": "shop",
                    "uid": "n",
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {"finalizers": ["kubernetes"]},
            },
        )
        for number in range(count):
            bed.create(name_of(number), finalizers=["a.b/c"])
        begun = time.process_time()
        bed.settle()
        assert bed.left() == count
        for entry in bed.store.entries("configmaps"):
            bed.store.delete("configmaps", entry.namespace, entry.name)
            bed.settle()
        spent = time.process_time() - begun
        assert bed.store.get("namespaces", "", "shop") is None
        bed.store.close()
        return spent

    assert_linear(cost, 750)


def test_what_is_written_to_a_leaving_namespace_goes_too() -> None:
    """An object that comes while its namespace is emptied does not keep the namespace."""
    bed = Bed()
    bed.create("held", finalizers=["a.b/c"])
    bed.leave_namespace()
    bed.settle()
    bed.create("late")
    bed.settle()
    with pytest.raises(Missing):
        bed.store.delete("configmaps", "shop", "late")
    bed.store.delete("configmaps", "shop", "held")
    bed.settle()
    assert bed.store.get("namespaces", "", "shop") is None


def assert_linear(cost: Callable[[int], float], count: int) -> None:
    """Check that four times the objects cost less than nine times the CPU, beyond noise."""
    small = min(cost(count) for _ in range(2))
    large = min(cost(4 * count) for _ in range(2))
    assert large < MAX_GROWTH * small + 0.05, f"{small:.2f} s, then {large:.2f} s"
