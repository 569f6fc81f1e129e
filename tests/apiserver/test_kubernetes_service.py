"""The Service default/kubernetes: made by the server, repaired, and never in anybody's way."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from keepclose.apiserver.assembly import ApiServer, ServerSettings, StartError
from keepclose.apiserver.controllers.default_objects import AdvertiseError, choose_advertised
from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.testing.api_server import Reply, Served, serving

JsonObject = dict[str, Any]
SERVICES = "/api/v1/namespaces/default/services"
SERVICE = f"{SERVICES}/kubernetes"
ENDPOINTS = "/api/v1/namespaces/default/endpoints/kubernetes"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
SLICE = f"{SLICES}/kubernetes"
ADVERTISED = "192.0.2.7"
MERGE = "application/merge-patch+json"


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve with the objects that every cluster has, at an address that nodes reach."""
    settings = {"advertise_address": ADVERTISED, "makes_own_service": True}
    async with serving(tmp_path / "data", **settings) as served:
        yield served


def _port_of(api: Served) -> int:
    return int(api.url.rpartition(":")[2])


async def test_the_service_leads_to_the_server(full: Served) -> None:
    """It has the first address of the range, port 443, no selector, and one endpoint."""
    port = _port_of(full)
    service = await full.get(SERVICE)
    assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    assert service["spec"] == {
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1"],
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    endpoints = await full.get(ENDPOINTS)
    assert endpoints["metadata"]["labels"] == {"endpointslice.kubernetes.io/skip-mirror": "true"}
    assert endpoints["subsets"] == [
        {
            "addresses": [{"ip": ADVERTISED}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }
    ]
    endpoint_slice = await full.get(SLICE)
    assert endpoint_slice["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert endpoint_slice["addressType"] == "IPv4"
    assert endpoint_slice["endpoints"] == [
        {"addresses": [ADVERTISED], "conditions": {"ready": True}}
    ]
    assert endpoint_slice["ports"] == [{"name": "https", "port": port, "protocol": "TCP"}]


async def test_the_certificate_is_good_for_the_service(full: Served) -> None:
    """A program in the cluster can verify the server at both addresses."""
    certificate = ssl._ssl._test_decode_cert(  # type: ignore[attr-defined]
        str(full.server.settings.data_dir / "pki" / "server.crt")
    )
    names = {name for _, name in certificate["subjectAltName"]}
    assert {"10.96.0.1", ADVERTISED, "kubernetes.default.svc"} <= names


async def test_a_server_on_loopback_has_no_endpoint(tmp_path: Path) -> None:
    """Nodes cannot reach loopback, so the Service is there with an empty slice."""
    async with serving(tmp_path, makes_own_service=True) as api:
        assert (await api.get(SERVICE))["spec"]["clusterIP"] == "10.96.0.1"
        assert "subsets" not in await api.get(ENDPOINTS)
        endpoint_slice = await api.get(SLICE)
        assert (endpoint_slice["endpoints"], endpoint_slice["ports"]) == ([], [])


@pytest.mark.parametrize("path", [SERVICE, ENDPOINTS, SLICE])
async def test_what_is_deleted_comes_back(full: Served, path: str) -> None:
    """Each of the objects is made again after a deletion, as it was."""
    before = await full.get(path)
    assert (await full.call("DELETE", path)).status == 200

    def is_back(reply: Reply) -> bool:
        return reply.status == 200 and reply.json["metadata"]["uid"] != before["metadata"]["uid"]

    after = (await full.until(path, is_back)).json
    for field in ("spec", "subsets", "endpoints", "ports"):
        assert after.get(field) == before.get(field)
    # The garbage collector removes the Endpoints of a deleted Service; they come back too.
    await full.until(ENDPOINTS, lambda reply: reply.status == 200)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        pytest.param(SERVICE, {"spec": {"ports": [{"port": 80}]}}, id="ports"),
        pytest.param(SERVICE, {"spec": {"selector": {"app": "web"}}}, id="selector"),
        pytest.param(SERVICE, {"spec": {"type": "NodePort"}}, id="type"),
        pytest.param(
            SERVICE,
            {"spec": {"type": "ExternalName", "externalName": "a.example", "clusterIP": None}},
            id="external name",
        ),
        pytest.param(ENDPOINTS, {"subsets": []}, id="no addresses"),
        pytest.param(ENDPOINTS, {"metadata": {"labels": None}}, id="mirrored"),
        pytest.param(SLICE, {"endpoints": []}, id="no endpoints"),
        pytest.param(
            SLICE,
            {"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "x"}}},
            id="managed by another",
        ),
    ],
)
async def test_what_is_changed_is_repaired(full: Served, path: str, change: JsonObject) -> None:
    """Each of the objects gets its content back after a change."""
    before = await full.get(path)
    changed = (await full.call("PATCH", path, change, type=MERGE)).json
    assert _content(changed) != _content(before)
    await full.until(path, lambda reply: _content(reply.json) == _content(before))


def _content(obj: JsonObject) -> JsonObject:
    content = {key: value for key, value in obj.items() if key not in ("metadata", "kind")}
    return {**content, "labels": obj["metadata"].get("labels")}


async def test_a_preference_of_a_user_is_kept(full: Served) -> None:
    """What says nothing about where the server is stays as a user wrote it."""
    change = {"spec": {"trafficDistribution": "PreferSameZone"}}
    await full.call("PATCH", SERVICE, change, type=MERGE)
    await full.call("DELETE", SLICE)
    await full.until(SLICE, lambda reply: reply.status == 200)
    assert (await full.get(SERVICE))["spec"]["trafficDistribution"] == "PreferSameZone"


async def test_nothing_is_written_where_all_is_right(tmp_path: Path) -> None:
    """A second start with the same port leaves the objects at their versions."""
    settings: JsonObject = {"advertise_address": ADVERTISED, "makes_own_service": True}
    async with serving(tmp_path, **settings) as api:
        before = [await api.get(path) for path in (SERVICE, ENDPOINTS, SLICE)]
        port = _port_of(api)
    async with serving(tmp_path, port=port, **settings) as api:
        assert [await api.get(path) for path in (SERVICE, ENDPOINTS, SLICE)] == before


async def test_a_restart_follows_port_and_address(tmp_path: Path) -> None:
    """Another port, address or family of the next start is where the objects lead to."""
    settings: JsonObject = {"makes_own_service": True}
    async with serving(tmp_path, advertise_address=ADVERTISED, **settings) as api:
        assert (await api.get(SLICE))["addressType"] == "IPv4"
    ranges = AllocationSettings(("fd00:96::/112",))
    async with serving(
        tmp_path, advertise_address="2001:db8::7", allocation=ranges, **settings
    ) as api:
        port = _port_of(api)
        spec = (await api.get(SERVICE))["spec"]
        assert (spec["clusterIP"], spec["ports"][0]["targetPort"]) == ("fd00:96::1", port)
        endpoint_slice = await api.get(SLICE)
        assert endpoint_slice["addressType"] == "IPv6"
        assert endpoint_slice["endpoints"][0]["addresses"] == ["2001:db8::7"]
        assert endpoint_slice["ports"][0]["port"] == port


async def test_an_address_that_is_taken(tmp_path: Path) -> None:
    """A Service that has the address keeps it: the server says so once, and takes it later."""
    spec = {"ports": [{"port": 80}], "clusterIP": "10.96.0.1"}
    async with serving(tmp_path) as api:
        await api.create(SERVICES, {"metadata": {"name": "mine"}, "spec": spec})
    with capture_logs() as logs:
        async with serving(tmp_path, makes_own_service=True) as api:
            assert (await api.get(f"{SERVICES}/mine"))["spec"]["clusterIP"] == "10.96.0.1"
            assert (await api.call("GET", SERVICE)).status == 404
            await api.create(
                SERVICES, {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}}
            )
            await api.call("DELETE", f"{SERVICES}/mine")
            back = await api.until(SERVICE, lambda reply: reply.status == 200)
            assert back.json["spec"]["clusterIP"] == "10.96.0.1"
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "failed to allocate IP 10.96.0.1: provided IP is already allocated" in logs[0]["why"]


async def test_the_address_is_for_no_other_service(full: Served) -> None:
    """Another Service that names the address is refused."""
    body = {
        "metadata": {"name": "mine"},
        "spec": {"ports": [{"port": 80}], "clusterIP": "10.96.0.1"},
    }
    reply = await full.call("POST", SERVICES, body)
    assert reply.status == 422
    assert "provided IP is already allocated" in reply.message


@pytest.mark.parametrize(
    ("advertise", "host", "want"),
    [
        pytest.param(ADVERTISED, "127.0.0.1", ADVERTISED, id="given"),
        pytest.param("", "192.0.2.9", "192.0.2.9", id="the address listened at"),
        pytest.param("", "127.0.0.1", "", id="loopback"),
        pytest.param("", "localhost", "", id="a name"),
        pytest.param("", "2001:db8::1", "", id="of another family than Services"),
        pytest.param("", "169.254.1.1", "", id="link-local"),
    ],
)
def test_the_address_for_nodes(advertise: str, host: str, want: str) -> None:
    """An advertise address comes first, then the host, if nodes can reach it."""
    assert choose_advertised(advertise, host=host, family="IPv4") == want


@pytest.mark.parametrize(
    ("advertise", "why"),
    [
        ("127.0.0.1", "may not be in the loopback range"),
        ("0.0.0.0", "may not be unspecified"),  # noqa: S104 - refused
        ("here", "must be a valid IP address"),
        ("2001:db8::1", "must be of the family of --service-cluster-ip-range, which is IPv4"),
    ],
)
def test_an_advertise_address_that_leads_nowhere(tmp_path: Path, advertise: str, why: str) -> None:
    """Such an address is refused at start, with the reason."""
    with pytest.raises(AdvertiseError, match=why):
        choose_advertised(advertise, host="127.0.0.1", family="IPv4")
    with pytest.raises(StartError, match=why):
        ApiServer(ServerSettings(data_dir=tmp_path, port=0, advertise_address=advertise))
