"""A legacy Endpoints object, read as slices would say it."""

from __future__ import annotations

import pytest

from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    Endpoints,
    EndpointsPort,
    EndpointSubset,
)
from keepclose.model.meta import ObjectMeta, ObjectReference, OwnerReference
from keepclose.slices.mirroring import mirrored_endpoint, mirrored_slice, repack

HTTP = EndpointsPort("http", 80, "TCP")
DNS = EndpointsPort("dns", 53, "UDP")
A, B = EndpointAddress("10.0.0.1"), EndpointAddress("10.0.0.2")


@pytest.mark.parametrize(
    ("subsets", "want"),
    [
        pytest.param((), (), id="nothing"),
        pytest.param((EndpointSubset((), (), (HTTP,)),), (), id="ports without addresses"),
        pytest.param(
            (EndpointSubset((B, A), (), (HTTP,)),),
            (EndpointSubset((A, B), (), (HTTP,)),),
            id="addresses are sorted",
        ),
        pytest.param(
            (EndpointSubset((A,), (), (HTTP,)), EndpointSubset((B,), (), (HTTP,))),
            (EndpointSubset((A, B), (), (HTTP,)),),
            id="addresses of one port come together",
        ),
        pytest.param(
            (EndpointSubset((A,), (), (HTTP,)), EndpointSubset((A,), (), (DNS,))),
            (EndpointSubset((A,), (), (DNS, HTTP)),),
            id="ports of the same addresses come together",
        ),
        pytest.param(
            (EndpointSubset((A, B), (), (HTTP,)), EndpointSubset((A,), (), (DNS,))),
            (EndpointSubset((A,), (), (DNS,)), EndpointSubset((A, B), (), (HTTP,))),
            id="ports of different addresses stay apart",
        ),
        pytest.param(
            (EndpointSubset((A,), (), (HTTP,)), EndpointSubset((), (A,), (DNS,))),
            (EndpointSubset((), (A,), (DNS,)), EndpointSubset((A,), (), (HTTP,))),
            id="so do ports at which an address is ready and not ready",
        ),
        pytest.param(
            (EndpointSubset((A,), (A,), (HTTP,)),),
            (EndpointSubset((), (A,), (HTTP,)),),
            id="not ready wins",
        ),
        pytest.param(
            (EndpointSubset((), (A,), (HTTP,)), EndpointSubset((A,), (), (HTTP,))),
            (EndpointSubset((), (A,), (HTTP,)),),
            id="also when it came first",
        ),
        pytest.param(
            (EndpointSubset((A,), (B,), ()),),
            (EndpointSubset((A,), (B,), ()),),
            id="addresses without ports",
        ),
    ],
)
def test_repack(subsets: tuple[EndpointSubset, ...], want: tuple[EndpointSubset, ...]) -> None:
    """The same addresses and ports always give the same subsets."""
    assert repack(subsets) == want


def test_repack_keeps_pods_of_one_address_apart() -> None:
    """Two pods may share an address for a moment; the first of each pod is kept."""
    one = EndpointAddress("10.0.0.1", target_ref=ObjectReference(name="p1", uid="1"))
    two = EndpointAddress("10.0.0.1", target_ref=ObjectReference(name="p2", uid="2"))
    (got,) = repack((EndpointSubset((two, one, one), (), (HTTP,)),))
    assert got.addresses == (one, two)


@pytest.mark.parametrize(
    ("address", "ready", "want"),
    [
        pytest.param(
            EndpointAddress("10.0.0.1"),
            True,
            Endpoint(addresses=("10.0.0.1",), conditions=EndpointConditions(ready=True)),
            id="a bare address",
        ),
        pytest.param(
            EndpointAddress(
                "010.0.0.1",
                hostname="h",
                node_name="n1",
                target_ref=ObjectReference(kind="Pod", name="p"),
            ),
            False,
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=EndpointConditions(ready=False),
                hostname="h",
                target_ref=ObjectReference(kind="Pod", name="p"),
                node_name="n1",
            ),
            id="everything set, spelt canonically",
        ),
        pytest.param(
            EndpointAddress("nonsense"),
            True,
            Endpoint(addresses=("nonsense",), conditions=EndpointConditions(ready=True)),
            id="no address is left as it is",
        ),
    ],
)
def test_mirrored_endpoint(address: EndpointAddress, ready: bool, want: Endpoint) -> None:
    """Only ready is said; zone, serving, terminating and hints are not."""
    assert mirrored_endpoint(address, ready=ready) == want


@pytest.mark.parametrize(
    ("labels", "annotations", "want_labels", "want_annotations"),
    [
        pytest.param({}, {}, {}, {}, id="nothing to copy"),
        pytest.param({"a": "1"}, {}, {"a": "1"}, {}, id="labels are copied"),
        pytest.param({}, {"a": "1"}, {}, {"a": "1"}, id="annotations are copied"),
        pytest.param(
            {},
            {
                "endpoints.kubernetes.io/last-change-trigger-time": "x",
                "kubectl.kubernetes.io/last-applied-configuration": "x",
                "a": "1",
            },
            {},
            {"a": "1"},
            id="but not these two",
        ),
        pytest.param(
            {"kubernetes.io/service-name": "x", "endpointslice.kubernetes.io/managed-by": "x"},
            {},
            {},
            {},
            id="our labels win",
        ),
    ],
)
def test_mirrored_slice(
    labels: dict[str, str],
    annotations: dict[str, str],
    want_labels: dict[str, str],
    want_annotations: dict[str, str],
) -> None:
    """The Endpoints object owns the slice and gives it its labels and annotations."""
    source = Endpoints(
        metadata=ObjectMeta(
            name="web", namespace="default", uid="u", labels=labels, annotations=annotations
        )
    )
    ports = (EndpointPort("http", "TCP", 80),)
    got = mirrored_slice(source, address_type="IPv6", ports=ports)
    assert (got.address_type, got.ports, got.endpoints) == ("IPv6", ports, ())
    assert got.metadata == ObjectMeta(
        generate_name="web-",
        namespace="default",
        labels={
            **want_labels,
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
        },
        annotations=want_annotations,
        owner_references=(
            OwnerReference(
                "v1", "Endpoints", "web", "u", controller=True, block_owner_deletion=True
            ),
        ),
    )
