"""The command `keepclose explain`: its output, its options and its exit codes."""

from __future__ import annotations

import io
import json
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from keepclose.cli.explain.documents import explanation_document, explanation_markdown
from keepclose.cli.explain.text import print_explanation
from keepclose.cli.main import app
from keepclose.cli.render.screen import Screen
from keepclose.model.plain_text import is_hidden
from keepclose.model.well_known import TRAFFIC_DISTRIBUTION_ANNOTATION
from support.builders import endpoint, endpoint_slice, node, pod
from support.explained import NODES, PODS, explain, reported, web, written

EXAMPLE = str(Path(__file__).parent.parent.parent / "examples" / "three-zones.yaml")
HOSTILE = "\x1b[2J\u202e|`<img>`|\n\r[x](http://x) ```"


def run(*arguments: str, columns: int = 80, stdin: str | None = None) -> Result:
    """Run the command in this process, on a terminal of 80 columns."""
    env = {"COLUMNS": str(columns), "TERM": "dumb", "KUBECONFIG": "", "HOME": "/nonexistent"}
    return CliRunner().invoke(app, ["explain", *arguments], input=stdin, env=env)


def answer(*arguments: str) -> dict[str, Any]:
    """Return the JSON answer about the example."""
    result = run(*arguments, "-f", EXAMPLE, "-o", "json")
    assert result.exit_code in (0, 1), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_healthy_service_fits_a_screen() -> None:
    """The answer first, then the chain, in at most 80 columns and 40 lines."""
    result = run("shop/web", "-f", EXAMPLE)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "✓ shop/web: traffic goes as asked"
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    for heading in ("Mechanism", "Zones", "Endpoints", "Nodes", "Not known"):
        assert any(line.startswith(heading) for line in lines), heading


def test_a_fault_exits_with_one_and_names_the_fix() -> None:
    """What is to blame comes right after the answer, and its fix in one line."""
    result = run("shop/admin", "-f", EXAMPLE)
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0] == "✗ shop/admin: traffic does not go as asked"
    assert "  fix   run more pods" in lines
    assert lines.index("  fix   run more pods") < lines.index("Mechanism")


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
def test_any_width_will_do(columns: int) -> None:
    """Lines that are no commands fit the terminal, or 60 columns."""
    result = run("shop/admin", "-f", EXAMPLE, columns=columns)
    for line in result.stdout.splitlines():
        assert len(line) <= max(60, columns) or "fix" in line, line


@pytest.mark.parametrize(
    ("client", "kind", "name", "nodes"),
    [
        pytest.param("n5", "node", "n5", ["n5"], id="a node"),
        pytest.param("zone-c", "zone", "zone-c", ["n5", "n6"], id="a zone"),
        pytest.param("web-3", "pod", "shop/web-3", ["n3"], id="a pod of the namespace"),
        pytest.param("kube-system/dns-2", "pod", "kube-system/dns-2", ["n2"], id="another pod"),
        pytest.param("pod/web-3", "pod", "shop/web-3", ["n3"], id="named a pod"),
        pytest.param("node/n1", "node", "n1", ["n1"], id="named a node"),
        pytest.param("zone/zone-a", "zone", "zone-a", ["n1", "n2"], id="named a zone"),
    ],
)
def test_clients_are_a_node_a_zone_or_a_pod(
    client: str, kind: str, name: str, nodes: list[str]
) -> None:
    """Only their nodes are explained."""
    document = answer("shop/web", "--from", client)
    assert document["from"] == {"kind": kind, "name": name, "nodes": nodes}
    assert sorted(node for group in document["nodes"] for node in group["nodes"]) == nodes


def test_the_share_of_a_pod() -> None:
    """Clients in a zone without endpoints use all three alike."""
    document = answer("shop/web", "--from", "zone-c", "--to", "web-3")
    (share,) = document["shares"]
    assert (document["traffic"], document["to"]) == ("as asked", "shop/web-3")
    assert share["low"] == share["high"] == pytest.approx(1 / 3)


def test_a_pod_that_gets_nothing_exits_with_one() -> None:
    """The Pods of the client's own zone get all of its connections."""
    result = run("shop/web", "-f", EXAMPLE, "--from", "n1", "--to", "web-3")
    assert result.exit_code == 1
    assert result.stdout.startswith("✗ shop/web from n1 (zone-a) to web-3: no connections\n")
    assert "hinted for zone zone-a: 2 of 3 ready endpoints" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(("shop/wep",), "no Service shop/wep in", id="a Service"),
        pytest.param(("shop/web", "--from", "n9"), "--from: no node, zone or Pod n9", id="from"),
        pytest.param(("shop/web", "--to", "web-9"), "--to: no Pod shop/web-9 in", id="to"),
    ],
)
def test_what_does_not_exist_exits_with_three(arguments: tuple[str, ...], want: str) -> None:
    """The error suggests similar names."""
    result = run(*arguments, "-f", EXAMPLE)
    assert result.exit_code == 3
    assert want in result.stderr
    assert "did you mean" in result.stderr


