"""A person's way with a Deployment: kubectl against our server and our controllers of workloads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.testing.api_server import serving
from support.labs import Lab, workloads
from support.real.programs import program

# The manifest by which KEP-4444 tries an upgrade, as it stands there.
DEMO = """
apiVersion: v1
kind: Service
metadata:
  name: demo-svc
spec:
  type: ClusterIP
  trafficDistribution: PreferClose
  ports:
  - name: tcp
    port: 80
    protocol: TCP
    targetPort: 8080
  selector:
    app: demo-app
---
apiVersion: apps/v1
kind: Deployment
metadata:
  labels:
    app: demo-app
  name: demo
spec:
  replicas: 5
  selector:
    matchLabels:
      app: demo-app
  template:
    metadata:
      labels:
        app: demo-app
    spec:
      containers:
      - name: agnhost
        image: gcr.io/kubernetes-e2e-test-images/agnhost:2.8
        args: ["serve-hostname", "--port", "8080"]
"""
COLLECTOR = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: collector}
spec:
  selector: {matchLabels: {app: collector}}
  template:
    metadata: {labels: {app: collector}}
    spec: {containers: [{name: main, image: "collector:1"}]}
"""


class Kubectl:
    """One kubectl with its own home, which runs while this process serves it."""

    def __init__(self, path: Path, kubeconfig: Path, home: Path) -> None:
        self._path, self._kubeconfig, self._home = path, kubeconfig, home

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must succeed and return what it printed."""
        process = await asyncio.create_subprocess_exec(
            str(self._path),
            f"--kubeconfig={self._kubeconfig}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": str(self._home), "PATH": "/usr/bin:/bin"},
        )
        async with asyncio.timeout(120):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode == 0, f"kubectl {' '.join(arguments)}: {(err + out).decode()}"
        return out.decode()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Serve and tend four nodes in two zones."""
    async with serving(tmp_path / "data") as api, workloads(api) as found:
        for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
            await found.cluster.add_node(name, f"zone-{zone}")
        yield found


@pytest.fixture(params=["kubectl-1.20", "kubectl"])
def kubectl(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Kubectl:
    """Give the kubectl of an old and of a new version."""
    kubeconfig = lab.cluster.api.server.settings.data_dir / "kubeconfig"
    return Kubectl(program(request.param), kubeconfig, tmp_path)


async def test_a_deployment_from_its_beginning_to_its_end(kubectl: Kubectl, lab: Lab) -> None:
    """Apply, wait, scale, a new image, undo, describe and delete all do what people expect."""
    applied = await kubectl("apply", "-f", "-", stdin=DEMO)
    assert applied.splitlines() == ["service/demo-svc created", "deployment.apps/demo created"]
    rolled = await kubectl("rollout", "status", "deployment/demo", "--timeout=90s")
    assert rolled.splitlines()[-1] == 'deployment "demo" successfully rolled out'
    row = (await kubectl("get", "deployment", "demo", "--no-headers")).split()
    assert row[:4] == ["demo", "5/5", "5", "5"]
    assert (await kubectl("apply", "-f", "-", stdin=DEMO)).splitlines() == [
        "service/demo-svc unchanged",
        "deployment.apps/demo unchanged",
    ]

    scaled = await kubectl("scale", "deployment/demo", "--replicas=7")
    assert scaled == "deployment.apps/demo scaled\n"
    await kubectl("rollout", "status", "deployment/demo", "--timeout=90s")
    pods = (await kubectl("get", "pods", "-l", "app=demo-app", "--no-headers")).splitlines()
    assert [line.split()[2] for line in pods] == ["Running"] * 7

    await kubectl("set", "image", "deployment/demo", "agnhost=agnhost:2.9")
    rolled = await kubectl("rollout", "status", "deployment/demo", "--timeout=90s")
    assert rolled.splitlines()[-1] == 'deployment "demo" successfully rolled out'
    await lab.until(lambda: len(lab.pods) == 7)
    paths = "{.items[*].spec.containers[0].image}"
    images = await kubectl("get", "pods", "-l", "app=demo-app", "-o", f"jsonpath={paths}")
    assert images.split() == ["agnhost:2.9"] * 7

    await kubectl("rollout", "undo", "deployment/demo")
    await kubectl("rollout", "status", "deployment/demo", "--timeout=90s")
    history = await kubectl("rollout", "history", "deployment/demo")
    assert re.findall(r"^(\d+)\s", history, re.MULTILINE) == ["2", "3"]

    told = await kubectl("describe", "deployment", "demo")
    assert re.search(r"Replicas:\s+7 desired \| 7 updated \| 7 total \| 7 available", told)
    assert re.search(r"NewReplicaSet:\s+demo-\w+ \(7/7 replicas created\)", told)
    assert re.search(r"Progressing\s+True\s+NewReplicaSetAvailable", told)
    assert "ScalingReplicaSet" in told

    await kubectl("delete", "deployment", "demo", "--timeout=90s")
    await lab.until(lambda: not lab.pods)


async def test_a_daemon_set_rolls_out(kubectl: Kubectl, lab: Lab) -> None:
    """One pod comes to each node, and a new image to each of them in turn."""
    await kubectl("apply", "-f", "-", stdin=COLLECTOR)
    await kubectl("rollout", "status", "daemonset/collector", "--timeout=90s")
    row = (await kubectl("get", "daemonset", "collector", "--no-headers")).split()
    assert row[1:6] == ["4", "4", "4", "4", "4"]
    await kubectl("set", "image", "daemonset/collector", "main=collector:2")
    rolled = await kubectl("rollout", "status", "daemonset/collector", "--timeout=90s")
    assert rolled.splitlines()[-1] == 'daemon set "collector" successfully rolled out'
    nodes = sorted(pod.spec.node_name for pod in lab.pods if pod.is_active)
    assert nodes == ["a1", "a2", "b1", "b2"]
