"""The command `keepclose resolve`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from keepclose.cli.main import app

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "three-zones.yaml"
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
NODE = (
    "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}\n"
)


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run the command in this process, on a terminal of 100 columns."""
    return CliRunner().invoke(
        app, ["resolve", *arguments], input=stdin, env={"COLUMNS": "100", "TERM": "dumb"}
    )


def answer(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Return the JSON answer by namespace/name of the Service."""
    result = run(*arguments, "-o", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return {
        f"{one['namespace']}/{one['name']}": one for one in json.loads(result.stdout)["services"]
    }


def test_the_example_is_answered_in_json() -> None:
    """The documented form: strategy, slices, events, and per node and port what is used."""
    services = answer("-f", str(EXAMPLE))
    web = services["shop/web"]
    assert (web["strategy"]["name"], web["strategy"]["source"]) == (
        "PreferSameZone",
        "spec.trafficDistribution",
    )
    assert {"code", "message", "fix"} <= set(web["strategy"]["reasons"][0])
    assert [len(one["endpoints"]) for one in web["slices"]] == [3]
    assert web["nodes"]["n1"]["IPv4 tcp/http"]["internal"] == {
        "endpoints": ["10.1.1.1/8080", "10.1.2.1/8080"]
    }
    assert web["nodes"]["n1"]["IPv4 tcp/http"]["nodePort"] == {"endpoints": ["10.1.1.1/8080"]}
    assert web["nodes"]["n5"]["IPv4 tcp/http"]["nodePort"] == {"verdict": "drop"}
    assert web["nodes"]["n5"]["IPv4 tcp/http"]["mode"] == ""
    dns = services["kube-system/dns"]
    assert set(dns["nodes"]["n3"]) == {"IPv4 udp/dns", "IPv4 tcp/dns-tcp"}
    assert dns["nodes"]["n3"]["IPv4 udp/dns"]["internal"] == {"endpoints": ["10.1.3.2/53"]}
    admin = services["shop/admin"]
    assert admin["strategy"]["name"] == "Auto"
    assert [event["reason"] for event in admin["events"]] == ["TopologyAwareHintsDisabled"]


def test_yaml_says_the_same_as_json() -> None:
    """The two forms for programs carry the same data."""
    as_yaml = yaml.safe_load(run("-f", str(EXAMPLE), "-o", "yaml").stdout)
    as_json = json.loads(run("-f", str(EXAMPLE), "-o", "json").stdout)
    assert as_yaml == as_json


def test_the_answer_is_a_state_to_start_from(tmp_path: Path) -> None:
    """Slices of an answer, given back as input, are left as they are."""
    first = answer("-f", str(EXAMPLE))
    slices = [one for service in first.values() for one in service["slices"]]
    state = tmp_path / "slices.json"
    state.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": slices}))
    again = answer("-f", str(EXAMPLE), "-f", str(state))
    for name, service in first.items():
        assert again[name]["slices"] == service["slices"]
        assert again[name]["nodes"] == service["nodes"]


def test_the_table_is_made_for_people() -> None:
    """Zones and nodes are aligned, reasons are in words, and the fix keeps the policy."""
    lines = run("-f", str(EXAMPLE), "--service", "shop/web").stdout.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    text = [" ".join(line.split()) for line in lines]
    assert text[:8] == [
        "shop/web PreferSameZone (spec.trafficDistribution)",
        "1 slice, 3 endpoints, 3 ready",
        "port IPv4 tcp/http",
        "from nodes cluster IP node port mode",
        "zone-a n1 n2 2 in zone-a 1 on own node same zone",
        "zone-b n3 1 in zone-b 1 on own node same zone",
        "zone-b n4 1 in zone-b dropped same zone",
        "zone-c n5 n6 2 in zone-a, 1 in zone-b dropped everywhere",
    ]
    assert (
        "no ready endpoint is hinted for zone zone-c of node n5 (the same on 1 more node)" in text
    )
    assert all(len(line) <= 100 for line in lines)
    assert text[-2:] == [
        "fix run an endpoint on node n4",
        "run endpoints in zone zone-c, in proportion to its clients",
    ]


def test_many_services_begin_with_a_summary() -> None:
    """Totals first, then what is worth a look, the farthest first, and how to see the rest."""
    text = [" ".join(line.split()) for line in run("-f", str(EXAMPLE)).stdout.splitlines()]
    assert text[:6] == [
        "3 Services, 14 endpoints, 14 ready, 6 nodes in 3 zones",
        "in zone 67 % of what nodes send, each node and Service alike",
        "by PreferSameZone 1, PreferSameNode 1, Auto 1",
        "fixes 2 Services with a fix",
        "",
        "SERVICE MECHANISM READY IN ZONE FIX WHY",
    ]
    services = [line for line in text if line.startswith("shop/")]
    assert services[0].startswith("shop/admin Auto 5/5 33 % yes 5 endpoints on 3 zones cannot")
    assert services[1].startswith(
        "shop/web PreferSameZone 3/3 67 % yes no ready endpoint is hinted"
    )
    assert text[-2:] == [
        "and 1 Service with nothing to note",
        "endpoints, reasons and fixes: --service NAME, or --details for all",
    ]


def test_the_summary_says_the_same_to_programs() -> None:
    """JSON has the totals beside the Services."""
    document = json.loads(run("-f", str(EXAMPLE), "-o", "json").stdout)
    summary = document["summary"]
    assert (summary["services"], summary["endpoints"], summary["withFix"]) == (3, 14, 2)
    assert summary["inZone"] == pytest.approx((1 + 2 / 3 + 1 / 3) / 3)
    assert [one["name"] for one in summary["worthALook"]] == ["admin", "web"]


def test_all_details_come_on_request() -> None:
    """With --details every Service has its block, and for a single Service they always come."""
    details = run("-f", str(EXAMPLE), "--details").stdout
    for block in (
        "shop/web  PreferSameZone",
        "shop/admin  Auto",
        "kube-system/dns  PreferSameNode",
    ):
        assert block in details
    alone = f"{NODE}---\n{SERVICE}spec: {{ports: [{{port: 80}}], selector: {{app: web}}}}\n"
    assert run("-f", "-", stdin=alone).stdout.startswith("default/web  None\n")


def crowd(count: int, *, node: str) -> str:
    """Return Services with long names that prefer their zone and have pods in one zone only."""
    nodes = [
        NODE.replace("n1", f"{node}-{zone}").replace("zone: a", f"zone: {zone}") for zone in "ab"
    ]
    ready = 'conditions: [{type: Ready, status: "True"}]'
    documents = [part.replace("metadata", f"status: {{{ready}}}\nmetadata", 1) for part in nodes]
    for number in range(count):
        name = f"a-service-with-quite-a-long-name-{number}"
        documents.append(
            SERVICE.replace("name: web", f"name: {name}")
            + f"spec: {{trafficDistribution: PreferSameZone, ports: [{{port: 80}}], "
            f"selector: {{app: {name}}}}}\n"
        )
        documents.append(
            f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, labels: {{app: {name}}}}}\n"
            f"spec: {{nodeName: {node}-a}}\n"
            f"status: {{podIPs: [{{ip: 10.0.0.{number + 1}}}], {ready}}}\n"
        )
    return "---\n".join(documents)


NODE_NAMES = {
    "EKS": "ip-10-0-12-7.eu-central-1.compute.internal",
    "GKE": "gke-production-europe-west1-default-pool-7f3a9c1",
    "AKS": "aks-nodepool1-12345678-vmss000000",
}


@pytest.mark.parametrize("count", [2, 5, 60])
def test_a_summary_fits_a_terminal(count: int) -> None:
    """80 columns and 24 lines are enough for any number of Services, with long names."""
    env = {"COLUMNS": "80", "TERM": "dumb"}
    text = crowd(count, node=NODE_NAMES["GKE"])
    result = CliRunner().invoke(app, ["resolve", "-f", "-"], input=text, env=env)
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{count} Services, {count} endpoints, {count} ready")
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    if count > 10:
        assert f"and {count - 10} more Services worth a look" in lines


@pytest.mark.parametrize("provider", NODE_NAMES)
def test_long_names_of_nodes_keep_the_table_whole(provider: str) -> None:
    """Each row of the table is one line of 80 columns, and the two nodes can be told apart."""
    env = {"COLUMNS": "80", "TERM": "dumb"}
    text = crowd(1, node=NODE_NAMES[provider])
    result = CliRunner().invoke(app, ["resolve", "-f", "-", "--details"], input=text, env=env)
    rows = [line for line in result.stdout.splitlines() if re.match(r" +[ab] ", line)]
    assert len(rows) == 2
    assert len({row.split()[1] for row in rows}) == 2
    assert all(len(row) <= 80 and row.endswith(("same zone", "everywhere")) for row in rows)


def test_a_service_that_fails_comes_first() -> None:
    """Without ready endpoints a Service is worth more of a look than any share."""
    text = (
        crowd(3, node="n")
        + f"---\n{SERVICE}spec: {{ports: [{{port: 80}}], selector: {{app: x}}}}\n"
    )
    result = run("-f", "-", stdin=text)
    first = next(line for line in result.stdout.splitlines() if line.startswith("default/"))
    assert first.split() == ["default/web", "None", "0/0", "-", "no", "ready", "endpoint"]
    assert "1 with nodes that reach no endpoint" in result.stdout


def test_one_node_and_one_service_can_be_picked() -> None:
    """Filters leave only what was asked about."""
    services = answer("-f", str(EXAMPLE), "--service", "kube-system/dns", "--node", "n2")
    assert list(services) == ["kube-system/dns"]
    assert list(services["kube-system/dns"]["nodes"]) == ["n2"]


def test_a_service_without_namespace_is_in_default() -> None:
    """A bare name means the namespace default, as in kubectl."""
    text = SERVICE + "spec: {ports: [{port: 80}]}\n"
    assert list(answer("-f", "-", "--service", "web", stdin=text)) == ["default/web"]


def test_weights_are_shown_by_zone() -> None:
    """The table says which part of the traffic goes to each zone, and that weights decide."""
    gates = "TrafficDistributionCustomHeuristics=true"
    path = str(EXAMPLE.with_name("weights.yaml"))
    lines = run("-f", path, "--feature-gates", gates).stdout.splitlines()
    assert "  zone-a  n1 n2  3 in zone-a (59%), 6 in zone-b (41%)  by weights" in lines
    nodes = answer("-f", path, "--feature-gates", gates)["default/web"]["nodes"]
    port = nodes["n1"]["IPv4 tcp/http"]
    assert (port["mode"], len(port["internal"]["weights"])) == ("Weights", 9)
    without = answer("-f", path)["default/web"]["nodes"]["n1"]["IPv4 tcp/http"]
    assert without["mode"] == ""


def test_gates_change_the_answer() -> None:
    """With the field's gate off there are no hints, and the gate is named."""
    services = answer("-f", str(EXAMPLE), "--feature-gates", "ServiceTrafficDistribution=false")
    web = services["shop/web"]
    assert web["strategy"]["name"] == "None"
    assert web["strategy"]["reasons"][0]["code"] == "GateOff"
    assert all("hints" not in one for piece in web["slices"] for one in piece["endpoints"])


def test_conditions_come_with_their_gate() -> None:
    """The conditions of KEP-4444 are shown when their gate is on."""
    gates = "ServiceTrafficDistributionStatus=true"
    services = answer("-f", str(EXAMPLE), "--feature-gates", gates)
    assert [(c["type"], c["reason"]) for c in services["shop/admin"]["conditions"]] == [
        ("TrafficDistributionAccepted", "Accepted"),
        ("TrafficDistributionProgrammed", "OverriddenByAnnotation"),
    ]
    table = run("-f", str(EXAMPLE), "--feature-gates", gates, "--details").stdout
    assert "TrafficDistributionProgrammed=False (OverriddenByAnnotation)" in table


SUBSETS = EXAMPLE.parent / "subsets.yaml"
SUBSET_GATES = "--feature-gates=TopologyAwareSubsetting=true,EndpointSliceSubsetting=true"


def test_limits_of_subsetting_can_be_tried() -> None:
    """With a lower start five pods are downgraded by the overload, and a higher limit divides."""
    options = ["-f", str(SUBSETS), SUBSET_GATES, "--subsetting-starting-threshold=1"]
    options.append("--subsetting-padding=0")
    five = answer(*options)["default/five"]
    assert "DowngradedToRandom" in json.dumps(five)
    assert len(five["slices"]) == 1
    five = answer(*options, "--subsetting-overload-threshold=0.7")["default/five"]
    assert len(five["slices"]) == 3


@pytest.mark.parametrize(
    ("option", "want"),
    [
        pytest.param("--subsetting-starting-threshold=0", "must be a number above 0", id="start"),
        pytest.param("--subsetting-overload-threshold=nan", "must be a number above 0", id="nan"),
        pytest.param("--subsetting-padding=-1", "a whole number of at least 0", id="padding"),
    ],
)
def test_limits_of_subsetting_that_cannot_be_are_refused(option: str, want: str) -> None:
    """An option that is out of range ends the command with 2 and its name."""
    result = run("-f", str(SUBSETS), option)
    assert result.exit_code == 2
    assert want in result.stderr
    assert option.partition("=")[0] in result.stderr


def test_regions_are_shown() -> None:
    """By region, the nodes of two zones use the slices of both."""
    text = SUBSETS.read_text().replace("subsetting: Auto", "subsetting: RequireRegion")
    for zone, region in (("zone-a", "east"), ("zone-b", "east"), ("zone-c", "west")):
        label = f"topology.kubernetes.io/zone: {zone}"
        text = text.replace(label, f"{label}, topology.kubernetes.io/region: {region}")
    result = run("-f", "-", SUBSET_GATES, "--service=twelve", stdin=text)
    assert result.exit_code == 0
    assert "every endpoint serves its own region: east 10, west 2" in result.stdout
    assert "7 in zone-a, 3 in zone-b" in result.stdout


def test_controller_defaults_can_be_tried() -> None:
    """Subsetting and detection by the controller are options, each behind its gate."""
    gates = "TopologyAwareSubsetting=true,NodeLevelTopology=true"
    subsets = answer(
        "-f", str(EXAMPLE), "--feature-gates", gates, "--default-subsetting", "Require"
    )
    assert subsets["shop/web"]["strategy"]["name"] == "PreferSameZone"
    text = f"""{NODE}---
{SERVICE}spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
---
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {{app: web}}
  ownerReferences: [{{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u, controller: true}}]
spec: {{nodeName: n1}}
status: {{podIPs: [{{ip: 10.0.0.1}}], conditions: [{{type: Ready, status: "True"}}]}}
"""
    ready = NODE.replace(
        "metadata", 'status: {conditions: [{type: Ready, status: "True"}]}\nmetadata'
    )
    found = answer(
        "-f",
        "-",
        "--feature-gates",
        gates,
        "--node-level-topology-mode",
        "Auto",
        stdin=text.replace(NODE, ready),
    )
    assert found["default/web"]["strategy"]["name"] == "NodeLevel"
    plain = answer("-f", "-", "--feature-gates", gates, stdin=text)
    assert plain["default/web"]["strategy"]["name"] == "None"


def test_local_policies_and_load_balancers_are_told_apart() -> None:
    """Load balancer and external addresses have their own entries."""
    text = f"""{NODE}---
{SERVICE}spec:
  type: LoadBalancer
  selector: {{app: web}}
  externalTrafficPolicy: Local
  externalIPs: [192.0.2.7]
  ports: [{{port: 80}}]
status: {{loadBalancer: {{ingress: [{{ip: 192.0.2.8}}]}}}}
"""
    port = answer("-f", "-", stdin=text)["default/web"]["nodes"]["n1"]["IPv4 tcp/"]
    assert {key: port[key] for key in ("internal", "nodePort", "loadBalancer", "externalIP")} == {
        "internal": {"verdict": "reject"},
        "nodePort": {"verdict": "reject"},
        "loadBalancer": {"verdict": "reject"},
        "externalIP": {"verdict": "reject"},
    }


def test_dual_stack_shows_plain_addresses() -> None:
    """IPv6 endpoints are written without brackets."""
    text = f"""{NODE}---
{SERVICE}spec: {{selector: {{app: web}}, ipFamilyPolicy: PreferDualStack, ports: [{{port: 80}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: p, labels: {{app: web}}}}
spec: {{nodeName: n1}}
status:
  podIPs: [{{ip: 10.0.0.1}}, {{ip: "fd00::1"}}]
  conditions: [{{type: Ready, status: "True"}}]
"""
    ports = answer("-f", "-", stdin=text)["default/web"]["nodes"]["n1"]
    assert ports["IPv4 tcp/"]["internal"] == {"endpoints": ["10.0.0.1/80"]}
    assert ports["IPv6 tcp/"]["internal"] == {"endpoints": ["fd00::1/80"]}


def test_hand_made_and_mirrored_endpoints_are_used() -> None:
    """Without a selector, existing slices stay and Endpoints are mirrored."""
    text = f"""{NODE}---
{SERVICE}spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: v1
kind: Endpoints
metadata: {{name: web}}
subsets: [{{addresses: [{{ip: 10.0.0.5}}], ports: [{{name: http, port: 8080}}]}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: mine, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [10.0.0.6]}}]
"""
    web = answer("-f", "-", stdin=text)["default/web"]
    assert web["nodes"]["n1"]["IPv4 tcp/http"]["internal"] == {
        "endpoints": ["10.0.0.5/8080", "10.0.0.6/8080"]
    }
    assert [reason["code"] for reason in web["strategy"]["reasons"]][-1] == "NoSelector"


def test_headless_and_external_names_are_not_routed() -> None:
    """Headless Services get slices but no routes, ExternalName gets neither."""
    text = f"""{NODE}---
{SERVICE}spec: {{clusterIP: None, selector: {{app: web}}, ports: [{{port: 80}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: ext}}
spec: {{type: ExternalName, externalName: example.com}}
"""
    services = answer("-f", "-", stdin=text)
    assert (len(services["default/web"]["slices"]), services["default/web"]["nodes"]) == (
        1,
        {"n1": {}},
    )
    assert (services["default/ext"]["slices"], services["default/ext"]["nodes"]) == ([], {"n1": {}})
    assert "no node routes this Service" in run("-f", "-", "--details", stdin=text).stdout
    assert "no node routes any of them" in run("-f", "-", stdin=text).stdout


def test_a_service_of_another_proxy_is_left_alone() -> None:
    """The label that names another proxy keeps nodes from routing the Service."""
    text = f"""{NODE}---
apiVersion: v1
kind: Service
metadata: {{name: web, labels: {{service.kubernetes.io/service-proxy-name: other}}}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
"""
    assert answer("-f", "-", stdin=text)["default/web"]["nodes"] == {"n1": {}}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "a: [1",
            ["not valid YAML: expected ',' or ']'", "in standard input, document 1, line 2"],
            id="malformed YAML",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Service\nmetadata: {}\nspec: {ports: [{port: 80}]}\n",
            ["Service: metadata.name: Required value", "document 1, line 3"],
            id="missing name",
        ),
        pytest.param(
            SERVICE + "spec:\n  ports: [{port: 80}]\n  trafficDistribution: PreferZone\n",
            [
                (
                    'default/web: spec.trafficDistribution: Unsupported value: "PreferZone": '
                    'supported values: "PreferClose", "PreferSameZone", "PreferSameNode"'
                ),
                "in standard input, document 1, line 6",
                "did you mean PreferSameZone?",
            ],
            id="unknown traffic distribution",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations:\n"
            "    service.kubernetes.io/topology-mode: Auto\n"
            "    service.kubernetes.io/topology-aware-hints: Disabled\n"
            "spec: {ports: [{port: 80}]}\n",
            [
                (
                    "metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: "
                    '"Auto": must match annotations[service.kubernetes.io/topology-aware-hints] '
                    "when both are specified"
                ),
                "document 1, line 6",
            ],
            id="topology annotations that differ",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: abc}}\n",
            ['Node n1: status.allocatable.cpu: Invalid value: "abc"', "document 1, line 4"],
            id="quantity",
        ),
        pytest.param(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\n"
            "addressType: IPv4\nendpoints: [{addresses: ['fd00::1']}]\n",
            [
                (
                    "EndpointSlice default/s: endpoints[0].addresses: Invalid value: "
                    '"fd00::1": must be an IPv4 address'
                ),
                "line 5",
            ],
            id="mixed address families",
        ),
        pytest.param(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\n"
            "addressType: IPv4\nendpoints: ["
            + ", ".join(f"{{addresses: [10.0.{n // 250}.{n % 250 + 1}]}}" for n in range(1001))
            + "]\n",
            ["endpoints: Too many: 1001: must have at most 1000 items"],
            id="too many endpoints",
        ),
        pytest.param(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\n"
            "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], hints: {forZones: ["
            + ", ".join(f"{{name: z{n}}}" for n in range(9))
            + "]}}]\n",
            ["endpoints[0].hints.forZones: Too many: 9: must have at most 8 items"],
            id="too many zone hints",
        ),
    ],
)
def test_bad_input_is_told_with_place_and_fix(text: str, want: list[str]) -> None:
    """Bad input ends with code 2 and names the object, the field, the place and the fix."""
    result = run("-f", "-", stdin=text)
    assert result.exit_code == 2
    assert result.stdout == ""
    for part in want:
        assert part in result.stderr


