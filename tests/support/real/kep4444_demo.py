"""The Service and Deployment of KEP-4444's manual test."""

from __future__ import annotations

from support.real.labs_running import (
    JsonObject,
    RunningLab,
    pods_of_nodes,
    until_equal,
    zones_of_zones,
)

# As it stands there.
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
"""  # noqa: W291 - so does the blank


LATE = """
apiVersion: v1
kind: Service
metadata: {name: late-svc}
spec:
  trafficDistribution: PreferClose
  ports: [{port: 80, targetPort: 8080}]
  selector: {app: demo-app}
"""


GATE = "ServiceTrafficDistribution"


A, B = "zone-a", "zone-b"


NODES = {"n1": A, "n2": A, "n3": B, "n4": B}


class Demo:
    """The Service and its pods, which stay the same all the time."""

    def __init__(self, lab: RunningLab) -> None:
        self.lab = lab
        self.pods = lab.pods("demo-app")
        self.hinted = {pod: NODES[node] for pod, node in self.pods.items()}
        self.bare = dict.fromkeys(self.pods, "none")

    def look_at_rules(self) -> dict[str, set[str]]:
        """Return the pods to which the rules of a node in each zone lead."""
        items = self.lab.get("pods", "-l", "app=demo-app")["items"]
        names = {one["status"]["podIP"]: one["metadata"]["name"] for one in items}
        return {
            node: {names[address] for address in self.lab.rules(node, "demo-svc")}
            for node in ("n1", "n3")
        }

    def until_close(self) -> None:
        """Return when every node routes to its zone alone, by its rules and by connections."""
        want = {
            node: {pod for pod, hint in self.hinted.items() if hint == zone}
            for node, zone in NODES.items()
        }
        self._until(self.hinted, want, {A: {A}, B: {B}})

    def until_anywhere(self, hints: dict[str, str]) -> None:
        """Return when every node routes to all pods, though there are these hints."""
        self._until(hints, {node: set(self.pods) for node in NODES}, {A: {A, B}, B: {A, B}})

    def _until(
        self, hints: dict[str, str], pods: dict[str, set[str]], zones: dict[str, set[str]]
    ) -> None:
        until_equal(lambda: self.lab.hints("demo-svc"), hints)
        report = self.lab.until_routed(pods, "demo-svc", by=pods_of_nodes)
        assert zones_of_zones(report) == zones
        until_equal(self.look_at_rules, {node: pods[node] for node in ("n1", "n3")})

    @property
    def field(self) -> str | None:
        """What the Service says."""
        return distribution(self.lab, "demo-svc")


def distribution(lab: RunningLab, service: str) -> str | None:
    """Return the traffic distribution that a Service shows."""
    spec: JsonObject = lab.get("service", service)["spec"]
    return spec.get("trafficDistribution")
