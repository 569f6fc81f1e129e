"""PreferLocal, the first draft of KEP-3015, on node ports called from outside the cluster.

A node with an endpoint of its own uses that one, and any other node does as Cluster would. Unlike
with Local the client's address is never kept, and no connection is dropped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from support.real.labs_running import (
    JsonObject,
    RunningLab,
    nodes_of_nodes,
    running_lab,
    until_equal,
)

SERVICE = """
apiVersion: v1
kind: Service
metadata: {{name: web, annotations: {annotations}}}
spec:
  type: NodePort
  externalTrafficPolicy: {external}
  internalTrafficPolicy: {internal}
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080, nodePort: 30080}}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers: [{{name: main, image: "web:1", ports: [{{containerPort: 8080}}]}}]
"""
ASK = """
import http.client, json, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=10)
connection.connect()
own = connection.sock.getsockname()[0]
connection.request("GET", "/json")
print(json.dumps({"own": own, **json.load(connection.getresponse())}))
"""
PODS = {"web-1": "n1", "web-2": "n1", "web-3": "n3"}
NODES = ("n1", "n2", "n3", "n4")
BOTH = {"n1", "n3"}
LOCAL_FIRST = {"n1": {"n1"}, "n2": BOTH, "n3": {"n3"}, "n4": BOTH}
ANYWHERE = dict.fromkeys(NODES, BOTH)
OUTSIDE = ("--from=outside", "--via=node-port")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Run two zones of two nodes, in each of which one has endpoints."""
    with running_lab(tmp_path_factory.mktemp("preferlocal")) as found:
        found.apply(*(POD.format(name=name, node=node) for name, node in PODS.items()))
        found.kubectl("wait", "pod", "--all", "--for=condition=Ready", "--timeout=60s")
        yield found


def serve(
    lab: RunningLab, *, external: str = "Cluster", internal: str = "Cluster", annotations: str = ""
) -> None:
    """Have the Service with these policies."""
    lab.apply(
        SERVICE.format(external=external, internal=internal, annotations=f"{{{annotations}}}")
    )


def ask(lab: RunningLab, place: str, host: str, port: int) -> JsonObject:
    """Return who answers, whom that pod sees, and who it really is."""
    script = (sys.executable, "-c", ASK)
    answer: JsonObject = json.loads(lab.keepclose("lab", "exec", place, *script, host, str(port)))
    return answer


def addresses(lab: RunningLab) -> dict[str, str]:
    """Return the address of each node."""
    return {
        one["metadata"]["name"]: address["address"]
        for one in lab.get("nodes")["items"]
        for address in one["status"]["addresses"]
        if address["type"] == "InternalIP" and ":" not in address["address"]
    }


def test_a_node_with_an_endpoint_uses_it_and_others_fall_back(lab: RunningLab) -> None:
    """From outside each node that has endpoints uses these alone; what others do is Cluster's."""
    serve(lab, external="PreferLocal")
    report = lab.until_routed(LOCAL_FIRST, "web", *OUTSIDE)
    assert report["mechanism"] == "externalTrafficPolicy PreferLocal"
    # The other direction is as it was.
    lab.until_routed(ANYWHERE, "web")


def test_the_client_is_never_seen(lab: RunningLab) -> None:
    """PreferLocal hides the client's address from pods of the same node too, which Local shows."""
    hosts = addresses(lab)
    serve(lab, external="PreferLocal")
    lab.until_routed(LOCAL_FIRST, "web", *OUTSIDE)
    near, far = (ask(lab, "outside", hosts[node], 30080) for node in ("n1", "n2"))
    assert near["node"] == "n1"
    assert near["client"] != near["own"]
    assert far["client"] != far["own"]

    serve(lab, external="Local")
    want = {"n1": {"n1"}, "n2": set[str](), "n3": {"n3"}, "n4": set[str]()}
    until_equal(lambda: nodes_of_nodes(lab.traffic("web", *OUTSIDE, connections=40)), want)
    near = ask(lab, "outside", hosts["n1"], 30080)
    assert (near["node"], near["client"]) == ("n1", near["own"])


def test_fallback_keeps_to_the_zone_if_wished_for(lab: RunningLab) -> None:
    """A node without endpoints follows zone hints, and one with endpoints has no need of them."""
    serve(lab, external="PreferLocal")
    field = '{"spec":{"trafficDistribution":%s}}'
    try:
        lab.kubectl("patch", "service", "web", "-p", field % '"PreferSameZone"')
        lab.until_routed({"n1": {"n1"}, "n2": {"n1"}, "n3": {"n3"}, "n4": {"n3"}}, "web", *OUTSIDE)
        lab.kubectl("label", "pod", "web-3", "app=other", "--overwrite")
        lab.until_routed({node: {"n1"} for node in NODES}, "web", *OUTSIDE)
    finally:
        lab.kubectl("label", "pod", "web-3", "app=web", "--overwrite")
        lab.kubectl("patch", "service", "web", "-p", field % "null")
    lab.until_routed(LOCAL_FIRST, "web", *OUTSIDE)


def test_an_annotation_says_it_where_the_field_cannot(lab: RunningLab) -> None:
    """On servers that refuse the value, the annotation does the same, and goes without trace."""
    serve(lab, annotations="keepclose.dev/external-traffic-policy: PreferLocal")
    lab.until_routed(LOCAL_FIRST, "web", *OUTSIDE)
    serve(lab)
    lab.until_routed(ANYWHERE, "web", *OUTSIDE)


def test_internal_traffic_may_prefer_its_node_too(lab: RunningLab) -> None:
    """The cluster IP is routed likewise, from pods whose address is kept; node ports are not."""
    serve(lab, internal="PreferLocal")
    lab.until_routed(LOCAL_FIRST, "web")
    lab.until_routed(ANYWHERE, "web", *OUTSIDE)
    cluster_ip = lab.get("service", "web")["spec"]["clusterIP"]
    for node in ("n1", "n2"):
        seen = ask(lab, f"client/{node}", cluster_ip, 80)
        assert seen["client"] == seen["own"]


def test_a_proxy_without_the_gate_takes_it_for_cluster(lab: RunningLab) -> None:
    """Nothing is dropped anywhere when the gate goes, and the policy is followed as it returns."""
    gate = "PreferLocalTrafficPolicy"
    serve(lab, external="PreferLocal", internal="PreferLocal")
    lab.until_routed(LOCAL_FIRST, "web", *OUTSIDE)
    try:
        lab.keepclose("lab", "gates", f"{gate}=false")
        lab.until_routed(ANYWHERE, "web", *OUTSIDE)
        lab.until_routed(ANYWHERE, "web")
        spec = lab.get("service", "web")["spec"]
        assert spec["externalTrafficPolicy"] == spec["internalTrafficPolicy"] == "PreferLocal"
    finally:
        lab.keepclose("lab", "gates", f"{gate}=true")
    lab.until_routed(LOCAL_FIRST, "web", *OUTSIDE)
    lab.until_routed(LOCAL_FIRST, "web")
