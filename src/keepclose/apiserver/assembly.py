"""The server put together from its parts, started and stopped.

Everything that can go wrong at start is told as one StartError with what to do, before a port is
opened. On SIGTERM or SIGINT watches end cleanly and the store is closed; being killed instead loses
nothing that was answered.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from keepclose.apiserver.event_expiry import EVENT_SECONDS, EventExpiry
from keepclose.apiserver.failures import Failure
from keepclose.apiserver.garbage import Collector
from keepclose.apiserver.graces import Graces
from keepclose.apiserver.kubernetes_service import (
    MANAGER,
    AdvertiseError,
    KubernetesService,
    choose_advertised,
)
from keepclose.apiserver.namespace_objects import NamespaceObjects
from keepclose.apiserver.resources import BY_KIND, Resource
from keepclose.apiserver.schemas.definitions import load_types
from keepclose.apiserver.security.certificates import Authority, InvalidHostError
from keepclose.apiserver.security.files import BrokenFileError, make_private_directory
from keepclose.apiserver.security.kubeconfigs import write_kubeconfigs, write_node_kubeconfig
from keepclose.apiserver.security.tokens import InvalidNodeNameError, Tokens
from keepclose.apiserver.service_cidrs import ServiceCIDRConditions
from keepclose.apiserver.serving.application import Application
from keepclose.apiserver.serving.deleting import Deleter
from keepclose.apiserver.serving.guard import Guard
from keepclose.apiserver.serving.limits import (
    MAX_CONNECTIONS,
    ConnectionLimits,
    raise_descriptor_limit,
)
from keepclose.apiserver.serving.metrics import Metrics
from keepclose.apiserver.serving.operations import Operations
from keepclose.apiserver.serving.options import WriteOptions
from keepclose.apiserver.serving.pages import make_pages
from keepclose.apiserver.serving.server import Server
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.serving.watching import BOOKMARK_SECONDS
from keepclose.apiserver.serving.workers import collect_cycles
from keepclose.apiserver.serving.writing import Writer, timestamp
from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.store import Store
from keepclose.apiserver.strategies.allocation.ranges import RangeError
from keepclose.apiserver.strategies.registry import (
    AllocationSettings,
    make_ranges,
    strategies,
)
from keepclose.apiserver.strategies.servicecidrs import DEFAULT_NAME, default_service_cidr
from keepclose.eventloops import find_loop_factory
from keepclose.model.gates import FeatureGates

NAMESPACES: Final = (
    "default",
    "kube-node-lease",
    "kube-public",
    "kube-system",
)
END_SECONDS: Final = 20.0
"""A server that was asked to end is gone after this time, whatever it does."""
_RETRY_SECONDS: Final = 1.0
# Python looks for unreachable cycles among the newest objects by itself, among all of them when it
# is asked to: it stops all threads for that, and a large request has a million objects.
_COLLECTED_AT: Final = (50_000, 1 << 20, 1 << 20)

log = structlog.get_logger(__name__)


class StartError(Exception):
    """Why the server cannot start, and what to do."""


class ServerSettings(msgspec.Struct, frozen=True):
    """How to serve."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6443
    gates: FeatureGates = FeatureGates()
    allocation: AllocationSettings = AllocationSettings()
    synchronous: Literal["normal", "full"] = "normal"
    # Nodes for which a kubeconfig is written.
    nodes: tuple[str, ...] = ()
    bookmark_seconds: float = BOOKMARK_SECONDS
    # Where nodes reach the server; "" takes the host, if nodes can reach it.
    advertise_address: str = ""
    # Whether the server makes the Service default/kubernetes, as every kube-apiserver does.
    makes_own_service: bool = True
    # Whether the server does for namespaces and ServiceCIDRs what kube-controller-manager does.
    runs_controllers: bool = True
    # Whether a damaged store is kept aside and what is intact of it used.
    recovers_store: bool = False
    # How long an Event is kept after it was last written.
    event_seconds: float = EVENT_SECONDS
    # Fewer where the process may not open so many files.
    max_connections: int = MAX_CONNECTIONS


