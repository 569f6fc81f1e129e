"""What single kinds do over HTTP that others do not: deprecations, owners, stricter rules."""

from __future__ import annotations

from typing import Any, Final

import pytest

from keepclose.testing.api_server import Served

JsonObject = dict[str, Any]
MERGE_PATCH: Final = "application/merge-patch+json"
ENDPOINTS: Final = "/api/v1/namespaces/default/endpoints"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
DAEMONS: Final = "/apis/apps/v1/namespaces/default/daemonsets"
PODS: Final = "/api/v1/namespaces/default/pods"
SERVICES: Final = "/api/v1/namespaces/default/services"
DEPRECATED: Final = (
    '299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"'
)
EVENT: Final[JsonObject] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "one"},
    "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
    "eventTime": "2026-01-02T03:04:05.000000Z",
    "reportingController": "example.com/tester",
    "reportingInstance": "tester-1",
    "action": "Test",
    "reason": "Tested",
    "type": "Normal",
}
TEMPLATE: Final[JsonObject] = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"containers": [{"name": "main", "image": "main:1"}]},
}
WORKLOAD: Final[JsonObject] = {"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}


def _object(api_version: str, kind: str, **members: Any) -> JsonObject:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "one"}, **members}


@pytest.mark.parametrize(
    ("method", "path", "body", "want_status"),
    [
        pytest.param("GET", ENDPOINTS, None, 200, id="a list"),
        pytest.param("GET", f"{ENDPOINTS}/none", None, 404, id="what is not there"),
        pytest.param(
            "POST",
            ENDPOINTS,
            _object("v1", "Endpoints", subsets=[{"addresses": [{"ip": "127.0.0.1"}]}]),
            422,
            id="a refused write",
        ),
    ],
)
async def test_legacy_endpoints_are_deprecated(
    api: Served, method: str, path: str, body: JsonObject | None, want_status: int
) -> None:
    """Every answer about them says so, whatever else it says."""
    reply = await api.call(method, path, body)
    assert (reply.status, reply.warnings) == (want_status, [DEPRECATED])


async def test_the_newer_group_of_events_is_strict(api: Served) -> None:
    """An event must have a type there, and hardly changes; the refusal names the older kind."""
    reply = await api.call("POST", EVENTS, {**EVENT, "type": "Odd", "reportingController": "a b"})
    assert reply.status == 422
    assert reply.message.startswith('Event "one" is invalid: ')
    assert [cause["field"] for cause in reply.json["details"]["causes"]] == [
        "reportingController",
        "type",
    ]
    await api.create(EVENTS, EVENT)
    reply = await api.call("PATCH", f"{EVENTS}/one", {"note": "x"}, type=MERGE_PATCH)
    assert (reply.status, reply.message) == (
        422,
        'Event "one" is invalid: message: Invalid value: "x": field is immutable',
    )


async def test_who_scales_owns_the_replicas(api: Served) -> None:
    """The number goes from whoever wrote it to an entry for the subresource, which has no time."""
    body = _object("apps/v1", "Deployment", spec={**WORKLOAD, "replicas": 1})
    await api.create(f"{DEPLOYMENTS}?fieldManager=tester", body)
    path = f"{DEPLOYMENTS}/one/scale?fieldManager=tester"
    reply = await api.call("PATCH", path, {"spec": {"replicas": 3}}, type=MERGE_PATCH)
    assert reply.status == 200
    found = await api.get(f"{DEPLOYMENTS}/one")
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (3, 2)
    scaled, created = found["metadata"]["managedFields"]
    assert scaled == {
        "manager": "tester",
        "operation": "Update",
        "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
        "subresource": "scale",
    }
    assert "f:replicas" not in created["fieldsV1"]["f:spec"]


async def test_a_badly_spelt_address_of_a_load_balancer_is_told_of(api: Served) -> None:
    """Who reports it hears so; the path names the entry of the list."""
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    await api.create(SERVICES, _object("v1", "Service", spec=spec))
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "2001:DB8::7"}]}}}
    reply = await api.call("PATCH", f"{SERVICES}/one/status", status, type=MERGE_PATCH)
    assert reply.status == 200
    assert reply.warnings == [
        (
            '299 - "status.loadBalancer.ingress[0]: IPv6 address \\"2001:DB8::7\\" should be in '
            'RFC 5952 canonical format (\\"2001:db8::7\\")"'
        )
    ]


async def test_the_ranges_of_the_cluster_are_ready(api: Served) -> None:
    """The server tells from the start what it hands out cluster IPs from."""
    found = await api.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
    assert found["spec"] == {"cidrs": ["10.96.0.0/16"]}
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")


async def test_writers_of_daemon_sets_own_the_count_of_templates(api: Served) -> None:
    """The annotation is there before owners are recorded, as a default is."""
    body = await api.create(DAEMONS, _object("apps/v1", "DaemonSet", spec=WORKLOAD))
    key = "deprecated.daemonset.template.generation"
    assert body["metadata"]["annotations"] == {key: "1"}
    (entry,) = body["metadata"]["managedFields"]
    assert entry["fieldsV1"]["f:metadata"] == {"f:annotations": {".": {}, f"f:{key}": {}}}


async def test_reporters_of_addresses_own_both_fields(api: Served) -> None:
    """Whoever reports the list of a pod's addresses owns the single one too."""
    await api.create(PODS, _object("v1", "Pod", spec=TEMPLATE["spec"]))
    status = {"status": {"podIPs": [{"ip": "10.1.0.1"}]}}
    reply = await api.call("PATCH", f"{PODS}/one/status", status, type=MERGE_PATCH)
    reported = reply.json["metadata"]["managedFields"][-1]["fieldsV1"]["f:status"]
    assert sorted(reported) == ["f:podIP", "f:podIPs"]
