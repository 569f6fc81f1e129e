"""The types that are served."""

from __future__ import annotations

import gc
import importlib
import time
from importlib.resources import files

import msgspec
import pytest

from keepclose.apiserver.resources import BY_KIND, RESOURCES, Resource
from keepclose.apiserver.schema.types import (
    ANY_TYPE,
    ListKind,
    Type,
    TypeForm,
    _Builder,
    load_definitions,
    load_types,
    published,
    type_of,
)
from keepclose.model.gates import FeatureGates, Gate

GATES = FeatureGates()
TYPES = load_types(GATES)
SERVICE_SPEC = TYPES["io.k8s.api.core.v1.ServiceSpec"]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.definition)
def test_every_resource_has_a_type_and_a_list(resource: Resource) -> None:
    """The type of a resource has the usual fields, and a list of such objects has a type too."""
    found = type_of(resource, GATES)
    assert found.name == resource.definition
    assert found.form is TypeForm.OBJECT
    assert {"apiVersion", "kind", "metadata"} <= set(found.fields)
    items = TYPES[f"{resource.definition}List"].fields["items"].items
    assert items is found


def test_the_ports_of_a_service_are_told_apart_by_port_and_protocol() -> None:
    """A list that merges says by which fields, for apply and for strategic patches."""
    ports = SERVICE_SPEC.fields["ports"]
    assert ports.form is TypeForm.LIST
    assert ports.list_kind is ListKind.MAP
    assert ports.list_keys == ("port", "protocol")
    assert (ports.patch_strategies, ports.merge_key) == (("merge",), "port")
    assert ports.items is TYPES["io.k8s.api.core.v1.ServicePort"]
    assert ports.items.required == ("port",)
    assert ports.items.fields["protocol"].default == "TCP"


@pytest.mark.parametrize(
    ("definition", "field", "want"),
    [
        pytest.param(
            "core.v1.ServiceSpec",
            "type",
            Type(TypeForm.STRING, go_type="v1.ServiceType", omits_empty=True),
            id="a named string",
        ),
        pytest.param(
            "core.v1.ServiceSpec",
            "trafficDistribution",
            Type(TypeForm.STRING, go_type="string"),
            id="a pointer keeps its empty value",
        ),
        pytest.param(
            "core.v1.ServicePort",
            "nodePort",
            Type(TypeForm.INTEGER, format="int32", go_type="int32", omits_empty=True),
            id="a number",
        ),
        pytest.param(
            "core.v1.ServiceSpec",
            "selector",
            Type(
                TypeForm.MAP,
                items=Type(TypeForm.STRING, go_type="string"),
                atomic=True,
                go_type="map[string]string",
                omits_empty=True,
            ),
            id="a map that is applied as a whole",
        ),
        pytest.param(
            "core.v1.ServiceSpec",
            "ipFamilies",
            Type(
                TypeForm.LIST,
                items=Type(TypeForm.STRING, go_type="v1.IPFamily"),
                go_type="[]v1.IPFamily",
                omits_empty=True,
            ),
            id="a list of named strings",
        ),
        pytest.param(
            "core.v1.ConfigMap",
            "binaryData",
            Type(
                TypeForm.MAP,
                items=Type(TypeForm.STRING, format="byte", go_type="[]uint8"),
                go_type="map[string][]uint8",
                omits_empty=True,
            ),
            id="bytes",
        ),
        pytest.param(
            "meta.v1.ObjectMeta",
            "finalizers",
            Type(
                TypeForm.LIST,
                items=Type(TypeForm.STRING, go_type="string"),
                list_kind=ListKind.SET,
                patch_strategies=("merge",),
                go_type="[]string",
                omits_empty=True,
            ),
            id="a set",
        ),
        pytest.param(
            "core.v1.Service",
            "kind",
            Type(TypeForm.STRING, go_type="string", embedded="TypeMeta", omits_empty=True),
            id="a field of an embedded struct",
        ),
        pytest.param(
            "discovery.v1.EndpointPort",
            "name",
            Type(TypeForm.STRING, go_type="string"),
            id="an empty port name is a name",
        ),
    ],
)
def test_fields_carry_all_that_is_known_about_them(definition: str, field: str, want: Type) -> None:
    """Types, formats, Go names and merge marks of a field are read from its line."""
    assert TYPES[published(definition)].fields[field] == want


