"""A person's session with kubectl against the embedded server, old kubectl and new."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real.embedded import Embedded, embedded_server
from support.real.programs import program

WEB = """
apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {app: web}
spec:
  selector: {app: web}
  trafficDistribution: PreferSameZone
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: admin, port: 81, targetPort: 8081}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec:
  nodeName: node-a
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: "web:1", ports: [{containerPort: 8080}]}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: zone-a}}
"""
SLICE = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-abc, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.1.0.1], nodeName: node-a, zone: zone-a, conditions: {ready: true},
   hints: {forZones: [{name: zone-a}]}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: 2
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec: {containers: [{name: main, image: "api:1"}]}
"""


class Kubectl:
    """One kubectl with its own home."""

    def __init__(self, path: Path, kubeconfig: Path, home: Path) -> None:
        self.path = path
        self.kubeconfig = kubeconfig
        self.home = home
        self.is_old = path.name.endswith("1.20")

    def start(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.Popen[str]:
        """Start a command."""
        process = subprocess.Popen(
            [str(self.path), f"--kubeconfig={self.kubeconfig}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin", **env},
        )
        if stdin:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None
        return process

    def run(self, *arguments: str, stdin: str = "", **env: str) -> tuple[int, str, str]:
        """Run a command to its end."""
        process = self.start(*arguments, stdin=stdin, **env)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> str:
        """Run a command that must succeed and return what it printed."""
        code, out, err = self.run(*arguments, stdin=stdin, **env)
        assert code == 0, f"kubectl {' '.join(arguments)}: {err}{out}"
        return out


def _wait_for_a_watch(kubectl: Kubectl, resource: str) -> None:
    """Return when the server has an open watch of the resource."""
    pattern = re.compile(
        rf'apiserver_longrunning_requests{{[^}}]*resource="{resource}"[^}}]*}} ([0-9.]+)'
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(float(value) > 0 for value in pattern.findall(kubectl("get", "--raw", "/metrics"))):
            return
    pytest.fail(f"nobody watches {resource}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Run one server for all sessions."""
    with embedded_server(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(params=["kubectl-1.20", "kubectl"])
def kubectl(request: pytest.FixtureRequest, server: Embedded, tmp_path: Path) -> Iterator[Kubectl]:
    """Give each version a namespace of its own, filled with the same objects."""
    admin = Kubectl(program(request.param), server.kubeconfig, tmp_path)
    namespace = f"test-{request.param.replace('.', '-')}"
    admin("create", "namespace", namespace)
    kubeconfig = tmp_path / "kubeconfig"
    text = server.kubeconfig.read_text()
    kubeconfig.write_text(text)
    scoped = Kubectl(program(request.param), kubeconfig, tmp_path)
    scoped("config", "set-context", "--current", f"--namespace={namespace}")
    yield scoped
    admin("delete", "namespace", namespace, "--wait=true", "--timeout=60s")


def test_version_and_kinds(kubectl: Kubectl) -> None:
    """The server says its version and every kind that it serves."""
    assert "Server Version" in kubectl("version")
    kinds = kubectl("api-resources", "--no-headers")
    for line in ("services", "endpointslices", "deployments", "servicecidrs", "leases"):
        assert line in kinds
    assert "svc" in kinds
    names = kubectl("api-resources", "--namespaced=false", "-o", "name").split()
    assert sorted(names) == [
        "namespaces",
        "nodes",
        "servicecidrs.networking.k8s.io",
    ]


def test_get_shows_the_columns_of_each_kind(kubectl: Kubectl) -> None:
    """Tables have the columns that people know, more of them with -o wide."""
    kubectl("apply", "-f", "-", stdin=f"{WEB}---{POD}---{SLICE}---{DEPLOYMENT}")
    kubectl("apply", "-f", "-", stdin=NODE)
    head, row = kubectl("get", "service", "web").splitlines()
    assert head.split() == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]
    assert row.split()[:2] == ["web", "ClusterIP"]
    assert row.split()[3:5] == ["<none>", "80/TCP,81/TCP"]
    wide = kubectl("get", "svc", "web", "-o", "wide").splitlines()
    assert wide[0].split()[-1] == "SELECTOR"
    assert wide[1].split()[-1] == "app=web"
    head, row = kubectl("get", "endpointslice").splitlines()
    assert head.split() == ["NAME", "ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"]
    assert row.split()[:4] == ["web-abc", "IPv4", "8080", "10.1.0.1"]
    head, row = kubectl("get", "pods", "-o", "wide").splitlines()
    assert head.split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["web-1", "0/1", "Pending", "0"]
    assert "node-a" in row
    head, row = kubectl("get", "deployments").splitlines()
    assert row.split()[:4] == ["api", "0/2", "0", "0"]
    assert "node-a" in kubectl("get", "nodes")
    everything = kubectl("get", "all")
    for name in ("service/web", "pod/web-1", "deployment.apps/api"):
        assert name in everything
    assert kubectl("get", "svc", "web", "-o", "jsonpath={.spec.trafficDistribution}") == (
        "PreferSameZone"
    )
    assert "trafficDistribution: PreferSameZone" in kubectl("get", "svc", "web", "-o", "yaml")
    assert kubectl("get", "pods", "-l", "app=web", "-o", "name").strip() == "pod/web-1"
    assert kubectl("get", "pods", "--field-selector=spec.nodeName=node-b") == ""


def test_the_service_of_the_server_is_there(kubectl: Kubectl) -> None:
    """Every cluster has the Service kubernetes, which comes back when it is deleted."""
    default = ("--namespace=default", "get")
    row = kubectl(*default, "svc", "kubernetes", "--no-headers").split()
    assert row[:5] == ["kubernetes", "ClusterIP", "10.96.0.1", "<none>", "443/TCP"]
    row = kubectl(*default, "endpointslice", "kubernetes", "--no-headers").split()
    assert row[:4] == ["kubernetes", "IPv4", "<unset>", "<unset>"]
    assert kubectl(*default, "endpoints", "kubernetes", "-o", "name").startswith("endpoints/")
    uid = kubectl(*default, "svc", "kubernetes", "-o", "jsonpath={.metadata.uid}")
    kubectl("--namespace=default", "delete", "svc", "kubernetes")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        code, out, _ = kubectl.run(*default, "svc", "kubernetes", "-o", "jsonpath={.metadata.uid}")
        if code == 0 and out != uid:
            return
    pytest.fail("the Service kubernetes has not come back")


def test_a_namespace_has_what_every_namespace_has(kubectl: Kubectl, server: Embedded) -> None:
    """The ServiceAccount and the certificate authority are there in a namespace that is new."""
    assert kubectl("get", "sa", "default", "-o", "name").strip() == "serviceaccount/default"
    ca = kubectl("get", "cm", "kube-root-ca.crt", "-o", r"jsonpath={.data.ca\.crt}")
    assert ca == (server.directory / "pki" / "ca.crt").read_text()


def test_watch_prints_changes(kubectl: Kubectl) -> None:
    """`get -w` prints a line for each change as it happens."""
    kubectl("apply", "-f", "-", stdin=WEB)
    process = kubectl.start("get", "svc", "-w", "--no-headers")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:2] == ["web", "ClusterIP"]
        kubectl("patch", "svc", "web", "-p", '{"spec":{"type":"NodePort"}}')
        assert process.stdout.readline().split()[:2] == ["web", "NodePort"]
        kubectl("delete", "svc", "web")
        assert process.stdout.readline().split()[:2] == ["web", "NodePort"]
    finally:
        process.terminate()
        process.communicate()


def test_describe(kubectl: Kubectl) -> None:
    """Every kind can be described."""
    kubectl("apply", "-f", "-", stdin=f"{WEB}---{POD}---{SLICE}")
    kubectl("apply", "-f", "-", stdin=NODE)
    text = kubectl("describe", "svc", "web")
    assert "Name:" in text
    assert "web" in text
    if not kubectl.is_old:
        assert "10.1.0.1:8080" in text
    assert "node-a" in kubectl("describe", "pod", "web-1")
    assert "topology.kubernetes.io/zone=zone-a" in kubectl("describe", "node", "node-a")
    assert "10.1.0.1" in kubectl("describe", "endpointslice", "web-abc")


def test_explain_tells_of_traffic_distribution(kubectl: Kubectl) -> None:
    """`explain` reads the server's own schema."""
    text = kubectl("explain", "service.spec.trafficDistribution")
    assert "trafficDistribution" in text
    assert "<string>" in text
    assert "zone" in text
    assert "forNodes" in kubectl("explain", "endpointslice.endpoints.hints")


def test_apply_says_what_it_did(kubectl: Kubectl) -> None:
    """Client-side apply creates, changes, and notices when there is nothing to do."""
    assert "service/web created" in kubectl("apply", "-f", "-", stdin=WEB)
    assert "service/web unchanged" in kubectl("apply", "-f", "-", stdin=WEB)
    changed = WEB.replace("PreferSameZone", "PreferSameNode").replace(
        "  - {name: admin, port: 81, targetPort: 8081}\n", ""
    )
    assert "service/web configured" in kubectl("apply", "-f", "-", stdin=changed)
    spec = json.loads(kubectl("get", "svc", "web", "-o", "json"))["spec"]
    assert spec["trafficDistribution"] == "PreferSameNode"
    assert [port["name"] for port in spec["ports"]] == ["http"]
    code, _, err = kubectl.run("apply", "-f", "-", stdin=WEB.replace("ports:", "prots:"))
    assert code == 1
    assert "prots" in err
    code, _, err = kubectl.run("apply", "-f", "-", stdin=WEB.replace("PreferSameZone", "Random"))
    assert code == 1
    assert 'spec.trafficDistribution: Unsupported value: "Random"' in err


def test_server_side_apply_and_its_conflict(kubectl: Kubectl) -> None:
    """Two managers may share an object, but not a field, unless one insists."""
    one = ("apply", "--server-side", "-f", "-", "--field-manager")
    assert "serverside-applied" in kubectl(*one, "alice", stdin=WEB)
    other = WEB.replace("PreferSameZone", "PreferSameNode")
    code, _, err = kubectl.run(*one, "bob", stdin=other)
    assert code == 1
    assert 'conflict with "alice"' in err
    assert ".spec.trafficDistribution" in err
    assert "serverside-applied" in kubectl(*one, "bob", "--force-conflicts", stdin=other)
    flags = () if kubectl.is_old else ("--show-managed-fields",)
    shown = kubectl("get", "svc", "web", "-o", "json", *flags)
    metadata = json.loads(shown)["metadata"]
    assert {field["manager"] for field in metadata["managedFields"]} >= {"alice", "bob"}


def test_diff_edit_and_patches(kubectl: Kubectl, tmp_path: Path) -> None:
    """Changes can be previewed, edited by hand and patched in all ways."""
    kubectl("apply", "-f", "-", stdin=WEB)
    code, out, _ = kubectl.run(
        "diff", "-f", "-", stdin=WEB.replace("PreferSameZone", "PreferSameNode")
    )
    assert code == 1
    assert "-  trafficDistribution: PreferSameZone" in out
    assert "+  trafficDistribution: PreferSameNode" in out
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/PreferSameZone/PreferSameNode/ "$1"\n')
    editor.chmod(0o755)
    assert "service/web edited" in kubectl("edit", "svc", "web", EDITOR=str(editor))

    def distribution() -> str:
        return kubectl("get", "svc", "web", "-o", "jsonpath={.spec.trafficDistribution}")

    assert distribution() == "PreferSameNode"
    kubectl("patch", "svc", "web", "-p", '{"spec":{"trafficDistribution":"PreferSameZone"}}')
    assert distribution() == "PreferSameZone"
    merge = ("patch", "svc", "web", "--type=merge", "-p")
    kubectl(*merge, '{"spec":{"trafficDistribution":null}}')
    assert distribution() == ""
    operation = [{"op": "add", "path": "/spec/trafficDistribution", "value": "PreferClose"}]
    kubectl("patch", "svc", "web", "--type=json", "-p", json.dumps(operation))
    assert distribution() == "PreferClose"
    strategic = {"spec": {"ports": [{"port": 80, "name": "http", "targetPort": 9090}]}}
    kubectl("patch", "svc", "web", "--type=strategic", "-p", json.dumps(strategic))
    ports = json.loads(kubectl("get", "svc", "web", "-o", "json"))["spec"]["ports"]
    assert [(port["port"], port["targetPort"]) for port in ports] == [(80, 9090), (81, 8081)]


def test_label_annotate_scale_rollout_wait(kubectl: Kubectl) -> None:
    """The small commands of daily work."""
    kubectl("apply", "-f", "-", stdin=f"{WEB}---{DEPLOYMENT}")
    kubectl("label", "svc", "web", "tier=front")
    assert kubectl("get", "svc", "-l", "tier=front", "-o", "name").strip() == "service/web"
    kubectl("label", "svc", "web", "tier-")
    assert kubectl("get", "svc", "-l", "tier=front", "-o", "name") == ""
    kubectl("annotate", "svc", "web", "service.kubernetes.io/topology-mode=Auto")
    text = kubectl("get", "svc", "web", "-o", "yaml")
    assert "service.kubernetes.io/topology-mode: Auto" in text
    assert "scaled" in kubectl("scale", "deployment", "api", "--replicas=5")
    assert kubectl("get", "deployment", "api", "-o", "jsonpath={.spec.replicas}") == "5"
    code, out, _ = kubectl.run("rollout", "status", "deployment/api", "--watch=false")
    assert code == 0
    assert "Waiting for deployment" in out
    status = {
        "observedGeneration": 2,
        "replicas": 5,
        "updatedReplicas": 5,
        "readyReplicas": 5,
        "availableReplicas": 5,
        "conditions": [{"type": "Available", "status": "True"}],
    }
    if kubectl.is_old:
        path = kubectl("get", "deployment", "api", "-o", "json")
        whole = json.loads(path)
        whole["status"] = status
        where = f"/apis/apps/v1/namespaces/{whole['metadata']['namespace']}/deployments/api/status"
        kubectl("replace", "--raw", where, "-f", "-", stdin=json.dumps(whole))
    else:
        patch = json.dumps({"status": status})
        kubectl("patch", "deployment", "api", "--subresource=status", "--type=merge", "-p", patch)
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/api")
    waited = kubectl("wait", "--for=condition=Available", "deployment/api", "--timeout=60s")
    assert "condition met" in waited
    deleting = kubectl.start("wait", "--for=delete", "svc/web", "--timeout=60s")
    _wait_for_a_watch(kubectl, "services")
    kubectl("delete", "svc", "web")
    _, err = deleting.communicate(timeout=90)
    assert deleting.returncode == 0, err


def test_delete_waits_for_finalizers_and_takes_dependents_along(kubectl: Kubectl) -> None:
    """A finalizer holds an object back; dependents follow their owner."""
    held = WEB.replace("  name: web\n", "  name: web\n  finalizers: [example.com/hold]\n")
    kubectl("apply", "-f", "-", stdin=held)
    kubectl("delete", "svc", "web", "--wait=false")
    metadata = json.loads(kubectl("get", "svc", "web", "-o", "json"))["metadata"]
    assert metadata["deletionTimestamp"]
    waiting = kubectl.start("wait", "--for=delete", "svc/web", "--timeout=60s")
    _wait_for_a_watch(kubectl, "services")
    kubectl("patch", "svc", "web", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    _, err = waiting.communicate(timeout=90)
    assert waiting.returncode == 0, err

    kubectl("apply", "-f", "-", stdin=WEB)
    uid = kubectl("get", "svc", "web", "-o", "jsonpath={.metadata.uid}")
    owned = textwrap.dedent(f"""
        apiVersion: v1
        kind: ConfigMap
        metadata:
          name: dependent
          ownerReferences:
          - {{apiVersion: v1, kind: Service, name: web, uid: {uid}, blockOwnerDeletion: true}}
        """)
    kubectl("apply", "-f", "-", stdin=owned)
    waiting = kubectl.start("wait", "--for=delete", "configmap/dependent", "--timeout=60s")
    _wait_for_a_watch(kubectl, "configmaps")
    cascade = "--cascade=true" if kubectl.is_old else "--cascade=foreground"
    kubectl("delete", "svc", "web", cascade)
    _, err = waiting.communicate(timeout=90)
    assert waiting.returncode == 0, err

    kubectl("apply", "-f", "-", stdin=WEB)
    uid = kubectl("get", "svc", "web", "-o", "jsonpath={.metadata.uid}")
    kubectl("apply", "-f", "-", stdin=owned.replace(owned.split("uid: ")[1].split(",")[0], uid))
    kubectl("delete", "svc", "web", "--cascade=orphan")
    left = json.loads(kubectl("get", "configmap", "dependent", "-o", "json"))
    assert "ownerReferences" not in left["metadata"]


def test_who_may_not_is_told_so(kubectl: Kubectl, server: Embedded, tmp_path: Path) -> None:
    """A viewer may look and not touch; a wrong token gets nowhere."""
    viewer = Kubectl(kubectl.path, server.role("viewer"), tmp_path)
    assert "default" in viewer("get", "namespaces")
    code, _, err = viewer.run("create", "namespace", "mine")
    assert code == 1
    assert "Forbidden" in err
    assert 'cannot create resource "namespaces"' in err
    wrong = tmp_path / "wrong"
    text = server.kubeconfig.read_text()
    token = (server.directory / "tokens" / "admin").read_text().strip()
    wrong.write_text(text.replace(token, "x" * 40))
    code, _, err = Kubectl(kubectl.path, wrong, tmp_path).run("get", "namespaces")
    assert code == 1
    assert "Unauthorized" in err or "must be logged in" in err


def test_what_needs_containers_says_what_to_use(kubectl: Kubectl) -> None:
    """Logs, exec and port-forward end with words that a user of a lab can act on."""
    kubectl("apply", "-f", "-", stdin=POD)
    code, _, err = kubectl.run("logs", "web-1")
    assert code == 1
    assert "no containers run here" in err
    assert "kubectl describe pod -n " in err
    code, _, err = kubectl.run("exec", "web-1", "--", "ls")
    assert code == 1
    assert "use: keepclose lab exec web-1 -- COMMAND" in err


def test_who_may_do_what_is_answered(kubectl: Kubectl, server: Embedded) -> None:
    """`kubectl auth can-i` says what the roles of the server allow."""
    assert kubectl("auth", "can-i", "delete", "pods") == "yes\n"
    kubectl.kubeconfig = server.role("viewer")
    code, out, _ = kubectl.run("auth", "can-i", "delete", "pods")
    assert (code, out) == (1, "no\n")
    assert kubectl("auth", "can-i", "watch", "services") == "yes\n"
    if not kubectl.is_old:
        assert "keepclose:viewer" in kubectl("auth", "whoami")


def test_all_that_may_be_done_is_listed(kubectl: Kubectl, server: Embedded) -> None:
    """`kubectl auth can-i --list` shows the rules of a role."""
    assert "*.*" in kubectl("auth", "can-i", "--list")
    kubectl.kubeconfig = server.role("controller")
    lines = kubectl("auth", "can-i", "--list").splitlines()
    (slices,) = [line for line in lines if line.startswith("endpointslices.discovery.k8s.io")]
    assert "[create delete patch update]" in slices


def test_a_user_can_be_impersonated(kubectl: Kubectl) -> None:
    """`kubectl --as` has the rights of that user and its groups, not those of the caller."""
    question = ("auth", "can-i", "list", "pods", "--as=jane")
    code, out, _ = kubectl.run(*question)
    assert (code, out) == (1, "no\n")
    groups = ("--as-group=builders", "--as-group=keepclose:viewers")
    assert kubectl(*question, *groups) == "yes\n"
