"""Carrying changes of structs over to raw objects."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.registry.strategy import carry
from keepclose.model.endpointslice.types import (
    EndpointConditions,
    EndpointHints,
    EndpointSlice,
    ForZone,
)
from keepclose.model.meta import ObjectMeta
from keepclose.model.service.types import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
)
from support.builders import endpoint, endpoint_slice

_words = st.sampled_from(["", "a", "b", "http"])
_ports = st.builds(
    ServicePort,
    name=_words,
    port=st.integers(0, 3),
    node_port=st.integers(0, 2),
    target_port=st.none() | st.integers(0, 2) | _words,
)
_affinities = st.none() | st.builds(
    SessionAffinityConfig,
    client_ip=st.none() | st.builds(ClientIPConfig, timeout_seconds=st.none() | st.integers(1, 2)),
)
_services = st.builds(
    Service,
    metadata=st.builds(ObjectMeta, name=_words, labels=st.dictionaries(_words, _words, max_size=2)),
    spec=st.builds(
        ServiceSpec,
        type=_words,
        selector=st.none() | st.dictionaries(_words, _words, max_size=2),
        ports=st.lists(_ports, max_size=3).map(tuple),
        cluster_ips=st.lists(_words, max_size=2).map(tuple),
        session_affinity_config=_affinities,
        internal_traffic_policy=st.none() | _words,
    ),
    status=st.builds(
        ServiceStatus,
        load_balancer=st.builds(
            LoadBalancerStatus,
            ingress=st.lists(st.builds(LoadBalancerIngress, ip=_words), max_size=2).map(tuple),
        ),
    ),
)


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _with_unknown(value: Any) -> Any:
    """Return the value with a field that no struct knows in every object but maps of strings."""
    if isinstance(value, list):
        return [_with_unknown(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        "unknown": {"kept": True},
        **{
            key: one if key in ("labels", "selector") else _with_unknown(one)
            for key, one in value.items()
        },
    }


@settings(deadline=None, max_examples=200)
@given(before=_services, after=_services)
def test_the_raw_object_reads_as_the_struct_that_was_carried(
    before: Service, after: Service
) -> None:
    """After carrying, the raw object decodes to what the rules made of it."""
    raw = _with_unknown(_plain(before))
    carry(raw, before, after)
    assert msgspec.convert(raw, Service) == after
    assert raw["unknown"] == {"kept": True}
    assert raw["spec"]["unknown"] == raw["metadata"]["unknown"] == {"kept": True}
    assert raw["status"]["unknown"] == {"kept": True}


@settings(deadline=None, max_examples=50)
@given(service=_services)
def test_nothing_changes_when_nothing_was_changed(service: Service) -> None:
    """Equal structs leave the raw object as it is, with all that they do not know."""
    raw = _with_unknown(_plain(service))
    want_raw = _with_unknown(_plain(service))
    carry(raw, service, msgspec.structs.replace(service))
    assert raw == want_raw


def test_items_keep_what_is_unknown_by_their_names() -> None:
    """When a list shrinks, items keep their unknown fields by name, not by place."""
    before = Service(spec=ServiceSpec(ports=(ServicePort(name="a"), ServicePort(name="b"))))
    after = Service(spec=ServiceSpec(ports=(ServicePort(name="b", port=9),)))
    raw = _with_unknown(_plain(before))
    raw["spec"]["ports"][1]["unknown"] = "of b"
    carry(raw, before, after)
    assert raw["spec"]["ports"] == [{"unknown": "of b", "name": "b", "port": 9}]


def test_items_of_equal_lists_keep_what_is_unknown_by_their_place() -> None:
    """When a list keeps its length, items keep their unknown fields by place."""
    before = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    changed = msgspec.structs.replace(
        before.endpoints[1],
        conditions=EndpointConditions(ready=False),
        hints=EndpointHints(for_zones=(ForZone("a"),)),
    )
    after: EndpointSlice = msgspec.structs.replace(before, endpoints=(before.endpoints[0], changed))
    raw = _with_unknown(_plain(before))
    carry(raw, before, after)
    assert raw["endpoints"][1]["conditions"] == {"unknown": {"kept": True}, "ready": False}
    assert raw["endpoints"][1]["hints"] == {"forZones": [{"name": "a"}]}
    assert raw["endpoints"][1]["unknown"] == {"kept": True}


def test_fields_that_became_their_default_are_removed() -> None:
    """A value that goes back to its default leaves no trace but unknown fields beside it."""
    before = Service(
        spec=ServiceSpec(cluster_ip="10.0.0.1", cluster_ips=("10.0.0.1",)),
        status=ServiceStatus(LoadBalancerStatus((LoadBalancerIngress(ip="1.2.3.4"),))),
    )
    raw = _plain(before)
    carry(raw, before, Service())
    assert raw["spec"] == {}
    assert raw["status"] == {}


def test_an_object_that_was_absent_is_written_whole() -> None:
    """A part that the raw object does not have is added with plain lists."""
    after = Service(spec=ServiceSpec(cluster_ips=("10.0.0.1", "fd00::1")))
    raw: dict[str, Any] = {"kind": "Service"}
    carry(raw, Service(), after)
    assert raw == {"kind": "Service", "spec": {"clusterIPs": ["10.0.0.1", "fd00::1"]}}
