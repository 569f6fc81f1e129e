"""Who owns what after a create, an update or a plain patch."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.patch.field_sets import FieldSet
from keepclose.apiserver.patch.json_patch import apply_json_patch
from keepclose.apiserver.patch.managed_fields import record_update
from keepclose.apiserver.schema.types import ListKind, Type, TypeForm, load_types
from keepclose.model.gates import FeatureGates

TYPES = load_types(FeatureGates())
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"

_TEXT = Type(TypeForm.STRING, omits_empty=True)
_LABELS = Type(TypeForm.MAP, items=_TEXT)
THING = Type(
    TypeForm.OBJECT,
    fields={
        "apiVersion": _TEXT,
        "kind": _TEXT,
        "metadata": Type(
            TypeForm.OBJECT,
            fields={
                "name": _TEXT,
                "labels": _LABELS,
                "finalizers": Type(TypeForm.LIST, items=_TEXT, list_kind=ListKind.SET),
            },
        ),
        "spec": Type(
            TypeForm.OBJECT,
            fields={
                "text": _TEXT,
                "whole": Type(TypeForm.MAP, items=_TEXT, atomic=True),
                "list": Type(TypeForm.LIST, items=_TEXT),
                "items": Type(
                    TypeForm.LIST,
                    items=Type(TypeForm.OBJECT, fields={"name": _TEXT, "value": _TEXT}),
                    list_kind=ListKind.MAP,
                    list_keys=("name",),
                ),
                "deep": Type(TypeForm.MAP, items=_LABELS),
            },
        ),
        "status": Type(TypeForm.OBJECT, fields={"text": _TEXT}),
    },
)


def _thing(spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "T", "metadata": {"name": "t", **metadata}, "spec": spec}


def _record(
    old: dict[str, Any] | None, new: dict[str, Any], manager: str = "m", **more: Any
) -> dict[str, Any]:
    """Return a copy of the new object with its owners."""
    recorded = copy.deepcopy(new)
    options = {"type": THING, "api_version": "v1", "now": EARLY, **more}
    record_update(old, recorded, manager=manager, **options)
    return recorded


def _owners(document: dict[str, Any]) -> dict[str, Any]:
    entries = document["metadata"].get("managedFields", [])
    return {entry["manager"] + entry.get("subresource", ""): entry["fieldsV1"] for entry in entries}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"text": "a"}, {"f:text": {}}, id="a value"),
        pytest.param({"list": ["a"]}, {"f:list": {}}, id="an atomic list"),
        pytest.param({"whole": {"a": "b"}}, {"f:whole": {}}, id="an atomic map"),
        pytest.param(
            {"items": [{"name": "b", "value": "1"}, {"name": "a"}]},
            {
                "f:items": {
                    ".": {},
                    'k:{"name":"a"}': {".": {}, "f:name": {}},
                    'k:{"name":"b"}': {".": {}, "f:name": {}, "f:value": {}},
                }
            },
            id="items with keys",
        ),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "a", "value": "1"}]},
            {"f:items": {".": {}, 'k:{"name":"a"}': {}}},
            id="twins are owned together",
        ),
        pytest.param(
            {"deep": {"x": {"y": "z"}, "e": {}}},
            {"f:deep": {".": {}, "f:e": {}, "f:x": {".": {}, "f:y": {}}}},
            id="maps of maps",
        ),
        pytest.param({"items": []}, {"f:items": {}}, id="an empty list"),
        pytest.param({"unknown": {"a": 1}}, {"f:unknown": {}}, id="an unknown field"),
        pytest.param({"items": "x", "deep": [1]}, {"f:deep": {}, "f:items": {}}, id="wrong forms"),
        pytest.param({"items": {"a": 1}}, {"f:items": {}}, id="an object for a list"),
    ],
)
def test_a_create_owns_what_it_sets(spec: Any, want: Any) -> None:
    """Everything is owned, containers too, but not those that every object has."""
    assert _owners(_record(None, _thing(spec))) == {"m": {"f:spec": want}}


def test_names_and_status_are_not_owned() -> None:
    """What the server keeps itself, and what this endpoint resets, belongs to no one."""
    new = _thing({"text": "a"}, uid="u", resourceVersion="1", generation=1, labels={"a": "b"})
    new["status"] = {"text": "x"}
    want: FieldSet = {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:text": {}}}
    recorded = _record(None, new, "kubectl-create")
    assert recorded["metadata"]["managedFields"] == [
        {
            "manager": "kubectl-create",
            "operation": "Update",
            "apiVersion": "v1",
            "time": EARLY,
            "fieldsType": "FieldsV1",
            "fieldsV1": want,
        }
    ]


def test_a_status_write_owns_status_alone() -> None:
    """On the status endpoint everything but status and metadata does not count."""
    old = _record(None, _thing({"text": "a"}))
    new = {**old, "spec": {"text": "b"}, "status": {"text": "x"}}
    recorded = _record(old, new, "kubelet", subresource="status")
    want: FieldSet = {
        "m": {"f:spec": {"f:text": {}}},
        "kubeletstatus": {"f:status": {".": {}, "f:text": {}}},
    }
    assert _owners(recorded) == want


@pytest.mark.parametrize(
    "ignored",
    [
        pytest.param(("spec.text",), id="names"),
        pytest.param({"f:spec": {"f:text": {}}}, id="a set"),
    ],
)
def test_ignored_fields_can_be_given(ignored: Any) -> None:
    """What an endpoint resets may be told, as names or as a set."""
    recorded = _record(None, _thing({"text": "a", "list": ["x"]}), ignored=ignored)
    assert _owners(recorded) == {"m": {"f:spec": {"f:list": {}}}}


def test_nothing_set_is_nothing_owned() -> None:
    """An object without content has no owners."""
    assert "managedFields" not in _record(None, _thing({}))["metadata"]


def test_no_manager_is_unknown() -> None:
    """A write without a name is the unknown manager's."""
    assert list(_owners(_record(None, _thing({"text": "a"}), ""))) == ["unknown"]


