"""Probe pods: their manifest, their script, their logs, and their end."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import msgspec
import pytest
from msgspec.structs import replace

from keepclose.advise.inventory import Inventory
from keepclose.cli.verify.probing import count_answers, name_endpoints
from keepclose.flows.probe import (
    ADDRESS_VARIABLE,
    CONNECTIONS_VARIABLE,
    MAX_ANSWER_CHARACTERS,
    MAX_LOG_BYTES,
    PORT_VARIABLE,
    PROBE_LABEL,
    PROBE_SCRIPT,
    ProbedEndpoint,
    ProbeError,
    ProbeLog,
    ProbePlace,
    ProbeTarget,
    condense_answer,
    probe_pod,
    run_probes,
)
from keepclose.kube.client import Client
from keepclose.kube.errors import BadRequest, ConnectionLost, Forbidden
from keepclose.kube.requests import PODS
from keepclose.kube.transport.transport import ApiRequest
from keepclose.lab.kubelet.probes import LabProbe
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.pods import ContainerSpec
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import HOST, Answer, FakeResponse, status_of
from support import builders

TARGET = ProbeTarget(NamespacedName("shop", "web"), "http", "10.96.0.10", 80)
ENDPOINTS = {name: ProbedEndpoint("web-1", "n1", "zone-a") for name in ("web-1", "10.0.0.1")} | {
    name: ProbedEndpoint("web-2", "n3", "zone-b") for name in ("web-2", "10.0.0.2")
}
NETCAT = f"""\
#!{sys.executable}
import socket, sys
connected = socket.create_connection((sys.argv[-2], int(sys.argv[-1])), 5)
connected.sendall(sys.stdin.buffer.read())
connected.shutdown(socket.SHUT_WR)
while data := connected.recv(4096):
    sys.stdout.buffer.write(data)
