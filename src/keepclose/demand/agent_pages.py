"""The pages of the flow agents of a cluster, read through its API server.

Agents are the running pods with a label in one namespace. Any tenant may give a pod the label, so
those of other namespaces are named and not read. A node has one agent: of several, such as the old
and the new one of an update, the newest is read.

A page comes from a pod, so its size is bounded, and so is what all pages together take: most are
small and read several at once, a large one is read alone, and rows of all agents are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from keepclose.kube.errors import BrokenStream, KubeError
from keepclose.system.threads import ask_in_thread

if TYPE_CHECKING:
    from keepclose.kube.client import Client
    from keepclose.kube.clock import Clock

AGENT_LABEL: Final = "app.kubernetes.io/name=keepclose-flows"
AGENT_PORT: Final = 10247
"""The port of an agent whose pod names none."""
MAX_AGENT_PAGE_BYTES: Final = 64 << 20
"""The largest page of an agent."""
MAX_POD_LIST_BYTES: Final = 256 << 20
"""The largest list of agents; that of 5,000 nodes has a tenth of it."""
_SMALL_PAGE_BYTES: Final = 8 << 20
_AT_ONCE: Final = 16
_PORT_NAMES: Final = ("metrics", "http-metrics", "pages")
_WALK: Final = (("walk", "true"),)
_SHOWN: Final = 5


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[_Container] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _AgentPod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def path(self) -> str:
        """The path of its flows at the API server."""
        ports = {
            port.name: port.container_port
            for container in self.spec.containers or []
            for port in container.ports or []
        }
        named = [ports[name] for name in _PORT_NAMES if name in ports]
        number = (named or [*ports.values()] or [AGENT_PORT])[0]
        meta = self.metadata
        return f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{number}/proxy/flows"


class _AgentList(msgspec.Struct):
    items: list[_AgentPod] | None


class FoundAgents(NamedTuple):
    """The paths of agents by node, and what is not read.

    An agent continues the counts of the pod before it on its node, so the node names the counts.
    """

    paths: dict[str, str]
    notes: list[str]


def find_agents(
    pod_list: bytes, *, namespace: str, option: str = "--agent-namespace"
) -> FoundAgents:
    """Return the agents of a namespace from a list of pods; raise ValueError if it is none.

    Pods that do not run or are being deleted are left out. `option` sets the namespace.
    """
    try:
        pods = msgspec.json.decode(pod_list, type=_AgentList).items or []
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f"the answer is no list of pods: {error}"
        raise ValueError(message) from None
    running = [
        pod
        for pod in pods
        if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    ]
    inside = [pod for pod in running if pod.metadata.namespace == namespace]
    outside = [pod for pod in running if pod.metadata.namespace != namespace]
    notes = []
    if outside:
        notes.append(
            f"not read: {_list(outside)}, because agents are those of the namespace {namespace}; "
            f"name another one with {option}"
        )
    by_node: dict[str, list[_AgentPod]] = {}
    for pod in inside:
        by_node.setdefault(pod.spec.node_name or pod.key, []).append(pod)
    paths = {}
    for node, candidates in by_node.items():
        # RFC 3339 times of an API server have one form, whose order is that of the times.
        candidates.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key))
        newest = candidates[-1]
        paths[node] = newest.path
        if len(candidates) > 1:
            notes.append(f"{node} has the agents {_list(candidates)}: only {newest.key} is read")
    return FoundAgents(paths, notes)


class PageReader:
    """Reads the pages of agents; what could not be read is in `errors` and `notes`."""

    def __init__(
        self,
        client: Client,
        take: Callable[[str, bytes], str],
        *,
        clock: Clock | None = None,
        page_within_s: float = 60.0,
    ) -> None:
        """Take what takes each page by the name of its agent, and returns why it cannot.

        It is called in a thread, one page at a time, because a large page takes a while. With a
        clock, a page that takes too long to come is given up before the limit of the client.
        """
        self._client = client
        self._clock = clock
        self._page_within_s = page_within_s
        self._take = take
        self._taking = asyncio.Lock()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._large: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.notes: list[str] = []

    async def read(self, *, namespace: str, option: str = "--agent-namespace") -> None:
        """Read all agents of a namespace, which `option` sets.

        Raises KubeError and ValueError if they are not listed.
        """
        query = (("labelSelector", AGENT_LABEL),)
        listed = await self._client.raw(
            "GET", "/api/v1/pods", query=query, max_bytes=MAX_POD_LIST_BYTES
        )
        found = find_agents(listed, namespace=namespace, option=option)
        self.notes += found.notes
        async with asyncio.TaskGroup() as group:
            for name, path in found.paths.items():
                group.create_task(self._read_small(name, path))
        for name, path in self._large.items():
            await self._read(name, path, MAX_AGENT_PAGE_BYTES)

    async def _read_small(self, name: str, path: str) -> None:
        async with self._slots:
            try:
                await self._read(name, path, _SMALL_PAGE_BYTES, is_last=False)
            except BrokenStream:
                self._large[name] = path

    async def _read(self, name: str, path: str, most: int, *, is_last: bool = True) -> None:
        try:
            answer = self._client.raw("GET", path, query=_WALK, max_bytes=most)
            page = await (
                answer if self._clock is None else self._clock.wait_for(answer, self._page_within_s)
            )
        except TimeoutError:
            self.errors[name] = f"its page takes longer than {self._page_within_s:.0f} s"
            return
        except KubeError as error:
            if isinstance(error, BrokenStream) and not is_last:
                raise
            self.errors[name] = str(error)
            return
        async with self._taking:
            why = await ask_in_thread(lambda: self._take(name, page))
        if why:
            self.errors[name] = why


def _list(pods: list[_AgentPod]) -> str:
    names = sorted(pod.key for pod in pods)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
