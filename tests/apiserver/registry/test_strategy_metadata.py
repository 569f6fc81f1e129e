"""Rules for metadata of every kind."""

from __future__ import annotations

import pytest

from keepclose.apiserver.registry.metadata import (
    beyond_metadata,
    carry_system_metadata,
    metadata_causes,
    read_object_metadata,
)
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.field_errors import required
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import LABEL_SENTENCE, SUBDOMAIN_SENTENCE
from support.kinds import raw

CONFIG_MAPS = BY_KIND["v1", "ConfigMap"]


def _causes(obj: JsonObject, old: JsonObject | None = None) -> list[str]:
    resource = BY_KIND[obj["apiVersion"], obj["kind"]]
    return [str(cause) for cause in metadata_causes(resource, obj, old)]


@pytest.mark.parametrize(
    ("kind", "name", "want_causes"),
    [
        pytest.param("Service", "a.b", ["must not contain dots"], id="Services are labels"),
        pytest.param("Service", "1a", [], id="Services may begin with a digit"),
        pytest.param("Namespace", "A_", [LABEL_SENTENCE], id="namespaces are labels"),
        pytest.param("Node", "a.b", [], id="nodes may have dots"),
        pytest.param("Node", "A_", [SUBDOMAIN_SENTENCE], id="nodes are subdomains"),
        pytest.param("EndpointSlice", "a..b", [SUBDOMAIN_SENTENCE], id="slices are subdomains"),
        pytest.param("ServiceCIDR", "a.b", [], id="ranges may have dots"),
    ],
)
def test_each_kind_has_its_rule_on_names(kind: str, name: str, want_causes: list[str]) -> None:
    """Names are labels or subdomains, by kind."""
    shown = f'metadata.name: Invalid value: "{name}": '
    assert _causes(raw(kind, name)) == [shown + text for text in want_causes]


@pytest.mark.parametrize(
    ("metadata", "want_causes"),
    [
        pytest.param(
            {"name": ""},
            ["metadata.name: Required value: name or generateName is required"],
            id="no name",
        ),
        pytest.param({"name": "", "generateName": "a-"}, [], id="a prefix will do"),
        pytest.param({"namespace": ""}, ["metadata.namespace: Required value"], id="no namespace"),
        pytest.param(
            {"managedFields": [{"manager": "m" * 128}, {}, {"manager": "\u00e9" * 65}]},
            ["metadata.managedFields[2].manager: Too long: may not be more than 128 bytes"],
            id="a field manager of too many bytes",
        ),
        pytest.param(
            {"managedFields": [{"manager": "a\nb"}]},
            [
                (
                    'metadata.managedFields[0].manager: Invalid value: "a\\nb": invalid character '
                    "U+000A (at position 1)"
                )
            ],
            id="a field manager that would break a line of a log",
        ),
        pytest.param(
            {"finalizers": ["x", "a.b/c", "orphan"]},
            [
                (
                    'metadata.finalizers[0]: Invalid value: "x": name is neither a standard '
                    "finalizer "
                    "name nor is it fully qualified"
                )
            ],
            id="a finalizer without a domain",
        ),
        pytest.param(
            {"finalizers": ["foregroundDeletion", "orphan"]},
            [
                (
                    'metadata.finalizers: Invalid value: ["foregroundDeletion","orphan"]: '
                    "finalizer "
                    "orphan and foregroundDeletion cannot be both set"
                )
            ],
            id="finalizers that contradict",
        ),
        pytest.param(
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            ['metadata.ownerReferences.uid: Invalid value: "": must not be empty'],
            id="an owner without uid",
        ),
        pytest.param({"labels": None, "annotations": None}, [], id="null counts as absent"),
    ],
)
def test_metadata_of_new_objects(metadata: JsonObject, want_causes: list[str]) -> None:
    """A new object is refused for what is missing or malformed."""
    assert _causes(raw("ConfigMap", metadata=metadata)) == want_causes


def test_some_kinds_take_any_finalizer() -> None:
    """Leases and events have laxer finalizers, but still ones that look like labels."""
    assert _causes(raw("Lease", metadata={"finalizers": ["x"]})) == []
    (cause,) = _causes(raw("Lease", metadata={"finalizers": ["a b"]}))
    assert cause.startswith('metadata.finalizers: Invalid value: "a b": name part must consist of')


def test_cluster_wide_kinds_have_no_namespace() -> None:
    """A node in a namespace is refused."""
    assert _causes(raw("Node", metadata={"namespace": "x"})) == [
        "metadata.namespace: Forbidden: not allowed on this type"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("uid", "other", id="the uid"),
        pytest.param("deletionTimestamp", "2026-01-01T00:00:00Z", id="the time of deletion"),
        pytest.param("name", "other", id="the name"),
    ],
)
def test_what_identifies_an_object_stays(key: str, value: str) -> None:
    """An update may not change who the object is."""
    old = raw("ConfigMap", metadata={"uid": "u"})
    new = raw("ConfigMap", metadata={"uid": "u", key: value})
    assert _causes(new, old) == [f'metadata.{key}: Invalid value: "{value}": field is immutable']


def test_stored_names_are_not_judged_again() -> None:
    """A name that was accepted once does not make an update fail."""
    old = raw("ConfigMap", "A_")
    assert _causes(raw("ConfigMap", "A_"), old) == []


def test_an_object_on_its_way_out_gets_no_new_finalizers() -> None:
    """Finalizers may only be removed once the deletion has begun."""
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.b/c"]}
    old = raw("ConfigMap", metadata=gone)
    new = raw("ConfigMap", metadata={**gone, "finalizers": ["a.b/c", "d.e/f"]})
    assert _causes(new, old) == [
        (
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being "
            'deleted, found new finalizers []string{"d.e/f"}'
        )
    ]
    assert _causes(raw("ConfigMap", metadata={**gone, "finalizers": []}), old) == []


def test_clients_may_leave_out_what_the_system_sets() -> None:
    """An update takes over uid, times and generation of the stored object."""
    kept = {
        "uid": "u",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
        "deletionGracePeriodSeconds": 30,
    }
    old = raw("ConfigMap", metadata=kept)
    sent = {"creationTimestamp": "2000-01-01T00:00:00Z", "generation": 9}
    new = raw("ConfigMap", metadata=sent)
    carry_system_metadata(new, old)
    assert new == old
    plain = raw("ConfigMap", metadata={"generation": 9, "uid": "other"})
    carry_system_metadata(plain, raw("ConfigMap", metadata={"uid": "u"}))
    assert plain["metadata"] == {"name": "one", "namespace": "default", "uid": "other"}


def test_metadata_of_the_wrong_type_is_a_bad_request() -> None:
    """What cannot be read is refused as a whole."""
    with pytest.raises(StatusError, match="metadata: Expected `str`, got `int`") as caught:
        read_object_metadata({"metadata": {"name": 1}})
    assert caught.value.code == 400


def test_causes_of_metadata_are_told_from_others() -> None:
    """Annotations with a meaning of their own belong to their kind."""
    own = [required("metadata.annotations[a/b]"), required("spec.x")]
    assert beyond_metadata([required("metadata.name"), *own]) == own
