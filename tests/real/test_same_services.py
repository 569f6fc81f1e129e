"""Random writes of Services get the same answers from a real kube-apiserver and from ours.

Each sequence works on two Services that want the same few addresses and node ports, so that they
get into each other's way on both sides alike. What a server chooses itself is masked.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

from support.real.embedded import embedded_server
from support.real.programs import real_control_plane

JsonObject = dict[str, Any]

WRITES = 5
JSON = "application/json"
MERGE = "application/merge-patch+json"
SERVICES = "/api/v1/namespaces/default/services"
HINTS = "service.kubernetes.io/topology-aware-hints"
MODE = "service.kubernetes.io/topology-mode"
SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
# NB: both servers choose from the upper part of their ranges first, so they never take these.
NAMED = frozenset({"10.96.0.50", "10.96.0.51", "fd00:96::50", "fd00:96::51"})
NODE_PORTS = (30001, 30002, 30003)
TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
# Of each field values that are fine somewhere, then values that never are.
FIELDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "clusterIP": (
        ("10.96.0.50", "10.96.0.51", "None", "None", "", "fd00:96::50"),
        ("x", "192.0.2.1", "010.096.000.050"),
    ),
    "clusterIPs": (
        (
            ["10.96.0.50"],
            ["10.96.0.50", "fd00:96::50"],
            ["fd00:96::51", "10.96.0.51"],
            ["None"],
            [],
        ),
        (
            ["10.96.0.50", "10.96.0.51"],
            ["10.96.0.50", "fd00:96::50", "10.96.0.51"],
            ["None", "10.96.0.50"],
            ["010.096.000.050"],
        ),
    ),
    "ipFamilies": (
        (["IPv4"], ["IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"], []),
        (["IPv4", "IPv4"], ["IPv5"]),
    ),
    "ipFamilyPolicy": (
        ("SingleStack", "PreferDualStack", "RequireDualStack", "PreferDualStack", None),
        ("Odd",),
    ),
    "selector": ((None, {}, {"app": "web"}), ({"a b": "c"},)),
    "externalName": (("example.com", "example.com.", ""), ("Bad_Name",)),
    "externalIPs": ((["192.0.2.1"], ["192.0.2.2", "2001:DB8::1"], []), (["127.0.0.1"], ["x"])),
    "sessionAffinity": (("None", "ClientIP", "ClientIP", ""), ("Odd",)),
    "sessionAffinityConfig": (
        ({"clientIP": {"timeoutSeconds": 60}}, {"clientIP": {}}, None),
        ({"clientIP": {"timeoutSeconds": 0}}, {"clientIP": {"timeoutSeconds": 86401}}),
    ),
    "internalTrafficPolicy": (("Cluster", "Local", None), ("Odd",)),
    "externalTrafficPolicy": (("Cluster", "Local", "Local", ""), ("Odd",)),
    "trafficDistribution": (
        ("PreferClose", "PreferSameZone", "PreferSameNode", None),
        ("Odd", ""),
    ),
    "publishNotReadyAddresses": ((True, False), ()),
}
BALANCER_FIELDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "healthCheckNodePort": ((0, 30003, 30004), (70000,)),
    "allocateLoadBalancerNodePorts": ((True, False, None), ()),
    "loadBalancerClass": (("example.com/lb", "lb", None), ("bad class",)),
    "loadBalancerIP": (("192.0.2.9", "", "x"), ()),
    "loadBalancerSourceRanges": (
        (["10.0.0.0/8"], [" 10.0.0.0/8 "], []),
        (["10.0.0.1/8", "2001:DB8::/32"], ["x"]),
    ),
}
BAD = 0.06
BAD_PORTS: tuple[JsonObject, ...] = (
    {"port": 0},
    {"port": 80, "name": "p0"},
    {"name": ""},
    {"name": "Bad_Name"},
    {"protocol": "Odd"},
    {"targetPort": 70000},
    {"targetPort": "bad name"},
    {"appProtocol": "bad one"},
    {"nodePort": 99},
)
ANNOTATIONS: dict[str, tuple[Any, ...]] = {
    HINTS: ("Auto", "Disabled", None),
    MODE: ("Auto", "Auto", "Odd", None),
    SOURCE_RANGES: ("10.0.0.0/8, 192.0.2.0/24", "x", None),
}
INGRESSES: tuple[list[JsonObject], ...] = (
    [],
    [{"ip": "192.0.2.7"}],
    [{"ip": "192.0.2.7", "ipMode": "Proxy"}, {"hostname": "lb.example.com"}],
    [{"ip": "192.000.2.7"}],
    [{"ip": "2001:DB8::7"}],
    [{"ip": "x", "ipMode": "Odd"}, {"hostname": "Bad_Name", "ipMode": "VIP"}],
    [{"hostname": "192.0.2.8", "ports": [{"port": 80, "protocol": "TCP"}]}],
)


class Write(NamedTuple):
    """One write; `changed` is merged into what each server has, and the whole sent."""

    method: str
    path: str
    body: JsonObject | None = None
    content: str = JSON
    changed: bool = False


class Side:
    """One server, asked over one connection."""

    def __init__(self, url: str, token: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        place = urlsplit(url)
        self.connection = http.client.HTTPSConnection(
            place.hostname or "", place.port, timeout=20, context=context
        )
        self.token = token

    def ask(
        self, method: str, path: str, body: JsonObject | None = None, content: str = JSON
    ) -> tuple[int, Any, list[str]]:
        """Return code, body and warnings of an answer."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": content,
            "Accept": JSON,
            "User-Agent": "tester/1",
        }
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, headers)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers.get_all("Warning") or []

    def follow(self, write: Write) -> tuple[int, Any, list[str]]:
        """Send the write and return what came back."""
        body = write.body
        if write.changed and body is not None:
            code, stored, _ = self.ask("GET", write.path)
            if code == 200:
                body = merged(stored, body)
        return self.ask(write.method, write.path, body, write.content)


