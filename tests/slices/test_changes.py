"""Which Services a change concerns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Pod
from keepclose.slices.changes import (
    PodChange,
    is_managed_by,
    pod_change,
    service_of,
    services_after_labels,
    services_for_pod,
    services_for_pod_change,
)
from support.builders import endpoint_slice, pod, service


def versioned(base: Pod, version: str) -> Pod:
    """Return the pod with a resourceVersion."""
    return replace(base, metadata=replace(base.metadata, resource_version=version))


def host(hostname: str, subdomain: str) -> Pod:
    """Return a pod with a hostname."""
    return replace(pod(), spec=replace(pod().spec, hostname=hostname, subdomain=subdomain))


def phased(phase: str) -> Pod:
    """Return a pod in a phase."""
    return replace(pod(), status=replace(pod().status, phase=phase))


def stamped(stamp: str) -> Pod:
    """Return a terminating pod with its timestamp."""
    return replace(pod(), metadata=replace(pod().metadata, deletion_timestamp=stamp))


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(pod(), pod(), (False, False), id="nothing"),
        pytest.param(pod(), pod(labels={"app": "x"}), (False, True), id="labels"),
        pytest.param(pod(labels={}), pod(labels={"a": ""}), (False, True), id="an empty label"),
        pytest.param(pod(), host("h", ""), (False, True), id="the hostname"),
        pytest.param(host("h", "a"), host("h", "b"), (False, True), id="the subdomain"),
        pytest.param(pod(), pod(ready=False), (True, False), id="readiness lost"),
        pytest.param(pod(ready=False), pod(), (True, False), id="readiness gained"),
        pytest.param(pod(), pod(terminating=True), (True, False), id="asked to go"),
        pytest.param(pod(terminating=True), pod(terminating=True), (True, False), id="still going"),
        pytest.param(pod(terminating=True), pod(), (True, False), id="not going any more"),
        pytest.param(
            stamped("2026-01-01T00:00:00Z"),
            stamped("2026-01-01T00:00:09Z"),
            (True, False),
            id="going later",
        ),
        pytest.param(pod(ip="10.0.0.1"), pod(ip="10.0.0.2"), (True, False), id="another address"),
        pytest.param(pod(), pod(ips=("10.0.0.1", "fd00::1")), (True, False), id="one address more"),
        pytest.param(
            pod(ips=("10.0.0.1", "fd00::1")),
            pod(ips=("fd00::1", "10.0.0.1")),
            (True, False),
            id="addresses in another order",
        ),
        pytest.param(phased("Pending"), phased("Running"), (False, False), id="the phase alone"),
        pytest.param(pod(), pod(node_name="n2"), (False, False), id="the node alone"),
        pytest.param(
            pod(), pod(labels={"app": "x"}, ready=False), (True, True), id="labels and readiness"
        ),
        pytest.param(
            versioned(pod(), "1"), versioned(pod(ready=False), "1"), (False, False), id="a resync"
        ),
        pytest.param(
            versioned(pod(), "1"), versioned(pod(ready=False), "2"), (True, False), id="no resync"
        ),
    ],
)
def test_pod_change(old: Pod, new: Pod, want: tuple[bool, bool]) -> None:
    """Only what an endpoint shows or what decides on membership counts."""
    assert pod_change(old, new) == PodChange(*want)
    assert pod_change(old, new).is_empty is (want == (False, False))


def keys(*names: str) -> frozenset[NamespacedName]:
    """Return keys in the namespace default."""
    return frozenset(NamespacedName("default", name) for name in names)


@pytest.mark.parametrize(
    ("before", "after", "pod_changed", "want"),
    [
        pytest.param("", "", False, "", id="none before and after"),
        pytest.param("ab", "bc", True, "abc", id="the pod changed: all"),
        pytest.param("ab", "bc", False, "ac", id="labels only: those that gain or lose it"),
        pytest.param("ab", "ab", False, "", id="labels only and the same Services: none"),
        pytest.param("ab", "ab", True, "ab", id="the pod changed, the same Services: those"),
        pytest.param("", "a", False, "a", id="gained"),
        pytest.param("a", "", False, "a", id="lost"),
    ],
)
def test_services_after_labels(before: str, after: str, pod_changed: bool, want: str) -> None:
    """The union if the pod changed, else what is in one but not both."""
    got = services_after_labels(keys(*before), keys(*after), pod_changed=pod_changed)
    assert got == keys(*want)


SERVICES = (
    service("web"),
    service("both", selector={"app": "web", "tier": "front"}),
    service("all", selector={}),
    service("manual", selector=None),
    service("api", selector={"app": "api"}),
    service("web", namespace="other"),
)


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        pytest.param({"app": "web"}, ("web", "all"), id="one label"),
        pytest.param({"app": "web", "tier": "front"}, ("web", "both", "all"), id="two labels"),
        pytest.param({"app": "web", "tier": "back"}, ("web", "all"), id="one of them wrong"),
        pytest.param({}, ("all",), id="no labels: the empty selector only"),
        pytest.param({"app": "db"}, ("all",), id="labels that nobody selects"),
    ],
)
def test_services_for_pod(labels: dict[str, str], want: tuple[str, ...]) -> None:
    """An absent selector matches nothing, an empty one everything in its namespace."""
    assert services_for_pod(SERVICES, namespace="default", labels=labels) == keys(*want)


API = {"app": "api"}


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(None, pod(), ("web", "all"), id="a pod came"),
        pytest.param(pod(), None, ("web", "all"), id="a pod went"),
        pytest.param(None, None, (), id="nothing at all"),
        pytest.param(pod(), pod(), (), id="nothing changed"),
        pytest.param(pod(), pod(ready=False), ("web", "all"), id="readiness changed"),
        pytest.param(pod(), pod(labels=API), ("web", "api"), id="labels changed"),
        pytest.param(pod(), pod(labels=API, ready=False), ("web", "api", "all"), id="both changed"),
        pytest.param(pod(), host("h", "web"), (), id="the hostname alone changes no membership"),
    ],
)
def test_services_for_pod_change(old: Pod | None, new: Pod | None, want: tuple[str, ...]) -> None:
    """Each Service is synced whose endpoints may look different."""
    assert services_for_pod_change(iter(SERVICES), old=old, new=new) == keys(*want)


def mine(
    service_name: str = "web", *, generation: int = 1, managed_by: str | None = None
) -> EndpointSlice:
    """Return a slice of ours, or of another manager."""
    labels = {} if managed_by is None else {"endpointslice.kubernetes.io/managed-by": managed_by}
    piece = endpoint_slice(service_name=service_name, labels=labels)
    return replace(piece, metadata=replace(piece.metadata, generation=generation))


@pytest.mark.parametrize(
    ("piece", "want"),
    [
        pytest.param(mine(), NamespacedName("default", "web"), id="labelled"),
        pytest.param(mine(""), None, id="labelled with nothing"),
        pytest.param(EndpointSlice(), None, id="not labelled"),
    ],
)
def test_service_of(piece: EndpointSlice, want: NamespacedName | None) -> None:
    """The label says to which Service a slice belongs."""
    assert service_of(piece) == want


def test_who_manages_a_slice() -> None:
    """The label decides, and no label is nobody's."""
    assert is_managed_by(mine(), "endpointslice-controller.k8s.io")
    assert not is_managed_by(mine(managed_by="other"), "endpointslice-controller.k8s.io")
    assert not is_managed_by(EndpointSlice(), "endpointslice-controller.k8s.io")


def test_services_of_other_namespaces_are_never_concerned() -> None:
    """A pod belongs to Services of its own namespace."""
    elsewhere: tuple[Service, ...] = (service("web", namespace="other"),)
    assert services_for_pod_change(elsewhere, old=None, new=pod()) == keys()