@pytest.mark.parametrize(
    ("before", "after", "want_first", "want_second"),
    [
        pytest.param(
            {"text": "a", "list": ["x"]},
            {"text": "b", "list": ["x"]},
            {"f:list": {}},
            {"f:text": {}},
            id="a changed value changes hands",
        ),
        pytest.param(
            {"text": "a", "list": ["x"]}, {"text": "a"}, {"f:text": {}}, None, id="a removal"
        ),
        pytest.param(
            {"items": [{"name": "a", "value": "1"}]},
            {"items": [{"name": "a", "value": "2"}]},
            {"f:items": {".": {}, 'k:{"name":"a"}': {".": {}, "f:name": {}}}},
            {"f:items": {'k:{"name":"a"}': {"f:value": {}}}},
            id="a field of an item",
        ),
        pytest.param(
            {"items": [{"name": "a"}]},
            {"items": [{"name": "b"}]},
            {"f:items": {}},
            {"f:items": {'k:{"name":"b"}': {".": {}, "f:name": {}}}},
            id="one item for another",
        ),
        pytest.param(
            {"items": [{"name": "a"}]},
            {"items": [{"name": "a"}, {"name": "a"}]},
            {"f:items": {}},
            {"f:items": {'k:{"name":"a"}': {}}},
            id="an item becomes twins",
        ),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "a"}]},
            {"items": [{"name": "a"}]},
            {"f:items": {}},
            {"f:items": {'k:{"name":"a"}': {".": {}, "f:name": {}}}},
            id="twins become one",
        ),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "a"}]},
            {"items": [{"name": "a"}, {"name": "a", "value": "1"}]},
            {"f:items": {}},
            {"f:items": {'k:{"name":"a"}': {}}},
            id="one of twins changes",
        ),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "b"}]},
            {"items": [{"name": "b"}, {"name": "a"}]},
            {
                "f:items": {
                    ".": {},
                    'k:{"name":"a"}': {".": {}, "f:name": {}},
                    'k:{"name":"b"}': {".": {}, "f:name": {}},
                }
            },
            None,
            id="another order is nobody's",
        ),
        pytest.param(
            {"deep": {"a": {"x": "1"}}},
            {"deep": {"a": {"x": "1", "y": "2"}}},
            {"f:deep": {".": {}, "f:a": {".": {}, "f:x": {}}}},
            {"f:deep": {"f:a": {"f:y": {}}}},
            id="a key of a map",
        ),
        pytest.param(
            {"text": "t", "deep": {"a": {"x": "1"}}},
            {"text": "t", "deep": "x"},
            {"f:deep": {"f:a": {".": {}, "f:x": {}}}, "f:text": {}},
            {"f:deep": {}},
            id="another form",
        ),
        pytest.param(
            {"text": "t", "deep": {}},
            {"text": "t", "deep": None},
            {"f:text": {}},
            {"f:deep": {}},
            id="null for an empty map",
        ),
        pytest.param(
            {"whole": {"a": "1"}, "text": "t"},
            {"whole": {"a": "1", "b": "2"}, "text": "t"},
            {"f:text": {}},
            {"f:whole": {}},
            id="an atomic map as a whole",
        ),
    ],
)
def test_an_update_owns_what_it_changes(
    before: Any, after: Any, want_first: Any, want_second: Any
) -> None:
    """What changed goes to the new manager, what is gone to no one, the rest stays."""
    old = _record(None, _thing(before), "first")
    recorded = _record(old, {**old, "spec": after}, "second", now=LATE)
    want: FieldSet = {"first": {"f:spec": want_first}}
    if want_second is not None:
        want["second"] = {"f:spec": want_second}
    assert _owners(recorded) == want