def test_without_a_service_the_error_says_how_to_name_one() -> None:
    """Not only that an argument is missing."""
    result = run("-f", EXAMPLE)
    assert result.exit_code == 2
    assert "no Service is named" in result.stderr
    assert "keepclose explain shop/web" in result.stderr


def test_bad_input_exits_with_two() -> None:
    """Files that cannot be read are named with their place, as by resolve."""
    result = run("web", "-f", "-", stdin="kind: Service\napiVersion: v1\nmetadata: {}\n")
    assert result.exit_code == 2
    assert "metadata.name" in result.stderr
    assert run("shop/web", "-f", EXAMPLE, "--feature-gates", "No=true").exit_code == 2


def test_yaml_says_the_same_as_json() -> None:
    """Both forms for programs carry the same data."""
    as_yaml = yaml.safe_load(run("shop/web", "-f", EXAMPLE, "-o", "yaml").stdout)
    assert as_yaml == answer("shop/web")


def test_json_has_the_whole_chain() -> None:
    """Numbers of zones, hints of endpoints, modes of nodes, and causes with codes."""
    document = answer("shop/admin")
    zones = {zone["zone"]: zone for zone in document["zones"]}
    assert zones["zone-a"]["ready"] == 2
    assert zones["zone-a"]["expected"] == pytest.approx(5 / 3)
    assert zones["zone-a"]["least"] == 2
    assert len(document["endpoints"]) == 5
    assert document["nodes"][0]["ports"]["IPv4 tcp/http"]["mode"] == ""
    assert [cause["code"] for cause in document["causes"]] == [
        "AnnotationOverField",
        "ZoneOverloaded",
    ]
    assert document["mechanism"]["name"] == "Auto"


def test_markdown_is_for_a_ticket() -> None:
    """Headings, tables, and commands in blocks."""
    text = run("shop/web", "-f", EXAMPLE, "-o", "markdown").stdout
    assert text.startswith("# shop/web: traffic goes as asked\n")
    assert "| zone | nodes | share | ready | expected | hinted | load |" in text
    assert "## Not known" in text


def hostile_answer() -> Any:
    """Return an explanation whose names, labels and messages are all hostile."""
    zone = f"zone{HOSTILE}"
    nodes = [node(f"n{HOSTILE}", zone), node("n2", "zone-b")]
    broken = reported(
        pod(f"p{HOSTILE}", f"n{HOSTILE}", ready=False), waiting=f"Crash{HOSTILE}", container=HOSTILE
    )
    made = web(
        traffic_distribution=None,
        annotations={TRAFFIC_DISTRIBUTION_ANNOTATION: f"Prefer{HOSTILE}"},
    )
    point = endpoint("10.0.0.9", zone=zone, node_name=f"n{HOSTILE}", for_zones=(zone,))
    held = endpoint_slice(point, name=f"web{HOSTILE}")
    return explain([*nodes, broken, made, held], unknown=[HOSTILE])


@pytest.mark.parametrize("columns", [40, 80])
def test_hostile_text_cannot_control_a_terminal(columns: int) -> None:
    """Every character of the output is visible, and each line is one of ours."""
    out = io.StringIO()
    print_explanation(Screen(file=out, width=columns), hostile_answer())
    text = out.getvalue()
    assert "img" in text
    for line in text.splitlines():
        assert not any(is_hidden(char) or unicodedata.combining(char) for char in line), line
    assert not any(line.startswith(("[x]", "<img>")) for line in text.splitlines())


def test_hostile_text_cannot_leave_markdown() -> None:
    """No text from outside ends a table or a block of code, or becomes a link or HTML."""
    inside, fence = False, ""
    for line in explanation_markdown(hostile_answer()).splitlines():
        assert not any(is_hidden(char) for char in line), line
        ticks = line.strip().removesuffix("sh")
        if ticks and set(ticks) == {"`"} and (not inside or ticks == fence):
            inside, fence = not inside, ticks
            continue
        if not inside:
            bare = line.replace("\\\\", "").replace("\\<", "").replace("\\[", "").replace("\\`", "")
            assert "<" not in bare, line
            assert "[" not in bare, line
            assert "`" not in bare, line
    assert not inside


def test_hostile_text_stays_whole_in_json() -> None:
    """Programs get the names as they are."""
    document = explanation_document(hostile_answer())
    names = {name for group in document["nodes"] for name in group["nodes"]}
    assert f"n{HOSTILE}" in names


