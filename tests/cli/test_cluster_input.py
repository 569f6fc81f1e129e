"""What the advising commands read: a live cluster with few rights, or files; and what is missing.

The cluster is an API server over HTTP that denies or lacks the kinds that a test names.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from keepclose.cli.inputs.cluster_input import ClusterInput, ExtraKind, read_cluster
from keepclose.cli.inputs.service_choice import choose_service
from keepclose.cli.main import app

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "SERVER"}}]
contexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}]
users: [{name: u, user: {}}]
"""
ZONE = "topology.kubernetes.io/zone"
OBJECTS: dict[str, list[dict[str, Any]]] = {
    "nodes": [
        {
            "metadata": {"name": f"n{number}", "labels": {ZONE: f"zone-{zone}"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for number, zone in enumerate("ab", 1)
    ],
    "services": [
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
            "spec": {
                "clusterIP": "10.96.0.1",
                "clusterIPs": ["10.96.0.1"],
                "ipFamilies": ["IPv4"],
                "selector": {"app": "web"},
                "ports": [{"port": 80, "protocol": "TCP"}],
            },
        }
    ],
    "pods": [
        {
            "metadata": {"name": f"web-{number}", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": f"n{number}"},
            "status": {
                "phase": "Running",
                "podIPs": [{"ip": f"10.0.0.{number}"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for number in (1, 2)
    ],
    "endpointslices": [
        {
            "metadata": {
                "name": "web-1",
                "namespace": "shop",
                "labels": {
                    "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "addressType": "IPv4",
            "ports": [{"port": 80, "protocol": "TCP", "name": ""}],
            "endpoints": [
                {
                    "addresses": [f"10.0.0.{number}"],
                    "conditions": {"ready": True},
                    "nodeName": f"n{number}",
                    "zone": f"zone-{zone}",
                    "targetRef": {"kind": "Pod", "namespace": "shop", "name": f"web-{number}"},
                }
                for number, zone in enumerate("ab", 1)
            ],
        }
    ],
    "deployments": [{"metadata": {"name": "web", "namespace": "shop"}, "spec": {"replicas": 2}}],
}


class ListHandler(BaseHTTPRequestHandler):
    """Serves lists in pages, of all namespaces or of one."""

    denied: frozenset[str]
    """Kinds that may not be listed in all namespaces."""
    denied_everywhere: frozenset[str]
    lacking: frozenset[str]
    page_size: int
    asked: list[str]

    def do_GET(self) -> None:
        """Answer with a page."""
        url = urlsplit(self.path)
        self.asked.append(self.path)
        query = parse_qs(url.query)
        kind = url.path.rpartition("/")[2]
        if kind in self.lacking:
            self.refuse(404, "NotFound", "the server could not find the requested resource")
            return
        is_namespaced = "/namespaces/" in url.path
        if kind in self.denied_everywhere or (kind in self.denied and not is_namespaced):
            self.refuse(403, "Forbidden", f'{kind} is forbidden: User "u" cannot list')
            return
        items = OBJECTS.get(kind, [])
        start = int(query.get("continue", ["0"])[0])
        page = items[start : start + self.page_size]
        left = len(items) - start - len(page)
        meta: dict[str, Any] = {"resourceVersion": "1"}
        if left > 0:
            meta |= {"continue": str(start + len(page)), "remainingItemCount": left}
        self.answer({"kind": "List", "metadata": meta, "items": page})

    def refuse(self, code: int, reason: str, message: str) -> None:
        """Send a failure."""
        self.answer(
            {"kind": "Status", "status": "Failure", "reason": reason, "message": message}, code
        )

    def answer(self, document: Any, status: int = 200) -> None:
        """Send a document."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@contextmanager
def cluster(
    directory: Path,
    *,
    denied: str = "",
    denied_everywhere: str = "",
    lacking: str = "",
    page_size: int = 500,
) -> Iterator[tuple[Path, list[str]]]:
    """Serve the cluster; yield its kubeconfig and the paths that were asked for."""
    asked: list[str] = []
    served = type(
        "Served",
        (ListHandler,),
        {
            "denied": frozenset(denied.split()),
            "denied_everywhere": frozenset(denied_everywhere.split()),
            "lacking": frozenset(lacking.split()),
            "page_size": page_size,
            "asked": asked,
        },
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        file = directory / "config"
        file.write_text(KUBECONFIG.replace("SERVER", f"http://127.0.0.1:{server.server_port}"))
        yield file, asked
        server.shutdown()


def resolve(*arguments: str, home: Path | None = None) -> Result:
    """Run `keepclose resolve` where no lab runs and no kubeconfig exists."""
    place = str(home or "/nonexistent")
    env = {
        "COLUMNS": "100",
        "TERM": "dumb",
        "HOME": place,
        "KUBECONFIG": "",
        "KEEPCLOSE_DATA_DIR": f"{place}/lab",
    }
    return CliRunner().invoke(app, ["resolve", *arguments], env=env)


def endpoints_of(result: Result) -> dict[str, list[str]]:
    """Return what each node uses for shop/web."""
    assert result.exit_code == 0, result.output
    (service,) = json.loads(result.stdout)["services"]
    return {
        node: port["internal"].get("endpoints", [])
        for node, ports in service["nodes"].items()
        for port in ports.values()
    }


BOTH = ["10.0.0.1/80", "10.0.0.2/80"]


def test_a_live_cluster_is_resolved_in_pages(tmp_path: Path) -> None:
    """Lists continue page by page, and nothing is said where nothing is missing."""
    with cluster(tmp_path, page_size=1) as (config, asked):
        result = resolve("--kubeconfig", str(config), "-o", "json")
    assert endpoints_of(result) == {"n1": BOTH, "n2": BOTH}
    assert result.stderr == ""
    assert sum("/pods?" in path for path in asked) == 2


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(
            {"denied": "pods"},
            'warning: Pod: the cluster denies access: pods is forbidden: User "u" cannot list, '
            "so endpoints are those of the EndpointSlices, as their controller wrote them\n"
            "         let this user list pods\n",
            id="no rights for pods",
        ),
        pytest.param(
            {"denied": "nodes"},
            "so zones are those of the EndpointSlices, and nodes without endpoints are unknown\n"
            "         let this user list nodes\n",
            id="no rights for nodes",
        ),
        pytest.param(
            {"denied": "nodes pods"}, "warning: Node: the cluster denies access", id="neither"
        ),
        pytest.param(
            {"lacking": "endpointslices"},
            "warning: EndpointSlice: the cluster does not serve endpointslices.discovery.k8s.io in "
            "discovery.k8s.io/v1, so slices are planned from Pods",
            id="an old cluster without slices of this version",
        ),
    ],
)
def test_a_kind_that_cannot_be_read_is_a_gap(
    tmp_path: Path, options: dict[str, str], want: str
) -> None:
    """The answer is the same where slices show what the kind would have told; stderr says so."""
    with cluster(tmp_path, **options) as (config, _):  # type: ignore[arg-type]
        result = resolve("--kubeconfig", str(config), "-o", "json")
    assert endpoints_of(result) == {"n1": BOTH, "n2": BOTH}
    assert want in result.stderr


def test_an_object_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of wrong types is named, and all others count."""
    broken = {"metadata": {"name": "odd", "namespace": "shop"}, "spec": {"ports": "none"}}
    monkeypatch.setitem(OBJECTS, "services", [broken, *OBJECTS["services"]])
    with cluster(tmp_path) as (config, _):
        result = resolve("--kubeconfig", str(config), "-o", "json")
    assert endpoints_of(result) == {"n1": BOTH, "n2": BOTH}
    assert "warning: Service: 1 cannot be read, first shop/odd: spec.ports" in result.stderr


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_shows_how_much_was_read(tmp_path: Path, is_terminal: bool) -> None:
    """A long list has a progress bar on a terminal; a file or a pipe never holds it."""
    leader, follower = pty.openpty()
    with cluster(tmp_path, page_size=1) as (config, _):
        done = subprocess.run(
            [sys.executable, "-m", "keepclose", "resolve", "--kubeconfig", str(config)],
            stdout=subprocess.PIPE,
            stderr=follower if is_terminal else subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "HOME": str(tmp_path)},
            check=True,
            timeout=120,
        )
    os.close(follower)
    shown = b""
    with suppress(OSError):
        # NB: a terminal whose last user has gone ends with an error.
        while chunk := os.read(leader, 65536):
            shown += chunk
    os.close(leader)
    assert (b"2 pods" in shown) is is_terminal
    assert is_terminal or done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_without_services_there_is_no_answer(tmp_path: Path) -> None:
    """A user who may not list Services is told what to do, with the code of denied access."""
    with cluster(tmp_path, denied="services") as (config, _):
        result = resolve("--kubeconfig", str(config))
    assert result.exit_code == 4
    assert 'the cluster denies access: services is forbidden: User "u"' in result.stderr
    assert "or name a namespace that it may read, with -n" in result.stderr


@pytest.mark.parametrize("arguments", [["-n", "shop"], ["--service", "shop/web"]])
def test_rights_in_one_namespace_are_enough(tmp_path: Path, arguments: list[str]) -> None:
    """With -n, or a Service that names its namespace, only this namespace needs to be readable."""
    with cluster(tmp_path, denied="services pods endpointslices") as (config, _):
        result = resolve("--kubeconfig", str(config), "-o", "json", *arguments)
    assert endpoints_of(result) == {"n1": BOTH, "n2": BOTH}


def test_a_bare_name_is_in_the_namespace_of_the_context(tmp_path: Path) -> None:
    """As in kubectl, the kubeconfig's context has the default namespace."""
    with cluster(tmp_path) as (config, _):
        result = resolve("--kubeconfig", str(config), "-o", "json", "--service", "web")
    assert endpoints_of(result) == {"n1": BOTH, "n2": BOTH}


def test_a_server_that_does_not_answer_is_code_four(tmp_path: Path) -> None:
    """The error names the server and what to check."""
    config = tmp_path / "config"
    config.write_text(KUBECONFIG.replace("SERVER", "http://127.0.0.1:1"))
    result = resolve("--kubeconfig", str(config))
    assert result.exit_code == 4
    assert "http://127.0.0.1:1 does not answer" in result.stderr


def test_without_any_source_the_error_names_both(tmp_path: Path) -> None:
    """Neither files nor a cluster: -f and --kubeconfig are named."""
    result = resolve(home=tmp_path)
    assert result.exit_code == 4
    assert "--kubeconfig" in result.stderr
    assert "or name its objects in files with -f" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["-f", "x.yaml", "--context", "c"], "files or a cluster", id="two sources"),
        pytest.param(["-A", "-n", "shop"], "one namespace or all of them", id="one and all"),
    ],
)
def test_options_that_exclude_each_other(arguments: list[str], want: str) -> None:
    """Two sources, or one namespace and all of them, are refused."""
    result = resolve(*arguments)
    assert result.exit_code == 2
    assert want in result.stderr


def write_dump(directory: Path, *kinds: str) -> str:
    """Write the objects of some kinds to a file, as kubectl does."""
    names = {
        "nodes": ("v1", "Node"),
        "services": ("v1", "Service"),
        "pods": ("v1", "Pod"),
        "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
        "deployments": ("apps/v1", "Deployment"),
    }
    items = [
        {"apiVersion": names[kind][0], "kind": names[kind][1], **obj}
        for kind in kinds
        for obj in OBJECTS[kind]
    ]
    file = directory / "dump.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(file)


@pytest.mark.parametrize(
    ("kinds", "missing"),
    [
        pytest.param("nodes services endpointslices", ["Pod"], id="no Pods"),
        pytest.param("services pods endpointslices", ["Node"], id="no Nodes"),
        pytest.param("services endpointslices", ["Node", "Pod"], id="slices alone"),
    ],
)
def test_a_dump_without_kinds_is_answered_from_slices(
    tmp_path: Path, kinds: str, missing: list[str]
) -> None:
    """No Service loses the endpoints that its slices have, and each missing kind is named."""
    dump = write_dump(tmp_path, *kinds.split())
    result = resolve("-f", dump, "-o", "json")
    assert endpoints_of(result) == {"n1": BOTH, "n2": BOTH}
    warned = [line.split()[1] for line in result.stderr.splitlines() if "warning" in line]
    assert warned == [f"{kind}:" for kind in missing]


def test_extra_kinds_are_read_where_a_command_asks(tmp_path: Path) -> None:
    """Live and from files, with their version and kind; other ConfigMaps never."""
    kinds = (ExtraKind.DEPLOYMENTS, ExtraKind.DISRUPTION_BUDGETS)
    with cluster(tmp_path, denied_everywhere="poddisruptionbudgets") as (config, asked):
        live = read_cluster(kubeconfig=config, kinds=kinds, shows_gaps=False)
    dump = write_dump(tmp_path, *OBJECTS)
    from_file = read_cluster([dump], kinds=kinds)
    for source in (live, from_file):
        (deployment,) = source.of(ExtraKind.DEPLOYMENTS)
        assert (deployment["apiVersion"], deployment["spec"]) == ("apps/v1", {"replicas": 2})
    assert [gap.kind for gap in live.gaps] == ["PodDisruptionBudget"]
    assert not any("configmaps" in path or "secrets" in path for path in asked)
    assert read_cluster([dump]).other == ()


def test_a_snapshot_of_a_live_cluster_answers_like_the_cluster(tmp_path: Path) -> None:
    """Every kind is read once, Secrets and other ConfigMaps never, and a denied kind is named."""
    file = tmp_path / "snapshot.json.gz"
    with cluster(tmp_path, page_size=1, denied_everywhere="daemonsets") as (config, asked):
        live = resolve("--kubeconfig", str(config), "-o", "json")
        asked.clear()
        options = ["--kubeconfig", str(config), "-o", str(file)]
        result = CliRunner().invoke(app, ["snapshot", *options])
    assert result.exit_code == 0, result.output
    assert "warning: DaemonSet: the cluster does not" not in result.stderr
    assert "warning: DaemonSet: the cluster denies access" in result.stderr
    assert json.loads(live.stdout) == json.loads(resolve("-f", str(file), "-o", "json").stdout)
    assert read_cluster([str(file)], kinds=(ExtraKind.DEPLOYMENTS,)).other != ()
    assert not any("secrets" in path or "events" in path for path in asked)
    assert [path for path in asked if "configmaps" in path and "labelSelector" not in path] == []


def test_only_acknowledgements_of_config_maps_are_kept(tmp_path: Path) -> None:
    """A ConfigMap without keepclose's label may hold anything, so it is not read."""
    acknowledged = {"keepclose.dev/acknowledgement": "true"}
    items = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}
        for name, labels in (("own", acknowledged), ("other", {}), ("odd", 5))
    ]
    file = tmp_path / "maps.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    source = read_cluster([str(file)], kinds=(ExtraKind.ACKNOWLEDGEMENTS,), shows_gaps=False)
    assert [obj["metadata"]["name"] for obj in source.other] == ["own"]


def kustomization(directory: Path) -> Path:
    """Write a kustomization of one Service."""
    (directory / "kustomization.yaml").write_text("resources: [service.yaml]\n")
    (directory / "service.yaml").write_text("apiVersion: v1\nkind: Service\n")
    return directory


def chart(directory: Path) -> Path:
    """Write a Helm chart."""
    (directory / "Chart.yaml").write_text("apiVersion: v2\nname: web\nversion: 0.1.0\n")
    (directory / "templates").mkdir()
    (directory / "templates" / "service.yaml").write_text("name: {{ .Release.Name }}\n")
    return directory


@pytest.mark.parametrize("part", ["", "kustomization.yaml"])
def test_a_kustomization_is_named_with_its_command(tmp_path: Path, part: str) -> None:
    """Its manifests are parts of a whole that kustomize builds."""
    directory = kustomization(tmp_path)
    result = resolve("-f", str(directory / part))
    assert result.exit_code == 2
    assert "this is a kustomization" in result.stderr
    assert f"kubectl kustomize {directory} | keepclose ... -f -" in result.stderr


@pytest.mark.parametrize("part", ["", "Chart.yaml", "templates", "templates/service.yaml"])
def test_a_chart_is_named_with_its_command(tmp_path: Path, part: str) -> None:
    """Its templates are no manifests until Helm renders them."""
    directory = chart(tmp_path)
    result = resolve("-f", str(directory / part))
    assert result.exit_code == 2
    assert "this is a Helm chart" in result.stderr
    assert f"helm template {directory} | keepclose ... -f -" in result.stderr


def test_a_manifest_beside_a_kustomization_can_be_read(tmp_path: Path) -> None:
    """Only the directory stands for the kustomization; a file of it is what it is."""
    kustomization(tmp_path)
    file = write_dump(tmp_path, "services", "nodes", "pods")
    assert resolve("-f", file).exit_code == 0


def test_one_function_finds_services(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name in another namespace, or a typing error, is suggested."""
    source: ClusterInput = read_cluster([write_dump(tmp_path, "nodes", "services", "pods")])
    assert str(choose_service(source, "shop/web").key) == "shop/web"
    assert str(choose_service(source, "web", "shop").key) == "shop/web"
    for text in ("web", "shop/wbe"):
        with pytest.raises(SystemExit) as ended:
            choose_service(source, text)
        assert ended.value.code == 3
        assert "did you mean shop/web?" in capsys.readouterr().err
