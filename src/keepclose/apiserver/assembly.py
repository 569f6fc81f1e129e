"""Assembles the server from its parts, starts it and stops it.

A fault at start is reported as one StartError with its remedy, before a port is opened. On SIGTERM
or SIGINT watches end cleanly and the store is closed. SIGKILL loses no write that was answered.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from keepclose.apiserver.auth.certificates import (
    CertificateAuthority,
    InvalidHostError,
    write_kubeconfigs,
    write_node_kubeconfig,
)
from keepclose.apiserver.auth.credentials import InvalidNodeNameError, Tokens
from keepclose.apiserver.controllers.default_objects import (
    MANAGER,
    AdvertiseError,
    KubernetesService,
    NamespaceObjects,
    choose_advertised,
)
from keepclose.apiserver.controllers.event_expiry import EVENT_SECONDS, EventExpiry
from keepclose.apiserver.controllers.garbage_collector import GarbageCollector
from keepclose.apiserver.controllers.pod_reaper import PodReaper
from keepclose.apiserver.controllers.service_cidrs import ServiceCIDRConditions
from keepclose.apiserver.http.server import HttpsServer
from keepclose.apiserver.metrics import ServerMetrics
from keepclose.apiserver.registry.allocation_ranges import RangeError
from keepclose.apiserver.registry.registry import (
    AllocationSettings,
    make_ranges,
    strategies,
)
from keepclose.apiserver.registry.services import DEFAULT_NAME, default_service_cidr
from keepclose.apiserver.resources import BY_KIND, Resource
from keepclose.apiserver.schema.types import load_types
from keepclose.apiserver.serving.application import Application
from keepclose.apiserver.serving.deleting import Deleter
from keepclose.apiserver.serving.fair_queue import collect_cycles
from keepclose.apiserver.serving.guard import Guard
from keepclose.apiserver.serving.http_messages import (
    MAX_CONNECTIONS,
    ConnectionLimits,
    raise_descriptor_limit,
)
from keepclose.apiserver.serving.operations import Operations
from keepclose.apiserver.serving.options import RequestTarget, WriteOptions
from keepclose.apiserver.serving.pages import make_pages
from keepclose.apiserver.serving.watching import BOOKMARK_SECONDS
from keepclose.apiserver.serving.writing import ObjectWriter, timestamp
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.store import Store
from keepclose.model.gates import FeatureGates
from keepclose.runtime.program import (
    OnReady,
    Parts,
    ReadyMessage,
    beside,
    find_loop_factory,
    keep_running,
    run_program,
)
from keepclose.system.private_files import BrokenFileError, create_private_directory

NAMESPACES: Final = (
    "default",
    "kube-node-lease",
    "kube-public",
    "kube-system",
)
# How long the server may take to stop; then the kernel ends the process.
END_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 1.0
# NB: only the youngest generation is collected by its threshold. A collection of all objects stops
# all threads, and a large request has a million objects, so `collect_cycles` chooses the time.
_GC_THRESHOLDS: Final = (50_000, 1 << 20, 1 << 20)

_log = structlog.get_logger(__name__)


class StartError(Exception):
    """The server cannot start; the message has the cause and the remedy."""


class ServerSettings(msgspec.Struct, frozen=True):
    """The settings of one server."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6443
    gates: FeatureGates = FeatureGates()
    allocation: AllocationSettings = AllocationSettings()
    synchronous: Literal["normal", "full"] = "normal"
    # Nodes for which a kubeconfig is written.
    nodes: tuple[str, ...] = ()
    bookmark_seconds: float = BOOKMARK_SECONDS
    # Where nodes reach the server; "" is the host, if nodes can reach it.
    advertise_address: str = ""
    # Whether the server creates the Service default/kubernetes, as every kube-apiserver does.
    makes_own_service: bool = True
    # Whether the server runs the controllers of namespaces and ServiceCIDRs itself.
    runs_controllers: bool = True
    # Whether a damaged store is kept aside and its intact objects are used.
    recovers_store: bool = False
    # The time to live of an Event after its last write.
    event_seconds: float = EVENT_SECONDS
    # The limit is lower when the process may not open so many files.
    max_connections: int = MAX_CONNECTIONS