"""


def test_answers_name_endpoints() -> None:
    """An answer belongs to the endpoint whose name or address is a word of it."""
    log = ProbeLog(
        ProbePlace("zone-a"),
        "n1",
        "answer HTTP 200 web-1\nanswer host 10.0.0.2 \nanswer web-10\nfailed\n"
        "answer web-1 web-2\nnoise\n\n",
    )
    flows, unknown = count_answers([log], TARGET, ENDPOINTS, zones={"n1": "zone-a"})
    counted = {
        (key.client_zone, key.endpoint_zone, key.endpoint): counts.connections
        for key, counts in flows
    }
    assert counted == {
        ("zone-a", "zone-a", "shop/web-1"): 1,
        ("zone-a", "zone-b", "shop/web-2"): 1,
        ("zone-a", "(none)", ""): 1,
    }
    assert unknown == 2
    assert flows.total().unanswered == 1


def test_a_name_that_endpoints_share_identifies_none() -> None:
    """The host name of a Deployment is that of all its pods; their own names still tell them."""
    endpoints = [
        replace(
            builders.endpoint(
                f"10.0.0.{number}", zone=zone, node_name=f"n{number}", pod_name=f"web-{number}"
            ),
            hostname="web",
        )
        for number, zone in ((1, "zone-a"), (2, "zone-b"))
    ]
    service = builders.service()
    inventory = Inventory(slices={service.key: (builders.endpoint_slice(*endpoints),)})
    named = name_endpoints(inventory, service)
    assert {name: endpoint.zone for name, endpoint in named.items()} == {
        "web-1": "zone-a",
        "10.0.0.1": "zone-a",
        "web-2": "zone-b",
        "10.0.0.2": "zone-b",
    }


def test_nothing_logged() -> None:
    """An empty log gives no flows."""
    flows, unknown = count_answers(
        [ProbeLog(ProbePlace("zone-a"), "", "")], TARGET, ENDPOINTS, zones={}
    )
    assert (len(flows), unknown) == (0, 0)


def test_manifest_by_zone_and_node() -> None:
    """A pod of a zone is scheduled there, one of a node runs there whatever its taints."""
    by_zone = probe_pod(TARGET, ProbePlace("zone-a"), name="p", run="r", image="i", connections=7)
    assert by_zone["spec"]["nodeSelector"] == {"topology.kubernetes.io/zone": "zone-a"}
    assert "nodeName" not in by_zone["spec"]
    by_node = probe_pod(
        TARGET, ProbePlace("zone-a", "n2"), name="p", run="r", image="i", connections=7
    )
    assert by_node["spec"]["nodeName"] == "n2"
    assert "nodeSelector" not in by_node["spec"]
    (container,) = by_node["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"name": CONNECTIONS_VARIABLE, "value": "7"} in container["env"]


@pytest.mark.parametrize("timeout_s", [20.0, 3599.5])
def test_pods_may_run_as_long_as_the_probe_waits(timeout_s: float) -> None:
    """No kubelet ends a pod before the command stops waiting for it."""
    manifest = probe_pod(
        TARGET,
        ProbePlace("zone-a"),
        name="p",
        run="r",
        image="i",
        connections=7,
        timeout_s=timeout_s,
    )
    assert manifest["spec"]["activeDeadlineSeconds"] > timeout_s


def test_missing_connections_are_noted() -> None:
    """A log with fewer lines than connections is no silent loss."""
    answers = "answer web-1\n" * 30 + "answer nothing\nfailed\n"
    logs = [
        ProbeLog(ProbePlace("zone-a"), "n1", answers),
        ProbeLog(ProbePlace("zone-b"), "n3", answers + "failed\n" * 68),
    ]
    flows, _ = count_answers(logs, TARGET, ENDPOINTS, zones={}, connections=100)
    assert flows.notes == ["the probe pod of zone-a logged 32 of 100 connections"]


def test_a_full_log_is_noted() -> None:
    """Long answers fill the log before all connections are made, and the reason is given."""
    line = f"answer web-1{' ' * MAX_ANSWER_CHARACTERS}"[: MAX_ANSWER_CHARACTERS + 7] + "\n"
    log = ProbeLog(ProbePlace("zone-a"), "n1", line * (MAX_LOG_BYTES // len(line)))
    flows, _ = count_answers([log], TARGET, ENDPOINTS, zones={}, connections=10_000)
    assert flows.notes == [
        "the probe pod of zone-a logged 2,040 of 10,000 connections, as its log was full"
    ]


def test_the_script_stops_when_its_log_is_full(tmp_path: Path) -> None:
    """The last line of the script ends within what is read of a log."""
    netcat = tmp_path / "nc"
    netcat.write_text(f"#!/bin/sh\nhead -c {2 * MAX_ANSWER_CHARACTERS} /dev/zero | tr '\\0' x\n")
    netcat.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        ADDRESS_VARIABLE: "127.0.0.1",
        PORT_VARIABLE: "80",
        CONNECTIONS_VARIABLE: "50",
    }
    shell = shutil.which("sh")
    assert shell is not None
    # Of the limit of a log only the last lines are left: connecting 2,000 times takes long.
    nearly_full = MAX_LOG_BYTES - 20 * (MAX_ANSWER_CHARACTERS + 8)
    script = PROBE_SCRIPT.replace("size=0", f"size={nearly_full}")
    ended = subprocess.run(
        [shell, "-c", script], env=env, capture_output=True, check=True, timeout=60
    )
    lines = ended.stdout.splitlines(keepends=True)
    assert len(lines) == 19
    assert nearly_full + len(ended.stdout) <= MAX_LOG_BYTES


@pytest.mark.parametrize(
    ("tools", "want"),
    [
        pytest.param((), "lacks nc head tr\n", id="a shell alone"),
        pytest.param(("head", "tr"), "lacks nc\n", id="no netcat"),
        pytest.param(("nc", "tr"), "lacks head\n", id="no head"),
    ],
)
def test_an_image_without_tools(tools: tuple[str, ...], want: str, tmp_path: Path) -> None:
    """The script names what its image lacks, and logs no failed connection."""
    for tool in tools:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    shell = shutil.which("sh")
    assert shell is not None
    env = {
        "PATH": str(tmp_path),
        ADDRESS_VARIABLE: "127.0.0.1",
        PORT_VARIABLE: "80",
        CONNECTIONS_VARIABLE: "2",
    }
    ended = subprocess.run(
        [shell, "-c", PROBE_SCRIPT], env=env, capture_output=True, check=False, timeout=60
    )
    assert (ended.stdout.decode(), ended.returncode) == (want, 3)


class _EndedPods(FakeCluster):
    """A cluster whose probe pods have all ended."""

    def __init__(self, clock: FakeClock, status: JsonObject, log: str | None) -> None:
        super().__init__(clock)
        self._status = status
        self._log = log

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer one request; without a log as a kubelet does that has no container."""
        if request.method == "GET" and request.path.endswith("/log"):
            document = status_of(400, "BadRequest", "container not found")
            body = msgspec.json.encode(document) if self._log is None else self._log.encode()
            self.answer_next(Answer(400 if self._log is None else 200, (body,)))
        elif request.method == "GET":
            pod = {"spec": {"nodeName": "n1"}, "status": self._status}
            self.answer_next(Answer(200, (msgspec.json.encode(pod),)))
        return await super().send(request)


