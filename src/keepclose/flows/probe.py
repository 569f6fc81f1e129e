"""Probe pods: open real connections through a Service from a zone or a node, and log the answers.

Where no agent counts flows, short-lived pods do: each opens connections to the cluster IP, one
after the other, writes one line for each into its log and ends. A client cannot see which endpoint
a node chose for it, so the answer must tell: a log line has the words of the answer, and the
endpoint is the one whose pod name or address is among them. Servers that print their host name are
identified; of others only the number of connections is known, and that is said.

Pods are deleted when their logs are read, when the time is up and when the command is stopped, also
those whose creation was not answered. A pod that cannot be deleted is reported; it ends soon after
the time that was allowed.
It needs the rights to create, get and delete pods and to get pods/log, in the Service's namespace.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    ServerError,
    Unauthorized,
)
from keepclose.kube.requests import PODS
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import ZONE_LABEL

PROBE_LABEL: Final = "keepclose.dev/probe"
PROBE_MODE: Final = "keepclose-probe"
PROBE_CONTAINER: Final = "probe"
PROBE_IMAGE: Final = "busybox"
PROBE_TIMEOUT_S: Final = 60.0
"""How long pods may take to be scheduled, to pull their image and to connect."""
ADDRESS_VARIABLE: Final = "KEEPCLOSE_PROBE_ADDRESS"
PORT_VARIABLE: Final = "KEEPCLOSE_PROBE_PORT"
CONNECTIONS_VARIABLE: Final = "KEEPCLOSE_PROBE_CONNECTIONS"
PROBE_CONNECT_S: Final = 3
"""For how long a connection may take, its answer included."""
MAX_ANSWER_CHARACTERS: Final = 2048
MAX_LOG_BYTES: Final = 4 << 20
"""Where a probe stops: kubelets rotate logs of 10 MiB and serve the newest file only."""
MAX_PROBES: Final = 100
_POLL_S: Final = 0.5
_SPARE_S: Final = 60
"""For how long a pod may run beyond its time, so that its kubelet never ends it before verify."""
_STOP_S: Final = 10.0
"""For how long a last create, and then all deletes, may take, so that a stopped command ends."""
_POD_FAILED: Final = "Failed"
_ENDED: Final = ("Succeeded", _POD_FAILED)
ANSWERED: Final = "answer"
FAILED: Final = "failed"
LACKS: Final = "lacks"
"""Begins the only line of a probe whose image has not all tools; their names follow."""
PROBE_TOOLS: Final = ("nc", "head", "tr")
_LINE_OVERHEAD: Final = len(ANSWERED) + 2
FULL_LOG_BYTES: Final = MAX_LOG_BYTES - MAX_ANSWER_CHARACTERS - _LINE_OVERHEAD
_NOT_WORD: Final = re.compile(rb"[^A-Za-z0-9._:-]")

PROBE_SCRIPT: Final = f"""\
lacks=
for tool in {" ".join(PROBE_TOOLS)}; do
  command -v "$tool" >/dev/null 2>&1 || lacks="$lacks $tool"