def test_an_owner_of_nothing_vanishes() -> None:
    """When another takes the last field, the entry goes."""
    old = _record(None, _thing({"text": "a"}), "first")
    recorded = _record(old, {**old, "spec": {"text": "b"}}, "second")
    assert _owners(recorded) == {"second": {"f:spec": {"f:text": {}}}}


def test_an_owner_gets_more_with_a_new_time() -> None:
    """A second write of one manager adds to its entry; a removal alone leaves the time."""
    old = _record(None, _thing({"text": "a"}))
    grown = _record(old, {**old, "spec": {"text": "a", "list": ["x"]}}, now=LATE)
    (entry,) = grown["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {"f:spec": {"f:list": {}, "f:text": {}}}
    assert entry["time"] == LATE
    shrunk = _record(grown, {**grown, "spec": {"text": "a"}}, now="2026-01-03T00:00:00Z")
    (entry,) = shrunk["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {"f:spec": {"f:text": {}}}
    assert entry["time"] == LATE


def test_an_update_without_change_touches_nothing() -> None:
    """The entries stay as they are, times too, whether the client sent them or not."""
    old = _record(None, _thing({"text": "a", "items": [{"name": "x"}]}))
    bare = copy.deepcopy(old)
    del bare["metadata"]["managedFields"]
    for new in (old, bare):
        assert _record(old, new, "second", now=LATE) == old


def test_entries_of_the_client_count() -> None:
    """What the client sends in managedFields is kept, in order and in its one spelling."""
    old = _record(None, _thing({"text": "a"}), "first")
    sent = copy.deepcopy(old)
    sent["metadata"]["managedFields"].insert(
        0,
        {
            "manager": "z",
            "operation": "Apply",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:text": {".": {}}}},
        },
    )
    sent["metadata"]["managedFields"][1]["fieldsV1"] = {}
    assert _owners(_record(old, sent)) == {"z": {"f:spec": {"f:text": {}}}}
    assert _owners(_record(old, sent, subresource="status")) == _owners(old)


@pytest.mark.parametrize(
    "sent", [pytest.param([], id="an empty list"), pytest.param([{}], id="an empty entry")]
)
def test_owners_are_forgotten_on_demand(sent: Any) -> None:
    """After a reset nobody owns anything, and updates do not change that."""
    old = _record(None, _thing({"text": "a"}))
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"] = sent
    reset = _record(old, new)
    assert "managedFields" not in reset["metadata"]
    assert "managedFields" not in _record(reset, {**reset, "spec": {"text": "b"}})["metadata"]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([{"manager": "x", "operation": "Boo"}], id="an unknown operation"),
        pytest.param("x", id="no list"),
    ],
)
def test_broken_entries_are_ignored(sent: Any) -> None:
    """Entries that cannot be read do no harm to the stored ones."""
    old = _record(None, _thing({"text": "a"}))
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"] = sent
    assert _record(old, new) == old


def test_kubectl_can_hand_over_from_client_side_apply() -> None:
    """The JSON patch by which kubectl renames its entry works as any other patch."""
    old = _record(None, _thing({"text": "a"}), "kubectl-client-side-apply")
    (entry,) = old["metadata"]["managedFields"]
    renamed = {**entry, "manager": "kubectl", "operation": "Apply"}
    operation = {"op": "replace", "path": "/metadata/managedFields", "value": [renamed]}
    patched = apply_json_patch(old, json.dumps([operation]).encode())
    recorded = _record(old, patched, "kubectl")
    assert recorded["metadata"]["managedFields"] == [renamed]


def test_items_without_keys_cost_the_owners() -> None:
    """Rather no owners than wrong ones, as on a real server."""
    old = _record(None, _thing({"text": "a"}))
    recorded = _record(old, {**old, "spec": {"items": ["x"]}})
    assert "managedFields" not in recorded["metadata"]


