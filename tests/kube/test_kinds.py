"""Tests of where kinds are served."""

from __future__ import annotations

import pytest

from keepclose.kube import requests
from keepclose.kube.requests import ENDPOINT_SLICES, LEASES, NODES, PODS, SERVICES, Kind


@pytest.mark.parametrize(
    ("kind", "parts", "want_path"),
    [
        pytest.param(PODS, (), "/api/v1/pods", id="all namespaces of the core group"),
        pytest.param(PODS, ("shop",), "/api/v1/namespaces/shop/pods", id="one namespace"),
        pytest.param(PODS, ("shop", "p"), "/api/v1/namespaces/shop/pods/p", id="one object"),
        pytest.param(
            SERVICES,
            ("shop", "web", "status"),
            "/api/v1/namespaces/shop/services/web/status",
            id="a subresource",
        ),
        pytest.param(NODES, ("", "n1"), "/api/v1/nodes/n1", id="a kind outside namespaces"),
        pytest.param(NODES, ("shop", "n1"), "/api/v1/nodes/n1", id="where a namespace is dropped"),
        pytest.param(
            ENDPOINT_SLICES,
            ("shop",),
            "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
            id="a named group",
        ),
        pytest.param(
            LEASES,
            ("kube-system", "a b?"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a%20b%3F",
            id="odd characters are quoted",
        ),
    ],
)
def test_paths_are_those_of_the_api(
    kind: Kind[object], parts: tuple[str, ...], want_path: str
) -> None:
    """Group, version, namespace, name and subresource make the path."""
    assert kind.path(*parts) == want_path


def test_every_kind_agrees_with_its_struct() -> None:
    """What a kind writes into objects is what its struct holds by default."""
    constants = [value for value in vars(requests).values() if isinstance(value, Kind)]
    typed = [kind for kind in constants if kind.struct is not dict]
    assert (len(constants), len(typed)) == (11, 9)
    for kind in typed:
        empty = kind.struct()
        assert (empty.api_version, empty.kind) == (kind.api_version, kind.kind)


def test_kinds_are_shown_as_kubectl_does() -> None:
    """A kind is shown by its plural, and its group if it has one."""
    assert str(PODS) == "pods"
    assert str(ENDPOINT_SLICES) == "endpointslices.discovery.k8s.io"
