"""Clusters that `keepclose up` runs for tests, used as people use them: by commands alone.

Whatever is asked of such a lab takes its time to come true, so tests look again until it is, for a
minute at most. Every look is a program of its own, which is pause enough between two of them.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.real.programs import program

JsonObject = dict[str, Any]
T = TypeVar("T")
PATIENCE_S = 60.0
_KEEPCLOSE = Path(sys.executable).with_name("keepclose")
_DNAT = re.compile(r"dnat to ([0-9.]+):")
# What `keepclose traffic` says when connections failed or went elsewhere, which it tells as well.
_FOUND = 1


class RunningLab:
    """A lab, kubectl and keepclose for it."""

    def __init__(self, directory: Path, *, zones: int, nodes_per_zone: int) -> None:
        self.directory = directory / "lab"
        self._home = directory
        self._size = [f"--zones={zones}", f"--nodes-per-zone={nodes_per_zone}"]
        self._kubectl = program("kubectl")
        self._nothing = directory / "nothing.yaml"
        self._nothing.touch()

    def up(self, gates: str = "", *, with_demo: bool = False) -> None:
        """Start the lab, or go on with what an earlier start left; an empty one may get a demo."""
        self.keepclose(
            "up",
            "--detach",
            "--port=0",
            *self._size,
            f"--feature-gates={gates}",
            *(() if with_demo else (f"--manifest={self._nothing}",)),
        )
        state: JsonObject = json.loads((self.directory / "lab.json").read_text())
        if not state["packets"]:
            pytest.skip("no packets can be sent here")

    def down(self) -> None:
        """Stop the lab; its objects are kept."""
        self.keepclose("down")

    def keepclose(self, *arguments: str) -> str:
        """Return what a command of keepclose prints that must succeed."""
        done = self._run_keepclose(*arguments)
        assert done.returncode == 0, f"keepclose {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Return what a command of kubectl prints that must succeed."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self.directory / 'kubeconfig'}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
            env={"HOME": str(self._home), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def get(self, *arguments: str) -> JsonObject:
        """Return an object, or a list of them."""
        found: JsonObject = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def apply(self, *manifests: str) -> None:
        """Apply manifests."""
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(manifests))

    def rolled_out(self, workload: str) -> None:
        """Return when all pods of a workload are there and ready."""
        self.kubectl("rollout", "status", workload, f"--timeout={PATIENCE_S:g}s")

    def scale(self, deployment: str, count: int) -> None:
        """Return when a Deployment has so many pods, all ready."""
        self.kubectl("scale", f"deployment/{deployment}", f"--replicas={count}")
        self.rolled_out(f"deployment/{deployment}")

    def slices(self, service: str) -> list[JsonObject]:
        """Return the slices of a Service."""
        found: list[JsonObject] = self.get(
            "endpointslices", "-l", f"kubernetes.io/service-name={service}"
        )["items"]
        return found

    def hints(self, service: str) -> dict[str, str]:
        """Return the hints of ready endpoints by pod: zones, "on" nodes; "none" for no hint."""
        return {
            one["targetRef"]["name"]: _tell_hints(one.get("hints", {}))
            for piece in self.slices(service)
            for one in piece.get("endpoints") or ()
            if one["conditions"]["ready"]
        }

    def pods(self, app: str) -> dict[str, str]:
        """Return the node of each pod of an app that is there to stay."""
        return {
            one["metadata"]["name"]: one["spec"].get("nodeName", "")
            for one in self.get("pods", "-l", f"app={app}")["items"]
            if "deletionTimestamp" not in one["metadata"]
        }

    def rules(self, node: str, service: str) -> set[str]:
        """Return the addresses of endpoints to which the rules of a node for a Service lead.

        A plain Service has elements of a map, of which the chain for its number of endpoints draws
        one; any other has chains of its own.
        """
        text = self.keepclose("lab", "exec", node, "nft", "list", "table", "ip", "kube-proxy")
        chains = re.findall(rf"chain endpoint-\w+-default/{service}/[^}}]*", text)
        own = {address for chain in chains for address in _DNAT.findall(chain)}
        cluster_ip = re.escape(self.get("service", service)["spec"]["clusterIP"])
        drawn = re.search(rf"{cluster_ip} \. tcp \. \d+ : goto pool/tcp/(\d+)", text)
        element = rf"{cluster_ip} \. tcp \. \d+ \. (\d+) [^:]*: ([0-9.]+) \."
        pooled = {
            address
            for number, address in re.findall(element, text)
            if drawn is not None and int(number) < int(drawn[1])
        }
        return own | pooled

    def traffic(self, service: str, *arguments: str, connections: int = 200) -> JsonObject:
        """Return the report of so many real connections from each zone."""
        how = (f"--connections={connections}", "--output=json")
        done = self._run_keepclose("traffic", service, *arguments, *how)
        assert done.returncode in (0, _FOUND), f"keepclose traffic: {done.stderr}{done.stdout}"
        report: JsonObject = json.loads(done.stdout)
        return report

    def until_routed(
        self,
        want: dict[str, set[str]],
        service: str,
        *arguments: str,
        connections: int = 200,
        by: Callable[[JsonObject], dict[str, set[str]]] | None = None,
    ) -> JsonObject:
        """Return a report in which connections went as wanted, as expected, and all arrived.

        `want` and `by` say who answers each source: nodes of nodes, if nothing is said.
        """
        by = by or nodes_of_nodes

        def look() -> JsonObject:
            return self.traffic(service, *arguments, connections=connections)

        return until(look, lambda found: by(found) == want and is_fine(found))

    def _run_keepclose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, *rest = arguments
        where = f"--data-dir={self.directory}"
        # NB: what follows the words of `lab exec` belongs to the command that it runs.
        line = [command, rest.pop(0), where] if command == "lab" else [command, where]
        return subprocess.run(
            [_KEEPCLOSE, *line, *rest],
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
        )


@contextlib.contextmanager
def running_lab(
    tmp_path: Path, zones: int = 2, nodes_per_zone: int = 2, gates: str = ""
) -> Iterator[RunningLab]:
    """Run a lab without any workloads for the time of the block."""
    lab = RunningLab(tmp_path, zones=zones, nodes_per_zone=nodes_per_zone)
    try:
        lab.up(gates)
        yield lab
    finally:
        lab.down()


def until(look: Callable[[], T], is_wanted: Callable[[T], bool]) -> T:
    """Return what a look shows when it is what is wanted; fail with the last after a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = look()
        if is_wanted(found):
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE_S:g} s, but: {json.dumps(found, default=sorted)}")


def until_equal(look: Callable[[], T], want: T) -> None:
    """Return when a look shows what is wanted."""
    until(look, lambda found: found == want)


def is_fine(report: JsonObject) -> bool:
    """Return whether all connections arrived where the decisions say."""
    return bool(report["asExpected"]) and not report["failed"]


def zones_of_zones(report: JsonObject) -> dict[str, set[str]]:
    """Return which zones answered each zone."""
    return {row["from"]: set(row["answered"]) for row in report["rows"]}


def nodes_of_nodes(report: JsonObject) -> dict[str, set[str]]:
    """Return which nodes answered each node; from outside each that was the first."""
    return {row["node"]: set(row["answered"]) for row in report["sources"]}


def pods_of_nodes(report: JsonObject) -> dict[str, set[str]]:
    """Return which pods answered each node; from outside each that was the first."""
    return {row["node"]: set(row["pods"]) for row in report["sources"]}


def _tell_hints(hints: JsonObject) -> str:
    zones = [one["name"] for one in hints.get("forZones") or ()]
    nodes = [one["name"] for one in hints.get("forNodes") or ()]
    words = [*zones, *(f"on {node}" for node in nodes)]
    return " ".join(words) or "none"