@contextlib.contextmanager
def both_sides(directory: Any, cidrs: str) -> Iterator[tuple[Side, Side]]:
    """Run both servers with the same ranges of cluster IPs."""
    directory.joinpath("real").mkdir()
    flag = f"--service-cluster-ip-range={cidrs}"
    with (
        real_control_plane(directory / "real", flag) as plane,
        embedded_server(directory / "ours", "--no-controllers", flag) as embedded,
    ):
        user = yaml.safe_load(embedded.kubeconfig.read_text())["users"][0]["user"]
        real, ours = Side(plane.url, plane.token), Side(embedded.url, user["token"])
        with contextlib.closing(real.connection), contextlib.closing(ours.connection):
            yield real, ours


def merged(stored: Any, change: Any) -> Any:
    """Return the stored value with a merge patch in it."""
    if not isinstance(change, dict) or not isinstance(stored, dict):
        return change
    kept = dict(stored)
    for key, value in change.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = merged(kept.get(key), value)
    return kept


def some_ports(random: Random, *, node_ports: bool) -> list[JsonObject]:
    """Return ports, now and then bad ones."""
    ports: list[JsonObject] = []
    for place in range(random.choice((1, 1, 1, 2, 2, 3))):
        port: JsonObject = {"port": random.choice((80, 443, 53)) + place, "name": f"p{place}"}
        if random.random() < 0.3:
            port["protocol"] = random.choice(("TCP", "UDP", "SCTP"))
        if random.random() < 0.3:
            port["targetPort"] = random.choice((8080, "web", 0, ""))
        if random.random() < 0.2:
            port["appProtocol"] = random.choice(("http", "kubernetes.io/h2c"))
        if node_ports and random.random() < 0.4:
            port["nodePort"] = random.choice((*NODE_PORTS, 0))
        if random.random() < BAD:
            port |= random.choice(BAD_PORTS)
        ports.append(port)
    return [] if random.random() < BAD else ports


def some_values(
    random: Random, fields: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]], share: float
) -> JsonObject:
    """Return some of the fields, now and then with bad values."""
    return {
        name: deepcopy(random.choice(bad if bad and random.random() < BAD else good))
        for name, (good, bad) in fields.items()
        if random.random() < share
    }


def some_change(random: Random, *, share: float, type_now: str) -> JsonObject:
    """Return some fields of a Service that is of the given type."""
    spec = some_values(random, FIELDS, share)
    if random.random() < 0.3:
        spec["type"] = "Odd" if random.random() < BAD else random.choice((*TYPES, ""))
    kind = spec.get("type", type_now)
    if kind == "LoadBalancer" or random.random() < BAD:
        spec |= some_values(random, BALANCER_FIELDS, max(share, 0.2))
    if kind == "ExternalName" and random.random() < 0.8:
        for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            spec.pop(name, None)
        spec.setdefault("externalName", "example.com")
    if spec.get("clusterIPs") and random.random() < 0.8:
        spec["clusterIP"] = spec["clusterIPs"][0]
    if random.random() < 0.3:
        # NB: an ExternalName Service may carry node ports that it was never given. A real server
        # lets others' ports go with them, which nobody should rely on, so such are not written.
        node_ports = kind in ("NodePort", "LoadBalancer")
        spec["ports"] = some_ports(random, node_ports=node_ports or random.random() < BAD / 2)
    change: JsonObject = {"spec": spec}
    annotations = {
        key: random.choice(values)
        for key, values in ANNOTATIONS.items()
        if random.random() < share / 2
    }
    if annotations:
        change["metadata"] = {"annotations": annotations}
    return change