class ApiServer:
    """One API server with its store, its controllers and its HTTPS server."""

    def __init__(self, settings: ServerSettings) -> None:
        """Open the files and assemble the parts. Raises StartError."""
        self.settings = settings
        directory = settings.data_dir
        try:
            create_private_directory(directory)
            # NB: the store first, because its lock protects the files of a running server.
            self.store = Store.open(
                directory, synchronous=settings.synchronous, recovers=settings.recovers_store
            )
        except (BrokenFileError, OSError, StorageError) as error:
            raise StartError(_explain(error)) from error
        try:
            self._authority = CertificateAuthority(directory / "pki", now=time.time())
            ranges = make_ranges(settings.allocation)
            primary = ranges.addresses[0]
            advertised = choose_advertised(
                settings.advertise_address, host=settings.host, family=primary.family
            )
            hosts = (settings.host, advertised, primary.first)
            self._authority.ensure_server_certificate([host for host in hosts if host])
            context = self._authority.server_context()
            self._tokens = Tokens(directory / "tokens")
            kinds = strategies(ranges=ranges)
        except (AdvertiseError, BrokenFileError, InvalidHostError, OSError, RangeError) as error:
            self.store.close()
            raise StartError(_explain(error)) from error
        self.writer = ObjectWriter(self.store, kinds, load_types(settings.gates), settings.gates)
        deleter = Deleter(self.store, kinds)
        self._collector = GarbageCollector(self.store, kinds, deleter.delete_dependent)
        self._pod_reaper = PodReaper(self.store, deleter.end_grace)
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
        self._metrics = ServerMetrics(self.store)
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
        self._server = HttpsServer(
            self.application.handle,
            context=context,
            has_credentials=guard.has_credentials,
            limits=ConnectionLimits.for_process(settings.max_connections),
        )
        self._metrics.follow(self._server.table)
        self._controllers = Parts()
        self.url = ""

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.settings.data_dir / "kubeconfig"

    async def start(self) -> None:
        """Restore the state of all kinds, listen and start the controllers. Raises StartError."""
        settings = self.settings
        try:
            self._restore()
            self._create_default_objects()
        except (StatusError, StorageError) as error:
            self.store.close()
            raise StartError(str(error)) from error
        try:
            port = await self._server.start(settings.host, settings.port)
        except OSError as error:
            self.store.close()
            raise StartError(_explain_listen_error(settings.host, settings.port, error)) from error
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"https://{host}:{port}"
        controllers: dict[str, Callable[[], Awaitable[None]]] = {
            "garbage collector": self._collector.run,
            "pod reaper": self._pod_reaper.run,
            "expiry of Events": self._event_expiry.run,
        }
        try:
            # NB: before the server is ready, so that the first client finds these objects.
            if settings.makes_own_service:
                self._kubernetes_service.port = port
                self._kubernetes_service.reconcile()
                run = partial(self._kubernetes_service.run, self.store)
                controllers["controller of default/kubernetes"] = run
            if settings.runs_controllers:
                self._namespace_objects.renew_ca()
                self._namespace_objects.resume()
                self._service_cidrs.resume()
                controllers |= {
                    "controller of namespaces": partial(self._namespace_objects.run, self.store),
                    "controller of ServiceCIDRs": partial(self._service_cidrs.run, self.store),
                }
            self._write_kubeconfigs()
        except (BrokenFileError, StatusError, InvalidNodeNameError, OSError, StorageError) as error:
            await self.stop()
            raise StartError(_explain(error)) from error
        for name, controller in controllers.items():
            self._controllers.start(keep_running(controller, what=name, after_s=_RETRY_SECONDS))

    async def stop(self) -> None:
        """Stop the controllers, end all connections and close the store."""
        await self._controllers.stop()
        self.application.workers.close()
        await self._server.stop()
        self.store.close()

    def _restore(self) -> None:
        """Restore the state that strategies derive from objects, such as allocated addresses."""
        for name, strategy in self.writer.strategies.items():
            if strategy.restores:
                for entry in self.store.entries(name):
                    strategy.restore(msgspec.json.decode(entry.data))

    def _create_default_objects(self) -> None:
        namespaces = BY_KIND["v1", "Namespace"]
        for name in NAMESPACES:
            if self.store.get(namespaces.store, "", name) is None:
                new = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                self.writer.create(RequestTarget(namespaces), new, WriteOptions(), manager=MANAGER)
        service_cidrs = BY_KIND["networking.k8s.io/v1", "ServiceCIDR"]
        if self.store.get(service_cidrs.store, "", DEFAULT_NAME) is None:
            self._create_service_cidr(service_cidrs)

    def _create_service_cidr(self, resource: Resource) -> None:
        """Create the default ServiceCIDR, and set it Ready."""
        cidrs = self.settings.allocation.service_cidrs
        new, ready = (default_service_cidr(cidrs, now=timestamp()) for _ in range(2))
        self.writer.create(RequestTarget(resource), new, WriteOptions(), manager=MANAGER)
        status = RequestTarget(resource, name=DEFAULT_NAME, subresource="status")
        self.writer.update(status, ready, WriteOptions(), manager=MANAGER)

    def _write_kubeconfigs(self) -> None:
        directory, ca = self.settings.data_dir, self._authority.pem
        write_kubeconfigs(directory, self._tokens, server=self.url, ca=ca)
        for node in self.settings.nodes:
            write_node_kubeconfig(directory, self._tokens, node, server=self.url, ca=ca)


def _explain(error: Exception) -> str:
    """Return the message of an error as one line; an error of a file names the file."""
    if isinstance(error, OSError):
        # NB: an error about a full disk may have no file name.
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; choose another directory with --data-dir"
    return str(error)


def run_apiserver(settings: ServerSettings, *, on_ready: OnReady) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError."""
    raise_descriptor_limit()
    work = _serve(ApiServer(settings), on_ready)
    run_program(work, loop_factory=find_loop_factory(), stop_within_s=END_SECONDS)


async def _serve(server: ApiServer, on_ready: OnReady) -> None:
    try:
        await server.start()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        async with beside(collect_cycles(server.application.workers)):
            text = f"keepclose apiserver ready at {server.url} (kubeconfig: {server.kubeconfig})"
            on_ready(ReadyMessage(text, url=server.url))
            await asyncio.get_running_loop().create_future()
    finally:
        await server.stop()


def _explain_listen_error(host: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot listen at {host}: not an address of this machine; "
            "choose one with --bind-address, such as 127.0.0.1"
        )
    # NB: the message of asyncio repeats host and port.
    reason = os.strerror(error.errno) if error.errno else str(error)
    return (
        f"cannot listen at {host} port {port}: {reason}; choose another with --port, or 0 for any"
    )