async def _run_ended(status: JsonObject, log: str | None) -> list[ProbeLog]:
    clock = FakeClock()
    cluster = _EndedPods(clock, status, log)
    async with Client(cluster, clock=clock) as client:
        try:
            return await run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a")],
                run="r1",
                image="alpine",
                connections=2,
                clock=clock,
            )
        finally:
            assert cluster.objects(PODS) == {}


def _terminated(**fields: object) -> JsonObject:
    return {"phase": "Failed", "containerStatuses": [{"state": {"terminated": fields}}]}


@pytest.mark.parametrize(
    ("status", "log", "words"),
    [
        pytest.param(
            _terminated(reason="Error", exitCode=3),
            "lacks nc tr\n",
            "the image alpine has no nc, tr, so the probe pod of zone-a connected to nothing",
            id="no tools",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"},
            "failed\n",
            "failed after 1 of 2 connections (DeadlineExceeded: too long)",
            id="deadline",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted"},
            None,
            "failed after 0 of 2 connections (Evicted)",
            id="evicted, without a log",
        ),
        pytest.param(
            _terminated(reason="OOMKilled", exitCode=137),
            "answer web-1\n",
            "(OOMKilled: exit code 137)",
            id="out of memory",
        ),
        pytest.param(
            _terminated(reason="StartError", message="sh: not found", exitCode=128),
            "",
            "(StartError: sh: not found)",
            id="no shell",
        ),
        pytest.param({"phase": "Failed"}, "", "(its kubelet gives no reason)", id="no reason"),
    ],
)
async def test_a_pod_that_fails(status: JsonObject, log: str | None, words: str) -> None:
    """A failed pod is no failed connection of the Service: its reason is given."""
    with pytest.raises(ProbeError) as raised:
        await _run_ended(status, log)
    assert words in str(raised.value)
    assert "--probe-image" in raised.value.fix


async def test_a_pod_that_fails_after_its_connections() -> None:
    """A log with all connections counts, whatever became of the pod."""
    text = "failed\nanswer web-1\n"
    (log,) = await _run_ended({"phase": "Failed", "reason": "Evicted"}, text)
    assert log == ProbeLog(ProbePlace("zone-a"), "n1", text)


async def test_a_log_that_cannot_be_read() -> None:
    """The error of the server is that of the command if the pod itself is fine."""
    with pytest.raises(BadRequest):
        await _run_ended({"phase": "Succeeded"}, None)


