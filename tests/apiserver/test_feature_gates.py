"""Feature gates as clients see them, over restarts of the server on the same files."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from keepclose.model.gates import FeatureGates, GateError, parse_gates
from keepclose.testing.api_server import Reply, Served, serving

JsonObject = dict[str, Any]
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MERGE_PATCH = "application/merge-patch+json"
TOPOLOGY = "ServiceTopology=true,TopologyAwareHints=false"


def _gates(text: str) -> FeatureGates:
    return parse_gates(text)


def _service(name: str = "one", **spec: Any) -> JsonObject:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def _slice(name: str = "one", **hints: Any) -> JsonObject:
    endpoint: JsonObject = {"addresses": ["192.0.2.1"]}
    if hints:
        endpoint["hints"] = {key: [{"name": value}] for key, value in hints.items()}
    return {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": [endpoint]}


async def _change(api: Served, path: str, change: JsonObject) -> Reply:
    """Update an object by a PUT of what is stored with the change laid over its spec."""
    stored = await api.get(path)
    stored["spec"] |= change
    stored["spec"] = {key: value for key, value in stored["spec"].items() if value is not None}
    return await api.call("PUT", path, stored)


async def _touch(api: Served, path: str) -> Reply:
    """Change a label alone, by a PUT and by a patch, and return the second answer."""
    stored = await api.get(path)
    stored["metadata"]["labels"] = {"touched": "1"}
    assert (await api.call("PUT", path, stored)).status == 200
    patch = {"metadata": {"labels": {"touched": "2"}}}
    return await api.call("PATCH", f"{path}?fieldValidation=Strict", patch, type=MERGE_PATCH)


async def test_traffic_distribution_without_its_gate(tmp_path: Path) -> None:
    """The field is dropped on create and on update, unless the stored Service has it."""
    async with serving(tmp_path) as api:
        await api.create(SERVICES, _service("old", trafficDistribution="PreferClose"))
    async with serving(tmp_path, gates=_gates("ServiceTrafficDistribution=false")) as api:
        created = await api.create(SERVICES, _service(trafficDistribution="PreferClose"))
        assert "trafficDistribution" not in created["spec"]
        changed = await _change(api, f"{SERVICES}/one", {"trafficDistribution": "PreferClose"})
        assert (changed.status, "trafficDistribution" in changed.json["spec"]) == (200, False)
        kept = await _touch(api, f"{SERVICES}/old")
        assert kept.json["spec"]["trafficDistribution"] == "PreferClose"
        other = await _change(api, f"{SERVICES}/old", {"trafficDistribution": "PreferSameZone"})
        assert other.json["spec"]["trafficDistribution"] == "PreferSameZone"
    async with serving(tmp_path) as api:
        stored = await api.get(f"{SERVICES}/old")
        assert stored["spec"]["trafficDistribution"] == "PreferSameZone"
        removed = await _change(api, f"{SERVICES}/old", {"trafficDistribution": None})
        assert "trafficDistribution" not in removed.json["spec"]


@pytest.mark.parametrize("value", ["PreferSameZone", "PreferSameNode"])
async def test_the_newer_distributions_without_their_gate(tmp_path: Path, value: str) -> None:
    """New use is refused, what is stored stays and can be removed, but not brought back."""
    async with serving(tmp_path) as api:
        await api.create(SERVICES, _service(trafficDistribution=value))
    async with serving(tmp_path, gates=_gates("PreferSameTrafficDistribution=false")) as api:
        refused = await api.call("POST", SERVICES, _service("new", trafficDistribution=value))
        assert (refused.status, refused.message) == (
            422,
            (
                'Service "new" is invalid: spec.trafficDistribution: Unsupported value: '
                f'"{value}": supported values: "PreferClose"'
            ),
        )
        assert (await api.get(f"{SERVICES}/one"))["spec"]["trafficDistribution"] == value
        kept = await _touch(api, f"{SERVICES}/one")
        assert (kept.status, kept.json["spec"]["trafficDistribution"]) == (200, value)
        other = {"PreferSameZone": "PreferSameNode", "PreferSameNode": "PreferSameZone"}[value]
        assert (await _change(api, f"{SERVICES}/one", {"trafficDistribution": other})).status == 422
    async with serving(tmp_path) as api:
        changed = await _change(api, f"{SERVICES}/one", {"trafficDistribution": other})
        assert changed.json["spec"]["trafficDistribution"] == other
    async with serving(tmp_path, gates=_gates("PreferSameTrafficDistribution=false")) as api:
        removed = await _change(api, f"{SERVICES}/one", {"trafficDistribution": None})
        assert (removed.status, "trafficDistribution" in removed.json["spec"]) == (200, False)
        again = await _change(api, f"{SERVICES}/one", {"trafficDistribution": other})
        assert again.status == 422
        older = await _change(api, f"{SERVICES}/one", {"trafficDistribution": "PreferClose"})
        assert older.status == 200


async def test_node_hints_without_their_gate(tmp_path: Path) -> None:
    """Node hints are dropped from new slices, and kept by a slice until it has none any more."""
    async with serving(tmp_path) as api:
        await api.create(SLICES, _slice("old", forZones="a", forNodes="n"))
    async with serving(tmp_path, gates=_gates("PreferSameTrafficDistribution=false")) as api:
        created = await api.create(SLICES, _slice(forZones="a", forNodes="n"))
        assert created["endpoints"][0]["hints"] == {"forZones": [{"name": "a"}]}
        bare = await api.create(SLICES, _slice("bare", forNodes="n"))
        assert bare["endpoints"][0]["hints"] == {}
        stored = await api.get(f"{SLICES}/old")
        both = {"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]}
        assert stored["endpoints"][0]["hints"] == both
        stored["endpoints"].append({**deepcopy(stored["endpoints"][0]), "addresses": ["192.0.2.2"]})
        grown = (await api.call("PUT", f"{SLICES}/old", stored)).json
        assert [one["hints"] for one in grown["endpoints"]] == [both, both]
        for endpoint in grown["endpoints"]:
            del endpoint["hints"]["forNodes"]
        removed = (await api.call("PUT", f"{SLICES}/old", grown)).json
        assert removed["endpoints"][0]["hints"] == {"forZones": [{"name": "a"}]}
        removed["endpoints"][0]["hints"] = both
        again = (await api.call("PUT", f"{SLICES}/old", removed)).json
        assert again["endpoints"][0]["hints"] == {"forZones": [{"name": "a"}]}
    gates = _gates("PreferSameTrafficDistribution=false,NodeLevelTopology=true")
    async with serving(tmp_path, gates=gates) as api:
        again["endpoints"][0]["hints"] = both
        back = (await api.call("PUT", f"{SLICES}/old", again)).json
        assert back["endpoints"][0]["hints"] == both


async def test_all_hints_without_their_gate(tmp_path: Path) -> None:
    """Without TopologyAwareHints hints are dropped whole, unless the stored slice has some."""
    async with serving(tmp_path) as api:
        await api.create(SLICES, _slice("old", forZones="a"))
    async with serving(tmp_path, gates=_gates("TopologyAwareHints=false")) as api:
        created = await api.create(SLICES, _slice(forZones="a", forNodes="n"))
        assert "hints" not in created["endpoints"][0]
        created["endpoints"][0]["hints"] = {"forZones": [{"name": "a"}]}
        same = await api.call("PUT", f"{SLICES}/one", created)
        assert (same.status, "hints" in same.json["endpoints"][0]) == (200, False)
        stored = await api.get(f"{SLICES}/old")
        stored["endpoints"][0]["hints"]["forZones"][0]["name"] = "b"
        changed = (await api.call("PUT", f"{SLICES}/old", stored)).json
        assert changed["endpoints"][0]["hints"] == {"forZones": [{"name": "b"}]}
    both_off = "TopologyAwareHints=false,PreferSameTrafficDistribution=false"
    async with serving(tmp_path, gates=_gates(both_off)) as api:
        changed["endpoints"][0]["hints"]["forNodes"] = [{"name": "n"}]
        kept = (await api.call("PUT", f"{SLICES}/old", changed)).json
        assert kept["endpoints"][0]["hints"] == {"forZones": [{"name": "b"}]}


async def test_prefer_local(tmp_path: Path) -> None:
    """PreferLocal is a policy with its gate; without it new use is refused and stored use stays."""
    policies = {"internalTrafficPolicy": "PreferLocal", "externalTrafficPolicy": "PreferLocal"}
    async with serving(tmp_path) as api:
        refused = await api.call("POST", SERVICES, _service(type="NodePort", **policies))
        assert refused.status == 422
        assert [one["field"] for one in refused.json["details"]["causes"]] == [
            "spec.externalTrafficPolicy",
            "spec.internalTrafficPolicy",
        ]
    async with serving(tmp_path, gates=_gates("PreferLocalTrafficPolicy=true")) as api:
        created = await api.create(SERVICES, _service(type="LoadBalancer", **policies))
        assert "healthCheckNodePort" not in created["spec"]
    async with serving(tmp_path) as api:
        kept = await _touch(api, f"{SERVICES}/one")
        assert kept.status == 200
        assert {key: kept.json["spec"][key] for key in policies} == policies
        cluster = dict.fromkeys(policies, "Cluster")
        assert (await _change(api, f"{SERVICES}/one", cluster)).status == 200
        assert (await _change(api, f"{SERVICES}/one", policies)).status == 422


async def test_heuristics_of_other_domains(tmp_path: Path) -> None:
    """Values with a domain are taken with their gate alone, and stay where they are stored."""
    body = _service(trafficDistribution="keepclose.dev/Balanced")
    async with serving(tmp_path) as api:
        refused = await api.call("POST", SERVICES, body)
        assert refused.status == 422
        assert 'Unsupported value: "keepclose.dev/Balanced"' in refused.message
    async with serving(tmp_path, gates=_gates("TrafficDistributionCustomHeuristics=true")) as api:
        created = await api.create(SERVICES, body)
        assert created["spec"]["trafficDistribution"] == "keepclose.dev/Balanced"
        for value in ("Balanced", "a/b/c", "/Balanced", "keepclose.dev/", "UPPER.dev/x", ""):
            reply = await api.call("POST", SERVICES, _service("two", trafficDistribution=value))
            assert reply.status == 422, value
    async with serving(tmp_path) as api:
        kept = await _touch(api, f"{SERVICES}/one")
        assert kept.json["spec"]["trafficDistribution"] == "keepclose.dev/Balanced"
        assert (
            await _change(api, f"{SERVICES}/one", {"trafficDistribution": "PreferClose"})
        ).status == 200
        assert (
            await _change(api, f"{SERVICES}/one", {"trafficDistribution": "keepclose.dev/Balanced"})
        ).status == 422


async def test_topology_keys(tmp_path: Path) -> None:
    """TopologyKeys are served and published with their gate, and unknown without it."""
    name, keys = "io.k8s.api.core.v1.ServiceSpec", ["kubernetes.io/hostname", "*"]
    async with serving(tmp_path) as api:
        reply = await api.call("POST", SERVICES, _service("before", topologyKeys=keys))
        assert reply.warnings == ['299 - "unknown field \\"spec.topologyKeys\\""']
        assert "topologyKeys" not in reply.json["spec"]
        document = await api.get("/openapi/v2")
        assert "topologyKeys" not in document["definitions"][name]["properties"]
    async with serving(tmp_path, gates=_gates(TOPOLOGY)) as api:
        created = await api.create(SERVICES, _service(topologyKeys=keys))
        assert created["spec"]["topologyKeys"] == keys
        document = await api.get("/openapi/v2")
        assert document["definitions"][name]["properties"]["topologyKeys"]["type"] == "array"
        assert "topologyKeys" in (await api.call("GET", "/openapi/v3/api/v1")).body.decode()
        wrong = await api.call("POST", SERVICES, _service("two", topologyKeys=["*", "a"]))
        assert wrong.status == 422
        assert '"*" must be the last value specified' in wrong.message
        local = _service("two", topologyKeys=keys, type="NodePort", externalTrafficPolicy="Local")
        assert (await api.call("POST", SERVICES, local)).status == 422


async def test_stored_topology_keys_outlive_their_gate(tmp_path: Path) -> None:
    """Keys that are stored stay through updates without the gate, and can be removed for good."""
    keys = ["topology.kubernetes.io/zone", "*"]
    async with serving(tmp_path, gates=_gates(TOPOLOGY)) as api:
        await api.create(SERVICES, _service(topologyKeys=keys))
        await api.create(SERVICES, _service("two", topologyKeys=keys))
    async with serving(tmp_path) as api:
        kept = await _touch(api, f"{SERVICES}/one")
        assert (kept.status, kept.warnings) == (200, [])
        assert kept.json["spec"]["topologyKeys"] == keys
        applied = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "two", "labels": {"a": "b"}},
        }
        path = f"{SERVICES}/two?fieldManager=m"
        reply = await api.call("PATCH", path, applied, type="application/apply-patch+yaml")
        assert (reply.status, reply.json["spec"]["topologyKeys"]) == (200, keys)
        removed = await _change(api, f"{SERVICES}/one", {"topologyKeys": None})
        assert (removed.status, "topologyKeys" in removed.json["spec"]) == (200, False)
        again = await _change(api, f"{SERVICES}/one", {"topologyKeys": keys})
        assert "topologyKeys" not in again.json["spec"]
    async with serving(tmp_path, gates=_gates(TOPOLOGY)) as api:
        assert "topologyKeys" not in (await api.get(f"{SERVICES}/one"))["spec"]
        assert (await api.get(f"{SERVICES}/two"))["spec"]["topologyKeys"] == keys


async def test_internal_policies_without_their_gate(tmp_path: Path) -> None:
    """InternalTrafficPolicy is neither set nor taken without its gate, unless it is stored."""
    async with serving(tmp_path) as api:
        await api.create(SERVICES, _service("old", internalTrafficPolicy="Local"))
    async with serving(tmp_path, gates=_gates("ServiceInternalTrafficPolicy=false")) as api:
        created = await api.create(SERVICES, _service(internalTrafficPolicy="Local"))
        assert "internalTrafficPolicy" not in created["spec"]
        kept = await _touch(api, f"{SERVICES}/old")
        assert kept.json["spec"]["internalTrafficPolicy"] == "Local"


async def test_names_of_services(tmp_path: Path) -> None:
    """A name that begins with a digit is good with the relaxed rule alone, and stays."""
    async with serving(tmp_path) as api:
        await api.create(SERVICES, _service("1st"))
    async with serving(tmp_path, gates=_gates("RelaxedServiceNameValidation=false")) as api:
        refused = await api.call("POST", SERVICES, _service("2nd"))
        assert refused.status == 422
        assert "a DNS-1035 label must consist of" in refused.message
        assert (await _touch(api, f"{SERVICES}/1st")).status == 200


async def test_addresses_in_odd_forms(tmp_path: Path) -> None:
    """Leading zeros in addresses are refused by the strict rule alone, and stay where stored."""
    body = _service(externalIPs=["192.000.002.001"])
    async with serving(tmp_path, gates=_gates("StrictIPCIDRValidation=false")) as api:
        reply = await api.call("POST", SERVICES, body)
        assert reply.status == 201
    async with serving(tmp_path) as api:
        assert (
            await api.call("POST", SERVICES, {**body, "metadata": {"name": "two"}})
        ).status == 422
        assert (await _touch(api, f"{SERVICES}/one")).status == 200


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "ServiceTopology=true",
            "feature gates TopologyAwareHints and ServiceTopology exclude each other; "
            "add TopologyAwareHints=false or ServiceTopology=false",
            id="hints and keys",
        ),
        pytest.param(
            "ServiceTopology=true,TopologyAwareHints=false,TopologyAwareSubsetting=true",
            "feature gates TopologyAwareSubsetting and ServiceTopology exclude each other; "
            "add TopologyAwareSubsetting=false or ServiceTopology=false",
            id="subsets and keys",
        ),
    ],
)
def test_pairs_that_exclude_each_other(text: str, want: str) -> None:
    """Two mechanisms that would claim the same Service are refused before anything starts."""
    with pytest.raises(GateError) as refused:
        parse_gates(text)
    assert str(refused.value) == want