def test_all_causes_are_told_at_once() -> None:
    """One run shows everything that is wrong in all documents."""
    bad = SERVICE + "spec: {type: Nope, ports: [{port: 0}]}\n"
    result = run("-f", "-", stdin=f"{bad}---\n{NODE.replace('n1', 'N_1')}")
    assert result.exit_code == 2
    for field in ("spec.type", "spec.ports[0].port", "metadata.name"):
        assert field in result.stderr


def test_a_node_without_zone_is_a_warning() -> None:
    """A node without a zone label is legal, so it only warns, with the command that mends it."""
    text = "apiVersion: v1\nkind: Node\nmetadata: {name: n9}\n---\n" + SERVICE
    result = run("-f", "-", stdin=text + "spec: {ports: [{port: 80}]}\n")
    assert result.exit_code == 0
    assert "warning: Node n9: metadata.labels[topology.kubernetes.io/zone]" in result.stderr
    assert "kubectl label node n9 topology.kubernetes.io/zone=<zone>" in result.stderr


def test_unknown_kinds_are_named_once() -> None:
    """Kinds that are not read are told with their first place, and a typo gets a suggestion."""
    text = "apiVersion: v1\nkind: Servise\nmetadata: {name: a}\n---\n" + SERVICE
    result = run("-f", "-", stdin=text + "spec: {ports: [{port: 80}]}\n")
    assert result.exit_code == 0
    assert "warning: Servise: kind: not read" in result.stderr
    assert "did you mean Service?" in result.stderr
    deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n"
    result = run("-f", "-", stdin=deployment)
    assert "keepclose reads Node, Pod, Service" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["--service", "shop/nope"], "no Service shop/nope in", id="no such Service"),
        pytest.param(["--node", "nope"], "no Node nope in", id="no such node"),
        pytest.param(["--service", "web"], "did you mean shop/web?\n", id="another namespace"),
        pytest.param(["--service", "shop/wbe"], "did you mean shop/web?\n", id="a typing error"),
        pytest.param(["-n", "nope"], "no Service of namespace nope in", id="no such namespace"),
        pytest.param(
            ["-n", "nope", "--service", "web"], "no Service nope/web in", id="Service and namespace"
        ),
    ],
)
def test_nothing_found_is_code_three(arguments: list[str], want: str) -> None:
    """What was asked about is not there."""
    result = run("-f", str(EXAMPLE), *arguments)
    assert result.exit_code == 3
    assert want in result.stderr