done
if [ -n "$lacks" ]; then echo "{LACKS}$lacks"; exit 3; fi
i=0
size=0
while [ "$i" -lt "${CONNECTIONS_VARIABLE}" ] && [ "$size" -lt {FULL_LOG_BYTES} ]; do
  i=$((i + 1))
  answer=$(printf 'GET / HTTP/1.0\\r\\nHost: %s\\r\\n\\r\\n' "${ADDRESS_VARIABLE}" |
    nc -w {PROBE_CONNECT_S} "${ADDRESS_VARIABLE}" "${PORT_VARIABLE}" 2>/dev/null |
    head -c {MAX_ANSWER_CHARACTERS} | tr -c 'A-Za-z0-9._:-' ' ')
  size=$((size + ${{#answer}} + {_LINE_OVERHEAD}))
  if [ -n "$answer" ]; then echo "{ANSWERED} $answer"; else echo {FAILED}; fi
done
"""


class ProbeError(Exception):
    """Probe pods that could not be created or did not end; with what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class ProbeTarget(NamedTuple):
    """The port of a Service that is connected to."""

    service: NamespacedName
    port: str
    """The name of the port, or its number, as in flows."""
    address: str
    number: int


class ProbePlace(NamedTuple):
    """Where a probe pod runs: on some node of a zone, or on a node."""

    zone: str
    node: str = ""

    def __str__(self) -> str:
        return self.node or self.zone


class ProbeLog(NamedTuple):
    """What a probe pod logged, and on which node it ran."""

    place: ProbePlace
    node: str
    text: str


class ProbedEndpoint(NamedTuple):
    """An endpoint that may answer."""

    pod: str
    node: str
    zone: str


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    exit_code: int = 0


class _State(msgspec.Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, frozen=True):
    state: _State = _State()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_Container, ...] = ()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _ProbePod(msgspec.Struct, frozen=True):
    """What is read of a probe pod."""

    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def obstacle(self) -> str:
        """Why the pod has not ended yet."""
        status = self.status
        for container in status.container_statuses:
            if container.state.waiting is not None:
                waiting = container.state.waiting
                return ": ".join(filter(None, (waiting.reason, waiting.message)))
        unscheduled = [
            condition.message
            for condition in status.conditions
            if condition.type == "PodScheduled" and condition.status == "False"
        ]
        if not self.spec.node_name:
            return (unscheduled or ["no scheduler has given it a node"])[0]
        if status.phase == "Pending":
            return "no kubelet has started it"
        return status.message or status.reason

    @property
    def failure(self) -> str:
        """Why the pod has failed."""
        status = self.status
        if status.reason or status.message:
            return ": ".join(filter(None, (status.reason, status.message)))
        for container in status.container_statuses:
            if container.state.terminated is not None:
                ended = container.state.terminated
                code = f"exit code {ended.exit_code}"
                return ": ".join(filter(None, (ended.reason, ended.message or code)))
        return "its kubelet gives no reason"


class _Created(NamedTuple):
    """A pod that exists, or may exist: its creation was sent."""

    place: ProbePlace
    uid: str = ""
    """"" until the server has answered."""


def probe_pod(
    target: ProbeTarget,
    place: ProbePlace,
    *,
    name: str,
    run: str,
    image: str,
    connections: int,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> JsonObject:
    """Return the manifest of a probe pod; it passes the Pod Security Standard "restricted"."""
    variables = {
        "KEEPCLOSE_MODE": PROBE_MODE,
        ADDRESS_VARIABLE: target.address,
        PORT_VARIABLE: str(target.number),
        CONNECTIONS_VARIABLE: str(connections),
    }
    where: JsonObject = {"nodeSelector": {ZONE_LABEL: place.zone}}
    if place.node:
        # Not scheduled: a node is probed whatever its taints are.
        where = {"nodeName": place.node, "tolerations": [{"operator": "Exists"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": target.service.namespace,
            "labels": {PROBE_LABEL: run, "app.kubernetes.io/managed-by": "keepclose"},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": math.ceil(timeout_s) + _SPARE_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": PROBE_CONTAINER,
                    "image": image,
                    "command": ["sh", "-c", PROBE_SCRIPT],
                    "env": [{"name": key, "value": text} for key, text in variables.items()],
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "16Mi"},
                        "limits": {"memory": "64Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            **where,
        },
    }


def condense_answer(answer: bytes) -> str:
    """Return the line of the log for an answer, as the script writes it."""
    if not answer:
        return FAILED
    text = _NOT_WORD.sub(b" ", answer[:MAX_ANSWER_CHARACTERS]).decode()
    return f"{ANSWERED} {text}"


async def run_probes(
    client: Client,
    target: ProbeTarget,
    places: Sequence[ProbePlace],
    *,
    run: str,
    image: str,
    connections: int,
    clock: Clock,
    timeout_s: float = PROBE_TIMEOUT_S,
    on_left: Callable[[Sequence[str]], None] | None = None,
) -> list[ProbeLog]:
    """Create a pod for each place, wait for their ends, and return their logs; delete all pods.

    `on_left` gets the names of pods that could not be deleted. Raises ProbeError, and errors of the
    API; no failed delete hides them.
    """
    created: dict[str, _Created] = {}
    namespace = target.service.namespace
    try:
        for number, place in enumerate(places):
            name = f"keepclose-probe-{run}-{number}"
            body = probe_pod(
                target,
                place,
                name=name,
                run=run,
                image=image,
                connections=connections,
                timeout_s=timeout_s,
            )
            # NB: before the answer, because a server may create a pod and the answer get lost.
            created[name] = _Created(place)
            creating = asyncio.ensure_future(client.create(PODS, body, namespace=namespace))
            try:
                pod = await asyncio.shield(creating)
            except asyncio.CancelledError:
                # A delete that overtakes the creation would delete nothing.
                await asyncio.wait((creating,), timeout=_STOP_S)
                creating.cancel()
                raise
            except ApiError as error:
                if not isinstance(error, ServerError):
                    del created[name]
                raise
            created[name] = _Created(place, pod.metadata.uid)
        pods = await _until_ended(client, namespace, created, clock=clock, timeout_s=timeout_s)
        logs = []
        for name, ended in pods.items():
            text = await _read_log(client, namespace, name, ended)
            log = ProbeLog(created[name].place, ended.spec.node_name, text)
            _check_log(log, ended, image=image, connections=connections)
            logs.append(log)
        return logs
    finally:
        left = await _delete_all(client, namespace, created)
        if left and on_left is not None:
            on_left(left)


async def _until_ended(
    client: Client,
    namespace: str,
    created: Mapping[str, _Created],
    *,
    clock: Clock,
    timeout_s: float,
) -> dict[str, _ProbePod]:
    pods: dict[str, _ProbePod] = {}
    until = clock.monotonic() + timeout_s
    # NB: polled, because a watch would need one right more.
    while True:
        for name, (place, _) in created.items():
            if name in pods and pods[name].status.phase in _ENDED:
                continue
            try:
                body = await client.raw("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
            except NotFound:
                raise ProbeError(
                    f"the probe pod of {place} was deleted before it ended", "run the command again"
                ) from None
            try:
                pods[name] = msgspec.json.decode(body, type=_ProbePod)
            except msgspec.DecodeError as error:
                raise ProbeError(
                    f"the server's answer about the probe pod of {place} is no Pod: {error}",
                    "check the server that the kubeconfig names",
                ) from None
        waiting = {name: pod for name, pod in pods.items() if pod.status.phase not in _ENDED}
        if not waiting:
            return pods
        if clock.monotonic() >= until:
            name, pod = min(waiting.items())
            phase = pod.status.phase or "Pending"
            why = f" ({pod.obstacle})" if pod.obstacle else ""
            raise ProbeError(
                f"{len(waiting)} of {len(created)} probe pods did not end within {timeout_s:g} s: "
                f"that of {created[name].place} is {phase}{why}",
                "see that pods with this image can run there (--probe-image), or allow more time "
                "(--probe-timeout); the pods were deleted",
            )
        await clock.sleep(_POLL_S)


async def _read_log(client: Client, namespace: str, name: str, pod: _ProbePod) -> str:
    try:
        log = await client.raw(
            "GET",
            f"/api/v1/namespaces/{namespace}/pods/{name}/log",
            query=(("container", PROBE_CONTAINER), ("limitBytes", str(MAX_LOG_BYTES))),
        )
    except (Forbidden, Unauthorized):
        raise
    except ApiError:
        # A pod that was evicted, or whose container never started, has none.
        if pod.status.phase != _POD_FAILED:
            raise
        return ""
    return log.decode(errors="replace")


def _check_log(log: ProbeLog, pod: _ProbePod, *, image: str, connections: int) -> None:
    """Raise ProbeError for a pod that failed; one that made all connections before has not."""
    lines = log.text.splitlines()
    kind, *tools = lines[0].split() if lines else [""]
    if kind == LACKS:
        raise ProbeError(
            f"the image {image} has no {', '.join(tools)}, so the probe pod of {log.place} "
            "connected to nothing",
            f"name an image with sh, {', '.join(PROBE_TOOLS)}: --probe-image {PROBE_IMAGE}",
        )
    if pod.status.phase != _POD_FAILED or len(log.text) >= FULL_LOG_BYTES:
        return
    logged = sum(line.partition(" ")[0] in (ANSWERED, FAILED) for line in lines)
    if logged < connections:
        raise ProbeError(
            f"the probe pod of {log.place} failed after {logged:,} of {connections:,} connections "
            f"({pod.failure})",
            "see that pods with this image can run there (--probe-image), or allow more time "
            "(--probe-timeout)",
        )


async def _delete_all(client: Client, namespace: str, created: Mapping[str, _Created]) -> list[str]:
    """Delete all pods at once, whatever happens to single ones; return those that may be left."""

    async def delete(name: str, uid: str) -> bool:
        try:
            async with asyncio.timeout(_STOP_S):
                await client.delete(PODS, name, namespace=namespace, uid=uid, grace_period=0)
        except (NotFound, Conflict):
            # It is gone, or its name is that of another pod now.
            return True
        except (KubeError, TimeoutError, OSError):
            return False
        return True

    deleted = await asyncio.gather(*(delete(name, pod.uid) for name, pod in created.items()))
    return [name for name, is_gone in zip(created, deleted, strict=True) if not is_gone]