async def _serving(answer: bytes, use: Callable[[int], bytes]) -> bytes:
    """Return what a client gets that connects to a server of this answer."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await asyncio.to_thread(use, port)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nweb-1 n1 <zone-a>\n", id="HTTP"),
        pytest.param(b"\x00\xff binary web-1", id="bytes that are no text"),
        pytest.param(b"", id="no answer"),
    ],
)
async def test_script_and_lab_log_the_same(answer: bytes, tmp_path: Path) -> None:
    """The script of the manifest and the probe of a lab write the same lines."""
    shell = shutil.which("sh")
    assert shell is not None
    netcat = tmp_path / "nc"
    netcat.write_text(NETCAT)
    netcat.chmod(0o755)

    def by_script(port: int) -> bytes:
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            ADDRESS_VARIABLE: "127.0.0.1",
            PORT_VARIABLE: str(port),
            CONNECTIONS_VARIABLE: "2",
        }
        ended = subprocess.run(
            [shell, "-c", PROBE_SCRIPT], env=env, capture_output=True, check=True, timeout=60
        )
        return ended.stdout

    def in_lab(port: int) -> bytes:
        return LabProbe("127.0.0.1", port, 2).run(Event()).encode()

    want = f"{condense_answer(answer)}\n" * 2
    assert (await _serving(answer, by_script)).decode() == want
    assert (await _serving(answer, in_lab)).decode() == want


@pytest.mark.parametrize(
    "value", ["", "-1", "1e9", "x", "99999999999999999999", "\N{ARABIC-INDIC DIGIT FIVE}"]
)
def test_bad_variables(value: str) -> None:
    """A container with variables that are no numbers connects to nothing."""
    env = [{"name": name, "value": value} for name in (PORT_VARIABLE, CONNECTIONS_VARIABLE)]
    spec = msgspec.convert({"name": "c", "image": "i", "env": env}, ContainerSpec)
    probe = LabProbe.of(spec)
    assert (probe.address, probe.port, probe.connections) == ("", 0, 0)


async def test_pods_that_never_run() -> None:
    """Pods that stay Pending are reported with the reason after the time, and deleted."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    async with Client(cluster, clock=clock) as client:
        task = asyncio.create_task(
            run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a"), ProbePlace("zone-b", "n2")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
                timeout_s=20.0,
            )
        )
        await clock.run_until(lambda: len(cluster.objects(PODS)) == 2)
        pods = cluster.objects(PODS)
        assert {pod.metadata.labels[PROBE_LABEL] for pod in pods.values()} == {"r1"}
        assert {key.namespace for key in pods} == {"shop"}
        await clock.run_until(task.done)
    with pytest.raises(ProbeError) as raised:
        task.result()
    assert "2 of 2 probe pods did not end within 20 s: that of zone-a is Pending" in str(
        raised.value
    )
    assert "no scheduler has given it a node" in str(raised.value)
    assert "--probe-image" in raised.value.fix
    assert cluster.objects(PODS) == {}


async def test_pods_are_deleted_when_the_command_is_stopped() -> None:
    """A command that is cancelled while it waits leaves no pod behind."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    async with Client(cluster, clock=clock) as client:
        task = asyncio.create_task(
            run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
            )
        )
        await clock.run_until(lambda: clock.sleepers > 0 and bool(cluster.objects(PODS)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cluster.objects(PODS) == {}


class _SlowCluster(FakeCluster):
    """Creates pods when a test lets it, and never answers deletes if so asked."""

    def __init__(self, clock: FakeClock, *, answers_deletes: bool = True) -> None:
        super().__init__(clock)
        self.creates = asyncio.Event()
        self._answers_deletes = answers_deletes

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer one request, late."""
        if request.method == "POST":
            await self.creates.wait()
        if request.method == "DELETE" and not self._answers_deletes:
            await asyncio.get_running_loop().create_future()
        return await super().send(request)