class ApiServer:
    """One server, from its files to its port."""

    def __init__(self, settings: ServerSettings) -> None:
        """Open the files and put the parts together; raises StartError."""
        self.settings = settings
        directory = settings.data_dir
        try:
            make_private_directory(directory)
            # NB: the store first, because its lock keeps us off the files of a running server.
            self.store = Store.open(
                directory, synchronous=settings.synchronous, recovers=settings.recovers_store
            )
        except (BrokenFileError, OSError, StorageError) as error:
            raise StartError(_explain(error)) from error
        try:
            self._authority = Authority(directory / "pki", now=time.time())
            ranges = make_ranges(settings.allocation)
            primary = ranges.addresses[0]
            advertised = choose_advertised(
                settings.advertise_address, host=settings.host, family=primary.family
            )
            hosts = (settings.host, advertised, primary.first)
            self._authority.keep_server_certificate([host for host in hosts if host])
            context = self._authority.server_context()
            self._tokens = Tokens(directory / "tokens")
            kinds = strategies(ranges=ranges)
        except (AdvertiseError, BrokenFileError, InvalidHostError, OSError, RangeError) as error:
            self.store.close()
            raise StartError(_explain(error)) from error
        self.writer = Writer(self.store, kinds, load_types(settings.gates), settings.gates)
        deleter = Deleter(self.store, kinds)
        self._collector = Collector(self.store, kinds, deleter.delete_dependent)
        self._graces = Graces(self.store, deleter.end_grace)
        self._event_expiry = EventExpiry(self.store, seconds=settings.event_seconds)
        self._kubernetes_service = KubernetesService(
            self.writer,
            deleter,
            cluster_ip=primary.first,
            family=primary.family,
            advertised=advertised,
        )
        self._namespace_objects = NamespaceObjects(
            self.writer, ca=self._authority.pem, manager=MANAGER
        )
        self._service_cidrs = ServiceCIDRConditions(self.writer, manager=MANAGER)
        self._metrics = Metrics(self.store)
        guard = Guard(self._tokens)
        self.application = Application(
            self.store,
            Operations(self.writer, deleter),
            guard,
            self._metrics,
            make_pages(settings.gates, self._metrics, self.store.find_problem),
            bookmark_seconds=settings.bookmark_seconds,
        )
        self.application.on_request = self._metrics.loop_meter.wake
        self._server = Server(
            self.application.handle,
            context=context,
            knows=guard.knows,
            limits=ConnectionLimits.for_process(settings.max_connections),
        )
        self._metrics.follow(self._server.table)
        self._followers: list[asyncio.Task[None]] = []
        self.url = ""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.settings.data_dir / "kubeconfig"

    async def start(self) -> None:
        """Listen, after everything stored has been looked at; raises StartError."""
        settings = self.settings
        try:
            self._restore()
            self._make_namespaces()
        except (Failure, StorageError) as error:
            self.store.close()
            raise StartError(str(error)) from error
        try:
            port = await self._server.start(settings.host, settings.port)
        except OSError as error:
            self.store.close()
            raise StartError(_explain_no_listening(settings.host, settings.port, error)) from error
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"https://{host}:{port}"
        follow: list[Callable[[], Awaitable[None]]] = [
            self._collector.run,
            self._graces.run,
            self._event_expiry.run,
        ]
        try:
            # NB: before the first client knows of the server, so that it finds all there.
            if settings.makes_own_service:
                self._kubernetes_service.port = port
                self._kubernetes_service.reconcile()
                follow.append(partial(self._kubernetes_service.run, self.store))
            if settings.runs_controllers:
                self._namespace_objects.renew_ca()
                self._namespace_objects.resume()
                self._service_cidrs.resume()
                follow += [
                    partial(self._namespace_objects.run, self.store),
                    partial(self._service_cidrs.run, self.store),
                ]
            self._write_kubeconfigs()
        except (BrokenFileError, Failure, InvalidNodeNameError, OSError, StorageError) as error:
            await self.stop()
            raise StartError(_explain(error)) from error
        loop = asyncio.get_running_loop()
        self._followers = [loop.create_task(_keep_running(run)) for run in follow]

    async def stop(self) -> None:
        """End all connections and close the files."""
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        self.application.workers.close()
        await self._server.stop()
        self.store.close()

    def _restore(self) -> None:
        """Let every kind take note of what is stored, such as the addresses in use."""
        for name, strategy in self.writer.strategies.items():
            if strategy.restores:
                for entry in self.store.entries(name):
                    strategy.restore(msgspec.json.decode(entry.data))

    def _make_namespaces(self) -> None:
        namespaces = BY_KIND["v1", "Namespace"]
        for name in NAMESPACES:
            if self.store.get(namespaces.store, "", name) is None:
                new = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                self.writer.create(Target(namespaces), new, WriteOptions(), manager=MANAGER)
        ranges = BY_KIND["networking.k8s.io/v1", "ServiceCIDR"]
        if self.store.get(ranges.store, "", DEFAULT_NAME) is None:
            self._make_ranges(ranges)

    def _make_ranges(self, ranges: Resource) -> None:
        """Tell which cluster IPs are handed out, and that they are ready to be."""
        cidrs = self.settings.allocation.service_cidrs
        new, ready = (default_service_cidr(cidrs, now=timestamp()) for _ in range(2))
        self.writer.create(Target(ranges), new, WriteOptions(), manager=MANAGER)
        status = Target(ranges, name=DEFAULT_NAME, subresource="status")
        self.writer.update(status, ready, WriteOptions(), manager=MANAGER)

    def _write_kubeconfigs(self) -> None:
        directory, ca = self.settings.data_dir, self._authority.pem
        write_kubeconfigs(directory, self._tokens, server=self.url, ca=ca)
        for node in self.settings.nodes:
            write_node_kubeconfig(directory, self._tokens, node, server=self.url, ca=ca)


