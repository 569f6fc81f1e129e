"""The garbage collector over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.controllers.garbage_collector import GarbageCollector
from keepclose.apiserver.registry.deletion import (
    DeleteOptions,
    DeletionStep,
    Preconditions,
    decide_deletion,
)
from keepclose.apiserver.resources import BY_KIND, RESOURCES
from keepclose.apiserver.status_errors import not_found
from keepclose.apiserver.storage.store import Store
from keepclose.model.json_values import JsonObject
from keepclose.testing.api_server import PATIENCE
from support.kinds import NOW, Kinds, raw


class Cluster:
    """A store, a collector, and clients who delete."""

    def __init__(self) -> None:
        """Start with the default namespace."""
        self.store = Store.open(None)
        self.kinds = Kinds()
        self.collector = GarbageCollector(self.store, self.kinds.strategies, self.remove)
        self.subscriptions = [
            self.store.subscribe(name, since=None) for name in self.kinds.strategies
        ]
        self.removed: list[tuple[str, str]] = []
        self.refuse: set[str] = set()

    def add(self, kind: str, name: str, *owners: JsonObject, **metadata: Any) -> JsonObject:
        """Store an object that belongs to others; each owner is blocked by it."""
        references = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
            for owner in owners
        ]
        spec = {"finalizers": ["kubernetes"]} if kind == "Namespace" else {}
        obj = raw(kind, name, metadata={"uid": f"uid-{name}", **metadata}, spec=spec)
        if references:
            obj["metadata"]["ownerReferences"] = references
        self.store.create(self._store_of(obj), obj)
        return obj

    def remove(
        self,
        store: str,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        propagation: str | None = None,
    ) -> None:
        """Delete as a client does."""
        if name in self.refuse:
            raise not_found(store, "", name)
        self.removed.append((name, str(propagation or "")))
        entry = self.store.get(store, namespace, name)
        assert entry is not None
        stored = msgspec.json.decode(entry.data)
        resource = next(one for one in RESOURCES if one.store == store and not one.stored_as)
        options = DeleteOptions(
            propagation_policy=propagation, preconditions=Preconditions(uid=uid or None)
        )
        strategy = self.kinds.strategies[store]
        decided = decide_deletion(resource, stored, strategy, options, now=NOW)
        if decided.step is DeletionStep.REMOVE:
            self.store.delete(store, namespace, name, final=decided.object)
        elif decided.step is DeletionStep.MARK:
            self.store.update(store, decided.object)

    def delete(self, obj: JsonObject, propagation: str | None = None) -> None:
        """Delete an object and let the collector do what follows."""
        self.remove(
            self._store_of(obj),
            obj["metadata"].get("namespace", ""),
            obj["metadata"]["name"],
            propagation=propagation,
        )
        self.removed.clear()
        self.settle()

    def settle(self) -> None:
        """Hand all changes to the collector until there are none."""
        while changes := [change for one in self.subscriptions for change in one.take()]:
            for change in changes:
                self.collector.handle(change)

    def names(self) -> set[str]:
        """Return the names of all that is stored."""
        return {entry.name for name in self.kinds.strategies for entry in self.store.entries(name)}

    def read(self, obj: JsonObject) -> JsonObject:
        """Return an object as it is stored."""
        entry = self.store.get(
            self._store_of(obj), obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        )
        assert entry is not None
        found: JsonObject = msgspec.json.decode(entry.data)
        return found

    def write(self, obj: JsonObject) -> None:
        """Store another state of an object."""
        self.store.update(self._store_of(obj), obj)
        self.settle()

    def _store_of(self, obj: JsonObject) -> str:
        return BY_KIND[obj["apiVersion"], obj["kind"]].store


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return an empty cluster."""
    made = Cluster()
    yield made
    made.store.close()


