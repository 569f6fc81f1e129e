"""Metadata of slices."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.slices.slice_metadata import (
    is_owned_by,
    is_placeholder_equal,
    name_prefix,
    new_slice,
    placeholder,
    slice_labels,
)
from support.builders import endpoint, endpoint_slice, service

NAME = "kubernetes.io/service-name"
MANAGED = "endpointslice.kubernetes.io/managed-by"
HEADLESS = "service.kubernetes.io/headless"
ZONE = "endpointslice.kubernetes.io/for-zone"
OURS = {NAME: "web", MANAGED: "endpointslice-controller.k8s.io"}


@pytest.mark.parametrize(
    ("service_labels", "present", "headless", "want_labels", "want_changed"),
    [
        pytest.param({}, {}, False, OURS, False, id="neither has labels"),
        pytest.param({"a": "1"}, {}, False, {**OURS, "a": "1"}, True, id="the slice lacks a label"),
        pytest.param(
            {"a": "1"}, {"a": "1"}, False, {**OURS, "a": "1"}, False, id="both have the same label"
        ),
        pytest.param({}, {"a": "1"}, False, OURS, True, id="a label of others is removed"),
        pytest.param(
            {"a": "2"}, {"a": "1"}, False, {**OURS, "a": "2"}, True, id="a label has another value"
        ),
        pytest.param(
            {"a": "1", "b": "2"},
            {"b": "2", **OURS, "a": "1"},
            False,
            {**OURS, "a": "1", "b": "2"},
            False,
            id="several labels and the reserved ones",
        ),
        pytest.param(
            {"a": "1"},
            {"a": "1", NAME: "old", MANAGED: "other"},
            False,
            {**OURS, "a": "1"},
            False,
            id="wrong reserved labels are put right but call for no write",
        ),
        pytest.param(
            {NAME: "evil", MANAGED: "evil", HEADLESS: "evil"},
            {},
            False,
            OURS,
            False,
            id="a Service cannot set reserved labels",
        ),
        pytest.param({}, OURS, True, {**OURS, HEADLESS: ""}, False, id="becoming headless alone"),
        pytest.param(
            {}, {**OURS, HEADLESS: ""}, False, OURS, False, id="ceasing to be headless alone"
        ),
        pytest.param(
            {"a": "1"},
            {**OURS, HEADLESS: ""},
            True,
            {**OURS, HEADLESS: "", "a": "1"},
            True,
            id="a headless Service with a new label",
        ),
        pytest.param(
            {HEADLESS: "x"},
            {**OURS, HEADLESS: ""},
            True,
            {**OURS, HEADLESS: ""},
            False,
            id="a headless Service cannot set the value",
        ),
        pytest.param(
            {"a": ""}, {"a": ""}, False, {**OURS, "a": ""}, False, id="empty values are values"
        ),
        pytest.param({"a": ""}, {}, False, {**OURS, "a": ""}, True, id="and their absence counts"),
        pytest.param(
            {ZONE: "evil"},
            {**OURS, ZONE: "zone-a"},
            False,
            {**OURS, ZONE: "zone-a"},
            False,
            id="a slice keeps its own zone",
        ),
        pytest.param({ZONE: "evil"}, {}, False, OURS, False, id="and gets none from the Service"),
    ],
)
def test_slice_labels(
    service_labels: dict[str, str],
    present: dict[str, str],
    headless: bool,
    want_labels: dict[str, str],
    want_changed: bool,
) -> None:
    """A slice has the labels of its Service and the controller's own."""
    owner = service(labels=service_labels, cluster_ip="None" if headless else "10.96.0.10")
    assert slice_labels(owner, present) == (want_labels, want_changed)


def test_a_service_without_a_cluster_ip_counts_as_headless() -> None:
    """An address that was not assigned yet is no address."""
    assert slice_labels(service(cluster_ip=""), {})[0] == {**OURS, HEADLESS: ""}


def test_another_controller_signs_with_its_name() -> None:
    """The managed-by label is the caller's."""
    assert slice_labels(service(), {}, managed_by="keepclose.dev")[0][MANAGED] == "keepclose.dev"


PORTS = (EndpointPort(name="http", protocol="TCP", port=8080),)
OWNER = OwnerReference(
    api_version="v1",
    kind="Service",
    name="web",
    uid="uid-web",
    controller=True,
    block_owner_deletion=True,
)


