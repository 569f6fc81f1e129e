"""An API server that emulates an older release: upgrades and rollbacks as proposals describe them.

Each server of a test runs on the files of the one before, as after an upgrade or a rollback of the
control plane.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepclose.model.gates import (
    FeatureGates,
    Gate,
    GateError,
    VersionError,
    gates_at,
    parse_emulated_version,
    parse_gates,
)
from keepclose.testing.api_server import Reply, Served, serving

JsonObject = dict[str, Any]
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
MERGE_PATCH = "application/merge-patch+json"
DISTRIBUTION = "trafficDistribution"


def _service(name: str, value: str = "") -> JsonObject:
    spec: JsonObject = {"ports": [{"port": 80}]}
    if value:
        spec[DISTRIBUTION] = value
    return {"metadata": {"name": name}, "spec": spec}


def _slice(name: str) -> JsonObject:
    hints = {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]}
    endpoint = {"addresses": ["192.0.2.1"], "hints": hints}
    return {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": [endpoint]}


async def _set(api: Served, name: str, value: str | None) -> Reply:
    """Change the traffic distribution of a stored Service."""
    patch = {"spec": {DISTRIBUTION: value}}
    return await api.call("PATCH", f"{SERVICES}/{name}", patch, type=MERGE_PATCH)


async def _label(api: Served, path: str) -> JsonObject:
    """Change a label of a stored object as kubectl does, and return the object."""
    patch = {"metadata": {"labels": {"touched": "yes"}}}
    reply = await api.call("PATCH", f"{path}?fieldValidation=Strict", patch, type=MERGE_PATCH)
    assert reply.status == 200, reply.message
    changed: JsonObject = reply.json
    return changed


@pytest.mark.parametrize(
    ("minor", "want"),
    [
        pytest.param(29, set(), id="1.29 has neither"),
        pytest.param(30, set(), id="1.30 has the first as alpha"),
        pytest.param(31, {Gate.SERVICE_TRAFFIC_DISTRIBUTION}, id="1.31 has it as beta"),
        pytest.param(33, {Gate.SERVICE_TRAFFIC_DISTRIBUTION}, id="1.33 has the second as alpha"),
        pytest.param(
            34,
            {Gate.SERVICE_TRAFFIC_DISTRIBUTION, Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION},
            id="1.34 has it as beta",
        ),
    ],
)
def test_gates_have_the_defaults_of_the_release(minor: int, want: set[Gate]) -> None:
    """Which values Services may have follows the release; gates of keepclose are off."""
    asked = {Gate.SERVICE_TRAFFIC_DISTRIBUTION, Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION}
    gates = gates_at(minor)
    assert gates.enabled & asked == want
    assert not gates.on(Gate.TOPOLOGY_AWARE_SUBSETTING)


def test_the_release_of_today_has_the_defaults_of_today() -> None:
    """Emulating the newest release changes no default."""
    assert gates_at(36).enabled == FeatureGates().enabled


@pytest.mark.parametrize(
    ("minor", "text", "want"),
    [
        pytest.param(
            33,
            "ServiceTrafficDistribution=false",
            "cannot set feature gate ServiceTrafficDistribution to false, "
            "feature is locked to true",
            id="a gate that is locked",
        ),
        pytest.param(
            32,
            "PreferSameTrafficDistribution=true",
            "cannot set feature gate PreferSameTrafficDistribution to true, "
            "feature is PreAlpha at emulated version 1.32",
            id="a gate to come",
        ),
    ],
)
def test_gates_that_a_release_cannot_set(minor: int, text: str, want: str) -> None:
    """They are refused in the words of Kubernetes."""
    with pytest.raises(GateError) as refusal:
        parse_gates(text, defaults=gates_at(minor))
    assert str(refusal.value) == want


def test_gates_that_a_release_can_set() -> None:
    """Alpha gates can be switched on, beta gates off, locked ones to what they are."""
    text = "ServiceTrafficDistribution=true"
    assert parse_gates(text, defaults=gates_at(30)).on(Gate.SERVICE_TRAFFIC_DISTRIBUTION)
    assert parse_gates(text, defaults=gates_at(36)).emulated_minor == 36
    text = "PreferSameTrafficDistribution=false,NodeLevelTopology=true"
    gates = parse_gates(text, defaults=gates_at(34))
    assert not gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    assert gates.on(Gate.NODE_LEVEL_TOPOLOGY)


@pytest.mark.parametrize("text", ["1.28", "1.37", "1", "v1.33", "2.33", "1.33.1", "", "etcd=1.33"])
def test_versions_that_cannot_be_emulated(text: str) -> None:
    """The refusal names the range."""
    with pytest.raises(VersionError, match=r"must be a version from 1\.29 to 1\.36"):
        parse_emulated_version(text)


def test_versions_are_written_as_for_kube_apiserver() -> None:
    """The name of the component may stand before the version."""
    assert (parse_emulated_version("1.33"), parse_emulated_version("kube=1.34")) == (33, 34)


async def test_traffic_distribution_over_upgrade_rollback_and_upgrade(tmp_path: Path) -> None:
    """KEP-4444: a rollback keeps the stored value, lets it be removed, and takes no new one."""
    async with serving(tmp_path, gates=gates_at(29)) as api:
        strict = f"{SERVICES}?fieldValidation=Strict"
        refused = await api.call("POST", strict, _service("a", "PreferClose"))
        assert refused.status == 400
        assert 'unknown field "spec.trafficDistribution"' in refused.message
        lax = await api.call("POST", SERVICES, _service("old", "PreferClose"))
        assert lax.warnings == ['299 - "unknown field \\"spec.trafficDistribution\\""']
        assert DISTRIBUTION not in lax.json["spec"]
        assert (await api.get("/version"))["emulationMinor"] == "29"
        document = await api.get("/openapi/v2")
        fields = document["definitions"]["io.k8s.api.core.v1.ServiceSpec"]["properties"]
        assert DISTRIBUTION not in fields
    async with serving(tmp_path, gates=gates_at(30)) as api:
        created = await api.create(SERVICES, _service("alpha", "PreferClose"))
        assert DISTRIBUTION not in created["spec"]
    async with serving(tmp_path, gates=gates_at(31)) as api:
        for name in ("kept", "removed", "changed"):
            created = await api.create(SERVICES, _service(name, "PreferClose"))
            assert created["spec"][DISTRIBUTION] == "PreferClose"
        assert (await api.call("POST", SERVICES, _service("x", "PreferSameZone"))).message == (
            'Service "x" is invalid: spec.trafficDistribution: Unsupported value: '
            '"PreferSameZone": supported values: "PreferClose"'
        )
    for older in (30, 29):
        async with serving(tmp_path, gates=gates_at(older)) as api:
            assert (await _label(api, f"{SERVICES}/kept"))["spec"][DISTRIBUTION] == "PreferClose"
            if older == 30:
                assert DISTRIBUTION not in (await _set(api, "removed", None)).json["spec"]
            assert DISTRIBUTION not in (await _set(api, "removed", "PreferClose")).json["spec"]
    async with serving(tmp_path, gates=gates_at(36)) as api:
        assert (await api.get(f"{SERVICES}/kept"))["spec"][DISTRIBUTION] == "PreferClose"
        reply = await _set(api, "removed", "PreferSameZone")
        assert reply.json["spec"][DISTRIBUTION] == "PreferSameZone"
        assert (await api.get("/version"))["emulationMinor"] == "36"


async def test_newer_values_over_upgrade_rollback_and_upgrade(tmp_path: Path) -> None:
    """KEP-3015: a rollback accepts a stored PreferSameNode, and no new one."""
    async with serving(tmp_path, gates=gates_at(34)) as api:
        for name in ("kept", "changed"):
            created = await api.create(SERVICES, _service(name, "PreferSameNode"))
            assert created["spec"][DISTRIBUTION] == "PreferSameNode"
    off = parse_gates("PreferSameTrafficDistribution=false", defaults=gates_at(34))
    for older in (off, gates_at(33), gates_at(32)):
        async with serving(tmp_path, gates=older) as api:
            kept = await _label(api, f"{SERVICES}/kept")
            assert kept["spec"][DISTRIBUTION] == "PreferSameNode"
            refused = await api.call("POST", SERVICES, _service("new", "PreferSameNode"))
            assert refused.status == 422
            assert (await _set(api, "changed", "PreferSameZone")).status == 422
    async with serving(tmp_path, gates=gates_at(35)) as api:
        assert (await _set(api, "changed", "PreferSameZone")).status == 200


async def test_node_hints_over_upgrade_rollback_and_upgrade(tmp_path: Path) -> None:
    """KEP-3015: before 1.33 node hints are unknown; stored ones stay until they are removed."""
    async with serving(tmp_path, gates=gates_at(32)) as api:
        strict = await api.call("POST", f"{SLICES}?fieldValidation=Strict", _slice("a"))
        assert strict.status == 400
        assert 'unknown field "endpoints[0].hints.forNodes"' in strict.message
        lax = await api.call("POST", SLICES, _slice("unknown"))
        assert lax.json["endpoints"][0]["hints"] == {"forZones": [{"name": "z"}]}
    async with serving(tmp_path, gates=gates_at(33)) as api:
        alpha = await api.create(SLICES, _slice("alpha"))
        assert alpha["endpoints"][0]["hints"] == {"forZones": [{"name": "z"}]}
    async with serving(tmp_path, gates=gates_at(34)) as api:
        created = await api.create(SLICES, _slice("kept"))
        hints = created["endpoints"][0]["hints"]
        assert hints["forNodes"] == [{"name": "n"}]
    for older in (33, 32):
        async with serving(tmp_path, gates=gates_at(older)) as api:
            kept = await _label(api, f"{SLICES}/kept")
            assert kept["endpoints"][0]["hints"] == hints
    async with serving(tmp_path) as api:
        assert (await api.get(f"{SLICES}/kept"))["endpoints"][0]["hints"] == hints


async def test_an_older_release_has_its_own_rules_and_warnings(tmp_path: Path) -> None:
    """Names, addresses and deprecations are those of the release."""
    async with serving(tmp_path, gates=gates_at(32)) as api:
        refused = await api.call("POST", SERVICES, _service("-123"))
        assert 'metadata.name: Invalid value: "-123": a DNS-1035 label must' in refused.message
        assert "RFC 1123" not in refused.message
        service = _service("lax")
        service["spec"]["externalIPs"] = ["192.000.2.1"]
        assert (await api.call("POST", SERVICES, service)).status == 201
        assert (await api.call("GET", ENDPOINTS)).warnings == []
    async with serving(tmp_path, gates=gates_at(36)) as api:
        assert (await api.call("POST", SERVICES, _service("9lives"))).status == 201
        service["metadata"]["name"] = "strict"
        assert (await api.call("POST", SERVICES, service)).status == 422
        assert len((await api.call("GET", ENDPOINTS)).warnings) == 1