def _explain(error: Exception) -> str:
    """Return an error as one line; those of files name the file."""
    if isinstance(error, OSError):
        # NB: a disk that gets full while a file is written is told without the file.
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; choose another directory with --data-dir"
    return str(error)


async def _keep_running(follow: Callable[[], Awaitable[None]]) -> None:
    """Have changes followed until the store is closed, whatever comes up, such as a full disk."""
    while True:
        try:
            return await follow()
        except Exception:
            log.exception("following changes failed; all objects are looked at again")
            await asyncio.sleep(_RETRY_SECONDS)


def run(settings: ServerSettings, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it; raises StartError."""
    raise_descriptor_limit()
    server = ApiServer(settings)
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        runner.run(_serve(server, on_ready))


def _limit_time_to_end() -> None:
    """End the process after the grace, whatever still runs; answered writes are stored by then."""
    # NB: by the kernel, because nothing in this process can be sure of its turn.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, END_SECONDS)


async def _serve(server: ApiServer, on_ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end(_number: int, _frame: object) -> None:
        _limit_time_to_end()
        loop.call_soon_threadsafe(ended.set)

    # NB: handlers of the event loop would wait for its turn, which work that takes long holds up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    await server.start()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AT)
    collecting = loop.create_task(collect_cycles(server.application.workers))
    on_ready(f"keepclose apiserver ready at {server.url} (kubeconfig: {server.kubeconfig})")
    await ended.wait()
    collecting.cancel()
    await server.stop()
    signal.setitimer(signal.ITIMER_REAL, 0)


def _explain_no_listening(host: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot listen at {host}: not an address of this machine; "
            "choose one with --bind-address, such as 127.0.0.1"
        )
    # NB: asyncio's own text says all this once more.
    reason = os.strerror(error.errno) if error.errno else str(error)
    return (
        f"cannot listen at {host} port {port}: {reason}; choose another with --port, or 0 for any"
    )