@pytest.mark.parametrize(
    ("definition", "field", "want_form", "want_go"),
    [
        ("core.v1.ServicePort", "targetPort", TypeForm.INT_OR_STRING, "intstr.IntOrString"),
        ("core.v1.EmptyDirVolumeSource", "sizeLimit", TypeForm.QUANTITY, "resource.Quantity"),
        ("meta.v1.ObjectMeta", "creationTimestamp", TypeForm.TIME, "v1.Time"),
        ("coordination.v1.LeaseSpec", "renewTime", TypeForm.TIME, "v1.MicroTime"),
        ("meta.v1.ManagedFieldsEntry", "fieldsV1", TypeForm.ANY, "v1.FieldsV1"),
        ("meta.v1.WatchEvent", "object", TypeForm.ANY, "runtime.RawExtension"),
        ("core.v1.NodeStatus", "capacity", TypeForm.MAP, "v1.ResourceList"),
    ],
)
def test_special_types_have_forms_of_their_own(
    definition: str, field: str, want_form: TypeForm, want_go: str
) -> None:
    """Values that are more than JSON are known as such."""
    found = TYPES[published(definition)].fields[field]
    assert (found.form, found.go_type) == (want_form, want_go)


def test_a_strategy_of_a_field_does_not_spread_to_its_type() -> None:
    """The same definition may be patched otherwise at another place, with the same fields."""
    strategy = TYPES["io.k8s.api.apps.v1.DeploymentSpec"].fields["strategy"]
    definition = TYPES["io.k8s.api.apps.v1.DeploymentStrategy"]
    assert strategy.patch_strategies == ("retainKeys",)
    assert definition.patch_strategies == ()
    assert strategy.fields is definition.fields
    volumes = TYPES["io.k8s.api.core.v1.PodSpec"].fields["volumes"]
    assert volumes.patch_strategies == ("merge", "retainKeys")
    assert TYPES["io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"].atomic


def test_topology_keys_are_served_while_their_gate_is_on() -> None:
    """The field of the removed mechanism exists for those who switch it on, and for nobody else."""
    assert "topologyKeys" not in SERVICE_SPEC.fields
    old = load_types(GATES.with_gates(Gate.SERVICE_TOPOLOGY))
    found = old["io.k8s.api.core.v1.ServiceSpec"].fields
    assert found["topologyKeys"].go_type == "[]string"
    assert set(found) - set(SERVICE_SPEC.fields) == {"topologyKeys"}
    assert old["io.k8s.api.core.v1.Service"].fields["spec"].fields is found


def test_a_type_that_holds_itself_is_not_followed_for_ever() -> None:
    """At the second meeting it is a value that nobody looks into."""
    builder = _Builder({"core.v1.ServicePort": {"owner": "core.v1.Service"}}, frozenset())
    service = builder.object_type("core.v1.Service")
    ports = service.fields["spec"].fields["ports"].items
    assert ports is not None
    assert ports.fields["owner"] is ANY_TYPE


@pytest.mark.parametrize(
    ("short", "want"),
    [
        ("core.v1.Service", "io.k8s.api.core.v1.Service"),
        ("meta.v1.Status", "io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
        ("Quantity", "io.k8s.apimachinery.pkg.api.resource.Quantity"),
    ],
)
def test_short_names_stand_for_published_ones(short: str, want: str) -> None:
    """The data file leaves out what all names share."""
    assert published(short) == want


def test_types_are_built_once() -> None:
    """Asking again gives the very same types."""
    assert load_types(FeatureGates()) is TYPES
    assert type_of(BY_KIND["v1", "Pod"], GATES) is TYPES["io.k8s.api.core.v1.Pod"]


def test_the_data_file_is_small_and_holds_no_prose() -> None:
    """Lines are names, types and marks: nothing with a sentence in it."""
    data = files("keepclose.apiserver.schema").joinpath("definitions.json").read_bytes()
    assert len(data) < 100_000
    marks = {"list", "keys", "patch", "key", "atomic", "go", "in", "default", "keep"}
    for definition in msgspec.json.decode(data, type=dict[str, dict[str, object]]).values():
        fields = msgspec.convert(definition["fields"], dict[str, str])
        for text in fields.values():
            assert {word.partition("=")[0] for word in text.split(" ")[1:]} <= marks


def test_reading_the_file_is_quick() -> None:
    """A server starts without noticing its types."""
    load_definitions.cache_clear()
    # NB: a garbage collection would visit what other tests of this process have left.
    gc.disable()
    try:
        begun = time.process_time()
        load_definitions()
        assert time.process_time() - begun < 0.05
    finally:
        gc.enable()


@pytest.mark.parametrize("short", sorted(load_definitions()))
def test_field_names_agree_with_lightkube(short: str) -> None:
    """Another reading of the published definitions has the same fields, required and all."""
    package, _, name = short.rpartition(".")
    module = importlib.import_module(f"lightkube.models.{package.replace('.', '_')}")
    want = msgspec.structs.fields(getattr(module, name))
    found = TYPES[published(short)]
    assert sorted(found.fields) == sorted(field.encode_name for field in want)
    assert sorted(found.required) == sorted(field.encode_name for field in want if field.required)