async def test_a_pod_that_is_being_created_when_the_command_is_stopped() -> None:
    """The delete waits for the create, since it would not find the pod before."""
    clock = FakeClock()
    cluster = _SlowCluster(clock)
    async with Client(cluster, clock=clock) as client:
        task = asyncio.create_task(
            run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a"), ProbePlace("zone-b")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
            )
        )
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        cluster.creates.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [request.method for request in cluster.requests] == ["POST", "DELETE"]
    assert cluster.objects(PODS) == {}


async def test_a_server_that_never_answers_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is stopped ends all the same, and names the pods."""
    monkeypatch.setattr("keepclose.flows.probe._STOP_S", 0.01)
    clock = FakeClock()
    cluster = _SlowCluster(clock, answers_deletes=False)
    cluster.creates.set()
    left: list[str] = []
    async with Client(cluster, clock=clock) as client:
        task = asyncio.create_task(
            run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
                on_left=left.extend,
            )
        )
        await clock.run_until(lambda: clock.sleepers > 0 and bool(cluster.objects(PODS)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):
                await task
    assert left == ["keepclose-probe-r1-0"]


async def test_a_pod_that_is_deleted_by_others() -> None:
    """A probe pod that disappears ends the probe, and the other pods with it."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    async with Client(cluster, clock=clock) as client:
        task = asyncio.create_task(
            run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a"), ProbePlace("zone-b")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
            )
        )
        await clock.run_until(lambda: clock.sleepers > 0 and len(cluster.objects(PODS)) == 2)
        cluster.delete(PODS, "keepclose-probe-r1-1", namespace="shop")
        await clock.run_until(task.done)
    with pytest.raises(ProbeError, match="probe pod of zone-b was deleted"):
        task.result()
    assert cluster.objects(PODS) == {}


class _FaultyCluster(FakeCluster):
    """Loses the connection at chosen deletes."""

    def __init__(self, clock: FakeClock, *, lost: set[str]) -> None:
        super().__init__(clock)
        self._lost = lost

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer one request, unless it is a delete that is to fail."""
        if request.method == "DELETE" and request.path.rpartition("/")[2] in self._lost:
            raise ConnectionLost(HOST, "reset by peer")
        return await super().send(request)


async def test_a_delete_that_fails() -> None:
    """A lost connection at one delete skips no other pod, hides no error, and is reported."""
    clock = FakeClock()
    cluster = _FaultyCluster(clock, lost={"keepclose-probe-r1-0"})
    left: list[str] = []
    async with Client(cluster, clock=clock) as client:
        task = asyncio.create_task(
            run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a"), ProbePlace("zone-b"), ProbePlace("zone-c")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
                timeout_s=20.0,
                on_left=left.extend,
            )
        )
        await clock.run_until(task.done)
    with pytest.raises(ProbeError, match="3 of 3 probe pods did not end"):
        task.result()
    assert [key.name for key in cluster.objects(PODS)] == ["keepclose-probe-r1-0"]
    assert left == ["keepclose-probe-r1-0"]


async def test_a_create_whose_answer_is_lost() -> None:
    """A pod that the server created without an answer is deleted, and the error is that one."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.lost_answers = 1
    async with Client(cluster, clock=clock) as client:
        with pytest.raises(ConnectionLost):
            await run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a"), ProbePlace("zone-b")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
            )
    assert cluster.objects(PODS) == {}
    assert [request.method for request in cluster.requests] == ["POST", "DELETE"]


async def test_a_create_that_is_forbidden() -> None:
    """A pod that the server refused is not deleted and not reported as left behind."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.answer_next(Answer(403, (msgspec.json.encode(status_of(403, "Forbidden", "no")),)))
    left: list[str] = []
    async with Client(cluster, clock=clock) as client:
        with pytest.raises(Forbidden):
            await run_probes(
                client,
                TARGET,
                [ProbePlace("zone-a")],
                run="r1",
                image="busybox",
                connections=5,
                clock=clock,
                on_left=left.extend,
            )
    assert [request.method for request in cluster.requests] == ["POST"]
    assert left == []