def test_dependents_follow_their_owner(cluster: Cluster) -> None:
    """A Deployment's ReplicaSets go with it, and their pods with them."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment)
    cluster.add("Pod", "p", replicas)
    cluster.add("Pod", "other")
    cluster.settle()
    cluster.delete(deployment)
    assert cluster.names() == {"other"}
    assert cluster.removed == [("r", "Background"), ("p", "Background")]


def test_a_dependent_with_another_owner_stays(cluster: Cluster) -> None:
    """Only the reference to the owner that is gone is removed."""
    one, two = cluster.add("Service", "one"), cluster.add("Service", "two")
    shared = cluster.add("EndpointSlice", "s", one, two)
    cluster.settle()
    cluster.delete(one)
    (reference,) = cluster.read(shared)["metadata"]["ownerReferences"]
    assert reference["name"] == "two"
    cluster.delete(two)
    assert cluster.names() == set()


def test_an_owner_of_the_same_name_is_another_one(cluster: Cluster) -> None:
    """What belongs to an earlier object of the name is collected when it is stored."""
    service = cluster.add("Service", "web")
    service["metadata"]["uid"] = "an earlier one"
    cluster.add("EndpointSlice", "s", service)
    cluster.settle()
    assert cluster.names() == {"web"}


def test_owners_of_unknown_kinds_are_believed_in(cluster: Cluster) -> None:
    """The server cannot tell whether they exist."""
    alien = {"apiVersion": "x.y/v1", "kind": "Foo", "metadata": {"name": "f", "uid": "u"}}
    cluster.add("ConfigMap", "c", alien)
    cluster.settle()
    assert cluster.names() == {"c"}


def test_cluster_wide_owners_are_found(cluster: Cluster) -> None:
    """A pod may belong to a node."""
    node = cluster.add("Node", "n")
    cluster.add("Pod", "p", node)
    cluster.settle()
    assert cluster.names() == {"n", "p"}
    cluster.delete(node)
    assert cluster.names() == set()


def test_foreground_deletion_waits_for_those_who_block(cluster: Cluster) -> None:
    """The owner goes last, after dependents that take their time."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment)
    held = cluster.add("Pod", "p", replicas, finalizers=["a.b/c"])
    cluster.settle()
    cluster.delete(deployment, "Foreground")
    assert cluster.names() == {"d", "r", "p"}
    assert cluster.removed == [("r", "Foreground"), ("p", "Background")]
    assert cluster.read(deployment)["metadata"]["finalizers"] == ["foregroundDeletion"]
    store = cluster.store
    store.delete("pods", "default", held["metadata"]["name"])
    cluster.settle()
    assert cluster.names() == set()


def test_foreground_deletion_does_not_wait_for_others(cluster: Cluster) -> None:
    """A dependent that does not block may go later, or lose its reference."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment, finalizers=["a.b/c"])
    replicas["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = False
    cluster.write(replicas)
    cluster.delete(deployment, "Foreground")
    assert cluster.names() == {"r"}


def test_a_dependent_that_changes_owners_frees_the_old_one(cluster: Cluster) -> None:
    """An owner that waits goes when the last one who blocks it leaves."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment, finalizers=["a.b/c"])
    cluster.settle()
    cluster.delete(deployment, "Foreground")
    changed = cluster.read(replicas)
    del changed["metadata"]["ownerReferences"]
    cluster.write(changed)
    assert cluster.names() == {"r"}


def test_a_shared_dependent_leaves_an_owner_that_waits(cluster: Cluster) -> None:
    """With another owner it stays, and lets the first one go."""
    one, two = cluster.add("Service", "one"), cluster.add("Service", "two")
    shared = cluster.add("EndpointSlice", "s", one, two)
    cluster.settle()
    cluster.delete(one, "Foreground")
    assert cluster.names() == {"two", "s"}
    (reference,) = cluster.read(shared)["metadata"]["ownerReferences"]
    assert reference["name"] == "two"