@pytest.mark.parametrize(
    ("labels", "headless", "extra", "want_labels"),
    [
        pytest.param({}, False, {}, OURS, id="a plain Service"),
        pytest.param({"a": "1"}, False, {}, {**OURS, "a": "1"}, id="labels are copied"),
        pytest.param({}, True, {}, {**OURS, HEADLESS: ""}, id="a headless Service"),
        pytest.param(
            {"a": "1"}, True, {}, {**OURS, HEADLESS: "", "a": "1"}, id="headless with labels"
        ),
        pytest.param({NAME: "x", HEADLESS: "x"}, False, {}, OURS, id="reserved labels are not"),
        pytest.param({}, False, {ZONE: "zone-a"}, {**OURS, ZONE: "zone-a"}, id="meant for a zone"),
    ],
)
def test_new_slice(
    labels: dict[str, str], headless: bool, extra: dict[str, str], want_labels: dict[str, str]
) -> None:
    """A new slice is owned by its Service and leaves its name to the server."""
    owner = service(
        labels=labels,
        annotations={"never": "copied"},
        cluster_ip="None" if headless else "10.96.0.10",
    )
    built = new_slice(
        owner,
        address_type="IPv4",
        ports=PORTS,
        endpoints=(endpoint("10.0.0.1"),),
        labels_extra=extra,
    )
    assert built == EndpointSlice(
        metadata=ObjectMeta(
            generate_name="web-",
            namespace="default",
            labels=want_labels,
            owner_references=(OWNER,),
        ),
        address_type="IPv4",
        endpoints=(endpoint("10.0.0.1"),),
        ports=PORTS,
    )


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("web", "web-", id="a dash makes it pretty"),
        pytest.param("a" * 253, "a" * 253 + "-", id="the longest name: the dash is not counted"),
        pytest.param("a" * 254, "a" * 254, id="longer than any name may be"),
        pytest.param("Web", "Web", id="no name with or without a dash"),
    ],
)
def test_name_prefix(name: str, want: str) -> None:
    """The dash is left out only where it makes an invalid name."""
    assert name_prefix(name) == want


def test_placeholder_is_empty() -> None:
    """The placeholder has neither ports nor endpoints."""
    empty = placeholder(service(), address_type="IPv6")
    assert (empty.address_type, empty.endpoints, empty.ports) == ("IPv6", (), ())
    assert empty.metadata.labels == OURS


EMPTY = endpoint_slice(ports=())


def relabelled(**labels: str) -> EndpointSlice:
    """Return the placeholder with more labels."""
    return replace(EMPTY, metadata=replace(EMPTY.metadata, labels={**OURS, **labels}))


@pytest.mark.parametrize(
    ("other", "want"),
    [
        pytest.param(EMPTY, True, id="the same"),
        pytest.param(endpoint_slice(ports=(), name="web-other"), True, id="another name"),
        pytest.param(endpoint_slice(ports=(), annotations={"a": "b"}), True, id="an annotation"),
        pytest.param(endpoint_slice(ports=(), owner_uid="other"), True, id="another owner"),
        pytest.param(endpoint_slice(ports=(), namespace="other"), False, id="another namespace"),
        pytest.param(relabelled(a="b"), False, id="a label more"),
        pytest.param(endpoint_slice(ports=(), service_name="x"), False, id="a label that differs"),
        pytest.param(endpoint_slice(ports=(), address_type="IPv6"), False, id="another type"),
        pytest.param(endpoint_slice(), False, id="ports"),
        pytest.param(endpoint_slice(endpoint(), ports=()), False, id="endpoints"),
        pytest.param(relabelled(a=""), True, id="an empty label counts as absent"),
    ],
)
def test_placeholders_compare(other: EndpointSlice, want: bool) -> None:
    """Namespace, labels, type, ports and endpoints make a placeholder."""
    assert is_placeholder_equal(EMPTY, other) is want
    assert is_placeholder_equal(other, EMPTY) is want


@pytest.mark.parametrize(
    ("owner", "want"),
    [
        pytest.param(OWNER, True, id="this Service"),
        pytest.param(replace(OWNER, controller=None), True, id="not as a controller"),
        pytest.param(replace(OWNER, uid="older"), False, id="an older Service of the name"),
        pytest.param(replace(OWNER, kind="Endpoints"), False, id="another kind"),
        pytest.param(replace(OWNER, api_version="v2"), False, id="another version"),
        pytest.param(None, False, id="nobody"),
    ],
)
def test_ownership(owner: OwnerReference | None, want: bool) -> None:
    """The uid, the kind and the version decide."""
    others = replace(OWNER, kind="Pod", uid="x")
    owners = (others,) if owner is None else (others, owner)
    piece = replace(EMPTY, metadata=replace(EMPTY.metadata, owner_references=owners))
    assert is_owned_by(piece, service()) is want