def test_lists_are_cut_to_a_screen() -> None:
    """Of many endpoints the unready ones come first, and the rest is counted."""
    pods = [pod(f"q{number}", "n1", ip=f"10.0.1.{number}") for number in range(1, 60)]
    bad = pod("bad", "n2", ip="10.0.2.1", ready=False)
    out = io.StringIO()
    print_explanation(
        Screen(file=out, width=80), explain(written(*NODES, *PODS, *pods, bad, web()))
    )
    lines = out.getvalue().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Endpoints"))
    assert lines[start + 2].split()[0] == "bad"
    assert "  and 57 more endpoints, see -o json" in lines
    assert len(lines) <= 45


def test_a_pod_without_a_node_sends_nothing() -> None:
    """There is nothing to explain from there."""
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    result = run("web", "-f", "-", "--from", "client", stdin=text)
    assert result.exit_code == 3
    assert "--from: Pod default/client has no node yet" in result.stderr


def test_without_nodes_there_is_nothing_to_judge() -> None:
    """Manifests of a Service and its Pods say nothing about routes."""
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "labels": {"app": "web"}},
            "status": {
                "phase": "Running",
                "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    result = run("web", "-f", "-", stdin=text)
    assert result.exit_code == 3
    assert result.stdout.startswith("· default/web: no node is known that routes it\n")


def test_what_is_missing_is_said() -> None:
    """Without Pods and Nodes the slices speak, and the answer names what nobody can know."""
    held = endpoint_slice(
        endpoint("10.0.0.1", zone="zone-a", node_name="n1", for_zones=("zone-a",)),
        endpoint("10.0.0.2", zone="zone-b", node_name="n2", for_zones=("zone-b",)),
    )
    found = explain([*NODES, replace(web(), spec=web().spec), held])
    assert "without Pods it is unknown whether the slices are stale" in found.unknown
    assert found.flow == "as asked"


class ListHandler(BaseHTTPRequestHandler):
    """Serves the lists of a cluster; what it does not have is denied."""

    objects: dict[str, list[dict[str, Any]]]

    def do_GET(self) -> None:
        """Answer with a list, or deny it."""
        kind = self.path.partition("?")[0].rpartition("/")[2]
        document: dict[str, Any] = {
            "kind": "Status",
            "status": "Failure",
            "reason": "Forbidden",
            "message": f"{kind} is forbidden",
        }
        if kind in self.objects:
            meta = {"resourceVersion": "1"}
            document = {"kind": "List", "metadata": meta, "items": self.objects[kind]}
        body = json.dumps(document).encode()
        self.send_response(200 if kind in self.objects else 403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


def live_answer(directory: Path, objects: dict[str, list[dict[str, Any]]]) -> Result:
    """Return what the command says about default/web of an API server with these objects."""
    handler = type("Served", (ListHandler,), {"objects": objects})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = directory / "config"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [cluster],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        result = run("web", "--kubeconfig", str(config), "-o", "json")
        server.shutdown()
    return result


def live_objects() -> dict[str, list[dict[str, Any]]]:
    """Return a Service whose only Pod waits for a readiness gate, on an old node."""
    service = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"],
            "ipFamilies": ["IPv4"],
            "selector": {"app": "web"},
            "ports": [{"port": 80, "protocol": "TCP"}],
        },
    }
    waiting = {
        "metadata": {"name": "p1", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "example.com/warm"}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "False", "reason": "NotYet"}],
            "containerStatuses": [{"name": "app", "ready": True, "started": True}],
        },
    }
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "services": [service],
        "pods": [waiting],
        "nodes": [{"metadata": {"name": "n1"}, "status": ready}],
        "endpointslices": [],
    }


def test_a_cluster_is_read_with_what_its_kubelets_report(tmp_path: Path) -> None:
    """The readiness gate of a Pod is known of a live cluster too."""
    result = live_answer(tmp_path, live_objects())
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert "ReadinessGate" in {cause["code"] for cause in document["causes"]}


@pytest.mark.parametrize("kind", ["pods", "nodes", "endpointslices"])
def test_a_kind_that_may_not_be_read_is_named(kind: str, tmp_path: Path) -> None:
    """The rest is explained, and the answer says what it cannot know."""
    objects = live_objects()
    objects.pop(kind)
    result = live_answer(tmp_path, objects)
    assert result.exit_code in (0, 1), result.output
    named = {"pods": "Pod: ", "nodes": "Node: ", "endpointslices": "EndpointSlice: "}[kind]
    unknown = json.loads(result.stdout)["unknown"]
    assert any(text.startswith(named) and "denies access" in text for text in unknown), unknown