def _make_circle(cluster: Cluster, *kinds: str) -> list[JsonObject]:
    """Store objects of these kinds, each owned by the one before, the first by the last."""
    members = [cluster.add(kinds[0], "member-0")]
    for place, kind in enumerate(kinds[1:], start=1):
        members.append(cluster.add(kind, f"member-{place}", members[-1]))
    first, last = members[0], members[-1]
    first["metadata"]["ownerReferences"] = [
        {
            "apiVersion": last["apiVersion"],
            "kind": last["kind"],
            "name": last["metadata"]["name"],
            "uid": last["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
    ]
    cluster.write(first)
    return members


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("ConfigMap", "ConfigMap"), id="two of a kind"),
        pytest.param(("ConfigMap",) * 3, id="three of a kind"),
        pytest.param(("Deployment", "ConfigMap", "Service", "ReplicaSet"), id="four kinds"),
    ],
)
def test_owners_in_a_circle_go_together(
    cluster: Cluster, kinds: tuple[str, ...], propagation: str
) -> None:
    """No member of a circle waits for the others for ever, though each blocks its owner."""
    members = _make_circle(cluster, *kinds)
    cluster.add("ConfigMap", "outside", members[1])
    cluster.settle()
    cluster.delete(members[0], propagation)
    assert cluster.names() == set()


def test_a_circle_is_left_by_an_orphaning_owner(cluster: Cluster) -> None:
    """Deleted with Orphan, one member leaves the others, which then have an end."""
    members = _make_circle(cluster, *["ConfigMap"] * 3)
    cluster.delete(members[0], "Orphan")
    assert cluster.names() == {"member-1", "member-2"}
    assert "ownerReferences" not in cluster.read(members[1])["metadata"]


def test_the_object_that_closes_a_circle_stops_blocking(cluster: Cluster) -> None:
    """Only it is changed: kube-controller-manager sets blockOwnerDeletion to false there."""
    members = _make_circle(cluster, *["ConfigMap"] * 3)
    for member in members:
        held = cluster.read(member)
        held["metadata"]["finalizers"] = ["a.b/c"]
        cluster.write(held)
    cluster.delete(members[0], "Foreground")
    blocking = [
        cluster.read(member)["metadata"]["ownerReferences"][0]["blockOwnerDeletion"]
        for member in members
    ]
    assert blocking == [True, True, False]


def test_an_owner_goes_once_its_dependent_stops_blocking(cluster: Cluster) -> None:
    """An update that sets blockOwnerDeletion to false frees an owner that waits."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment, finalizers=["a.b/c"])
    cluster.settle()
    cluster.delete(deployment, "Foreground")
    changed = cluster.read(replicas)
    changed["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = False
    cluster.write(changed)
    assert cluster.names() == {"r"}


def test_a_namespace_does_not_wait_for_objects_that_wait(cluster: Cluster) -> None:
    """A member of a circle that is marked already goes with its namespace."""
    namespace = cluster.add("Namespace", "n")
    own = cluster.add("ConfigMap", "self", namespace="n")
    own["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "self",
            "uid": "uid-self",
            "blockOwnerDeletion": True,
        }
    ]
    cluster.write(own)
    cluster.delete(own, "Foreground")
    # NB: kube-controller-manager leaves an object that blocks itself, too.
    assert cluster.names() == {"n", "self"}
    cluster.delete(namespace)
    assert cluster.names() == set()


def test_orphans_lose_their_reference_and_stay(cluster: Cluster) -> None:
    """The owner goes once nobody refers to it."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment)
    cluster.settle()
    cluster.delete(deployment, "Orphan")
    assert cluster.names() == {"r"}
    assert "ownerReferences" not in cluster.read(replicas)["metadata"]


def test_a_dependent_keeps_its_own_wish_for_orphans(cluster: Cluster) -> None:
    """An object with the finalizer to orphan does so when it is collected."""
    deployment = cluster.add("Deployment", "d")
    replicas = cluster.add("ReplicaSet", "r", deployment, finalizers=["orphan"])
    cluster.add("Pod", "p", replicas)
    cluster.settle()
    cluster.delete(deployment)
    assert cluster.names() == {"p"}
    assert cluster.removed == [("r", "Orphan")]


def test_a_namespace_goes_with_all_that_is_in_it(cluster: Cluster) -> None:
    """It is emptied, and removed when the last object is gone."""
    namespace = cluster.add("Namespace", "n")
    cluster.add("ConfigMap", "a", namespace="n")
    held = cluster.add("Service", "b", namespace="n", finalizers=["a.b/c"])
    cluster.add("ConfigMap", "elsewhere")
    cluster.settle()
    cluster.delete(namespace)
    assert cluster.names() == {"n", "b", "elsewhere"}
    cluster.store.delete("services", "n", held["metadata"]["name"])
    cluster.settle()
    assert cluster.names() == {"elsewhere"}