def test_no_service_at_all_is_code_three() -> None:
    """Input without a Service gives nothing to resolve."""
    result = run("-f", "-", stdin=NODE)
    assert (result.exit_code, result.stderr) == (3, "error: no Service in standard input\n")


def test_a_namespace_narrows_the_answer() -> None:
    """`-n` names the namespace of all Services, or of the one that --service names."""
    assert {name.partition("/")[0] for name in answer("-f", str(EXAMPLE))} > {"shop"}
    assert set(answer("-f", str(EXAMPLE), "-n", "shop")) == {"shop/web", "shop/admin"}
    assert set(answer("-f", str(EXAMPLE), "-n", "shop", "--service", "web")) == {"shop/web"}
    both = run("-f", str(EXAMPLE), "-n", "shop", "--service", "other/web")
    assert both.exit_code == 2
    assert "the Service is named with another namespace, other/web" in both.stderr


SELECTING = SERVICE + "spec: {ports: [{port: 80}], selector: {app: web}}\n"


@pytest.mark.parametrize(
    ("manifests", "want"),
    [
        pytest.param(SELECTING, ["Node", "Pod"], id="a Service alone"),
        pytest.param(f"{NODE}---\n{SELECTING}", ["Pod"], id="Nodes and Services"),
    ],
)
def test_a_dump_that_lacks_kinds_is_told(manifests: str, want: list[str]) -> None:
    """Without Nodes, or without Pods and slices, the answer is not about a cluster."""
    result = run("-f", "-", stdin=manifests)
    assert result.exit_code == 0
    warned = [line.split()[1] for line in result.stderr.splitlines() if "warning" in line]
    assert warned == [f"{kind}:" for kind in want]
    dump = "kubectl get nodes,pods,services,endpointslices -A -o yaml > cluster.yaml"
    assert result.stderr.count(f"         {dump}\n") == len(want)