def some_service(random: Random, name: str) -> JsonObject:
    """Return a whole Service."""
    kind = random.choice(TYPES)
    change = some_change(random, share=random.choice((0.03, 0.1, 0.2)), type_now=kind)
    spec = {"type": kind, "selector": {"app": "web"}, **change["spec"]}
    if spec["type"] == "ExternalName":
        spec.setdefault("externalName", "example.com")
    node_ports = spec["type"] in ("NodePort", "LoadBalancer")
    spec.setdefault("ports", some_ports(random, node_ports=node_ports))
    metadata = {"name": name, **change.get("metadata", {})}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def some_write(random: Random, name: str, *, type_now: str) -> Write:
    """Return a write to the Service with the name, which is there or not."""
    path = f"{SERVICES}/{name}"
    kind = random.random()
    if kind < 0.1:
        return Write("POST", SERVICES, some_service(random, name))
    if kind < 0.25:
        return Write("PUT", path, some_service(random, name))
    if kind < 0.8:
        share = random.choice((0.02, 0.06, 0.15))
        change = some_change(random, share=share, type_now=type_now)
        if kind < 0.45:
            return Write("PUT", path, change, changed=True)
        return Write("PATCH", path, change, MERGE)
    if kind < 0.95:
        ingress = deepcopy(random.choice(INGRESSES))
        return Write(
            "PATCH", f"{path}/status", {"status": {"loadBalancer": {"ingress": ingress}}}, MERGE
        )
    return Write("DELETE", path)


def masked(value: Any) -> Any:
    """Return the value without what each server chooses for itself."""
    if isinstance(value, dict):
        found = {key: _masked_member(key, item) for key, item in value.items()}
        if "managedFields" in found:
            # The order follows times, which are masked.
            found["managedFields"].sort(key=lambda one: one.get("subresource", ""))
        if found.get("spec", {}).get("type") == "ExternalName":
            # A real server stores the policy although it never shows it, so it can tell when the
            # owner of what nobody sees gives it up. Nobody can make use of that.
            for entry in found["metadata"].get("managedFields", []):
                entry["fieldsV1"].get("f:spec", {}).pop("f:internalTrafficPolicy", None)
        return found
    if isinstance(value, list):
        return [masked(item) for item in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_member(key: str, value: Any) -> Any:
    if key in ("nodePort", "healthCheckNodePort") and value not in (0, 30004, *NODE_PORTS):
        return "a port"
    return "a version" if key == "resourceVersion" else masked(value)


_VOLATILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
)
_ADDRESS = re.compile(r"\b10\.96\.\d+\.\d+|\bfd00:96::[0-9a-f]*")
_PORT = re.compile(r"\b3[0-2]\d{3}\b")


def _masked_text(text: str) -> str:
    # Which of two addresses is tried first is left to chance by a real server.
    text = re.sub(r'(\["[^"]*","[^"]*"\]: failed to allocate) .*', r"\1", text)
    text = _ADDRESS.sub(lambda found: found[0] if found[0] in NAMED else "an address", text)
    text = _PORT.sub(
        lambda found: found[0] if int(found[0]) in (*NODE_PORTS, 30004) else "a port", text
    )
    return _VOLATILE.sub("-", text)


def compare(seed: int, real: Side, ours: Side) -> Iterator[tuple[Write, Any, Any]]:
    """Yield each write of a sequence with both answers, and leave nothing behind."""
    random = Random(seed)
    names = ("one", "two")
    writes = [Write("POST", SERVICES, some_service(random, name)) for name in names]
    for step in range(len(writes) + WRITES):
        name = random.choice(names)
        # NB: a real server starts an update from its cache, which may lag, and warns of what it
        # finds there. A list waits for the cache.
        _, listed, _ = real.ask("GET", SERVICES)
        types = {one["metadata"]["name"]: one["spec"]["type"] for one in listed["items"]}
        type_now = types.get(name, "")
        write = writes[step] if step < len(writes) else some_write(random, name, type_now=type_now)
        yield write, _answer(real, write), _answer(ours, write)
    real.ask("GET", SERVICES)
    for name in names:
        write = Write("DELETE", f"{SERVICES}/{name}")
        yield write, _answer(real, write), _answer(ours, write)


def _answer(side: Side, write: Write) -> tuple[int, Any, list[str]]:
    code, body, warnings = side.follow(write)
    spec = body.get("spec", {})
    if spec.get("type") == "ExternalName" and write.path.endswith("/status"):
        # Only in answers to updates of the status a real server shows the policy it stores.
        spec.pop("internalTrafficPolicy", None)
    return code, masked(body), masked(warnings)


@pytest.mark.parametrize(
    ("cidrs", "seeds"),
    [
        pytest.param("10.96.0.0/16", range(150), id="one family"),
        pytest.param("10.96.0.0/16,fd00:96::/112", range(150, 300), id="two families"),
    ],
)
def test_the_same_services(cidrs: str, seeds: range, tmp_path: Any) -> None:
    """Codes, objects with their owners of fields, causes in their order and warnings agree."""
    with both_sides(tmp_path, cidrs) as (real, ours):
        for seed in seeds:
            for write, want, got in compare(seed, real, ours):
                assert got == want, f"sequence {seed}: {write}"