def test_other_finalizers_hold_an_empty_namespace(cluster: Cluster) -> None:
    """Only the collector's own finalizer is removed by it."""
    namespace = cluster.add("Namespace", "n")
    namespace["spec"]["finalizers"].append("foo.com/x")
    cluster.write(namespace)
    cluster.delete(namespace)
    assert cluster.read(namespace)["spec"] == {"finalizers": ["foo.com/x"]}


def test_endpoints_go_with_their_service(cluster: Cluster) -> None:
    """A new Service of the name does not begin with old addresses."""
    service = cluster.add("Service", "web")
    cluster.add("Endpoints", "web")
    cluster.settle()
    cluster.delete(service)
    assert cluster.names() == set()


def test_a_refusal_does_not_stop_the_collector(cluster: Cluster) -> None:
    """What cannot be deleted stays; the others go."""
    service = cluster.add("Service", "web")
    cluster.add("EndpointSlice", "a", service)
    cluster.add("EndpointSlice", "b", service)
    cluster.settle()
    cluster.refuse.add("a")
    cluster.delete(service)
    assert cluster.names() == {"a"}


def test_an_allocation_is_given_back_with_the_object(cluster: Cluster) -> None:
    """A Service that the collector removes frees its address."""
    service = cluster.kinds.write(
        raw(
            "Service",
            "web",
            metadata={"uid": "u", "finalizers": ["foregroundDeletion"], "deletionTimestamp": NOW},
            spec={"ports": [{"port": 80}], "clusterIP": "10.96.0.10"},
        )
    ).object
    again = raw("Service", "two", spec={"ports": [{"port": 80}], "clusterIP": "10.96.0.10"})
    assert "already allocated" in cluster.kinds.write(again).failure
    cluster.store.create("services", service)
    cluster.settle()
    assert cluster.names() == set()
    assert cluster.kinds.write(again).failure == ""


def test_what_was_left_undone_is_taken_up_again(cluster: Cluster) -> None:
    """A collector that starts finds marked objects and those whose owners are gone."""
    deployment = cluster.add("Deployment", "d")
    cluster.add("ReplicaSet", "r", deployment)
    cluster.add("ConfigMap", "c", annotation='"deletionTimestamp"')
    cluster.store.delete("deployments.apps", "default", "d")
    marked = cluster.add("ConfigMap", "m", deletionTimestamp=NOW, finalizers=["orphan"])
    assert marked["metadata"]["finalizers"] == ["orphan"]
    cluster.collector.resume()
    cluster.settle()
    assert cluster.names() == {"c"}


async def test_the_collector_follows_the_store(cluster: Cluster) -> None:
    """Running, it acts on changes by itself, and ends with the store."""
    deployment = cluster.add("Deployment", "d")
    cluster.add("ReplicaSet", "r", deployment)
    running = asyncio.create_task(cluster.collector.run())
    watched = cluster.store.subscribe("replicasets.apps", since=None)
    await asyncio.sleep(0)
    cluster.remove("deployments.apps", "default", "d")
    (change,) = await asyncio.wait_for(watched.next(), PATIENCE)
    assert (change.type, change.entry.name) == ("DELETED", "r")
    cluster.store.close()
    await asyncio.wait_for(running, PATIENCE)


async def test_a_collector_that_fell_behind_looks_at_everything(cluster: Cluster) -> None:
    """Changes that were lost are made up for."""
    deployment = cluster.add("Deployment", "d")
    cluster.add("ReplicaSet", "r", deployment)
    narrow = cluster.store.subscribe("configmaps", since=None, limit=1)
    following = asyncio.create_task(cluster.collector._follow("configmaps", narrow))
    cluster.remove("deployments.apps", "default", "d")
    for name in ("a", "b", "c"):
        cluster.add("ConfigMap", name)
    watched = cluster.store.subscribe("replicasets.apps", since=None)
    await asyncio.wait_for(watched.next(), PATIENCE)
    assert cluster.names() == {"a", "b", "c"}
    cluster.store.close()
    await asyncio.wait_for(following, PATIENCE)