def test_whole_dumps_lack_no_kind() -> None:
    """Nothing is said to be missing where Nodes and Pods are there."""
    assert run("-f", str(EXAMPLE)).stderr == ""


@pytest.mark.parametrize(
    ("gates", "want"),
    [
        pytest.param("Nope=true", "unknown feature gate 'Nope'", id="unknown"),
        pytest.param("TopologyAwareHints=maybe", "must be true or false", id="bad value"),
        pytest.param("ServiceTopology=true", "exclude each other", id="excluded pair"),
    ],
)
def test_bad_gates_are_code_two(gates: str, want: str) -> None:
    """A gate that is unknown, unclear or excluded by another is refused."""
    result = run("-f", str(EXAMPLE), "--feature-gates", gates)
    assert result.exit_code == 2
    assert want in result.stderr


def test_the_console_script_runs() -> None:
    """The installed command answers, with its version and with help."""
    script = Path(sys.executable).parent / "keepclose"
    version = subprocess.run([script, "--version"], check=True, capture_output=True, text=True)
    assert version.stdout == "keepclose 0.1.0\n"
    usage = subprocess.run([script, "resolve", "-h"], check=True, capture_output=True, text=True)
    assert "--feature-gates" in usage.stdout


def test_topology_keys_of_other_labels(tmp_path: Path) -> None:
    """Regions are those of the endpoints' Nodes, as on a node that runs the proxy."""
    text = (EXAMPLE.parent / "topology-keys.yaml").read_text()
    for zone, region in (("zone-a", "east"), ("zone-b", "east"), ("zone-c", "west")):
        label = f"labels: {{topology.kubernetes.io/zone: {zone}"
        text = text.replace(label, f"{label}, topology.kubernetes.io/region: {region}")
    text = text.replace("[kubernetes.io/hostname, topology.kubernetes.io/zone]", "[REGION]")
    dump = tmp_path / "dump.yaml"
    dump.write_text(text.replace("REGION", "topology.kubernetes.io/region"))
    gates = "ServiceTopology=true,TopologyAwareHints=false"
    result = CliRunner().invoke(app, ["resolve", "-f", str(dump), "--feature-gates", gates])
    assert result.exit_code == 0, result.output
    assert "topology.kubernetes.io/region (east): 2 of 2" in " ".join(result.output.split())
    assert re.search(r"zone-c +n5 n6 +refused", result.output)