def test_an_object_without_metadata_is_left_alone() -> None:
    """There is nothing to write owners to."""
    assert _record(None, {"spec": {"text": "a"}}) == {"spec": {"text": "a"}}


def test_a_type_without_fields_has_no_owners() -> None:
    """What is not described cannot be owned field by field."""
    recorded = _record(None, _thing({"text": "a"}), type=Type(TypeForm.ANY))
    assert "managedFields" not in recorded["metadata"]


def test_a_created_pod_has_the_owners_of_a_real_one() -> None:
    """The published types say how lists are told apart; containers themselves are not owned."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "finalizers": ["x.io/y"]},
        "spec": {
            "containers": [
                {
                    "name": "web",
                    "image": "nginx",
                    "ports": [
                        {"containerPort": 443, "protocol": "TCP"},
                        {"containerPort": 80, "protocol": "TCP"},
                    ],
                    "resources": {"limits": {"cpu": "1"}},
                }
            ],
            "securityContext": {},
            "tolerations": [{"operator": "Exists"}],
        },
        "status": {"phase": "Pending"},
    }
    port: FieldSet = {".": {}, "f:containerPort": {}, "f:protocol": {}}
    want = {
        "f:metadata": {"f:finalizers": {".": {}, 'v:"x.io/y"': {}}},
        "f:spec": {
            "f:containers": {
                'k:{"name":"web"}': {
                    ".": {},
                    "f:image": {},
                    "f:name": {},
                    "f:ports": {
                        ".": {},
                        'k:{"containerPort":80,"protocol":"TCP"}': port,
                        'k:{"containerPort":443,"protocol":"TCP"}': port,
                    },
                    "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                }
            },
            "f:securityContext": {},
            "f:tolerations": {},
        },
    }
    recorded = _record(None, pod, type=TYPES["io.k8s.api.core.v1.Pod"])
    found = _owners(recorded)["m"]
    assert json.dumps(found) == json.dumps(want)


@pytest.mark.parametrize(
    ("kind", "metadata", "want"),
    [
        pytest.param(
            "core.v1.Pod", {"ownerReferences": [{"uid": "u"}]}, {}, id="owner references of a pod"
        ),
        pytest.param("apps.v1.Deployment", {"labels": {"a": "b"}}, {}, id="labels of a deployment"),
        pytest.param(
            "networking.v1.ServiceCIDR", {"labels": {"a": "b"}}, {}, id="metadata of a range"
        ),
        pytest.param(
            "core.v1.Service",
            {"labels": {"a": "b"}},
            {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}},
            id="labels of a service are kept",
        ),
    ],
)
def test_some_kinds_reset_metadata_with_their_status(kind: str, metadata: Any, want: Any) -> None:
    """What a status write cannot set is not owned by it."""
    described = TYPES[f"io.k8s.api.{kind}"]
    old = _record(None, {"metadata": {"name": "x", "annotations": {"q": "r"}}}, type=described)
    new = copy.deepcopy(old)
    new["metadata"].update(metadata)
    recorded = _record(old, new, "s", type=described, subresource="status")
    assert _owners(recorded).get("sstatus", {}) == want


_NAMES = st.sampled_from(["a", "b", "c"])
_ITEMS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": _NAMES}, optional={"value": _NAMES}
)


def _name_of(item: dict[str, Any]) -> str:
    return str(item["name"])


_LISTS: st.SearchStrategy[Any] = st.lists(_ITEMS, max_size=3, unique_by=_name_of)
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "text": _NAMES,
        "list": st.lists(_NAMES, min_size=1, max_size=2),
        "whole": st.dictionaries(_NAMES, _NAMES),
        "deep": st.dictionaries(_NAMES, st.dictionaries(_NAMES, _NAMES)),
        "items": _LISTS,
    },
)


def _claims(fields: dict[str, Any]) -> int:
    return sum(1 if not below else _claims(below) for below in fields.values())


@given(_SPECS, st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), _SPECS), max_size=4))
@settings(deadline=None, max_examples=80)
def test_every_field_has_one_owner_after_updates(first: Any, writes: list[tuple[str, Any]]) -> None:
    """However managers write in turn, together they own exactly what one create would own."""
    live = _record(None, _thing({"text": "start", **first}), "first")
    for manager, spec in writes:
        live = _record(live, {**live, "spec": {"text": "same", **spec}}, manager, now=LATE)
    alone = _owners(_record(None, _thing(live["spec"])))["m"]
    owners = _owners(live)
    assert sum(map(_claims, owners.values())) == _claims(alone)
