"""The API without sockets or disk: requests in, answers out, faults of our own raised.

Each input gets an empty server, so that an input alone decides what happens. Names, addresses and
ports are drawn from a seed; everything else is what production runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Final, NoReturn

import msgspec
import structlog
from fuzzbounds import RuleBroken, require

from keepclose.apiserver.assembly import NAMESPACES
from keepclose.apiserver.auth.users import MASTERS, RequestUser
from keepclose.apiserver.registry.registry import AllocationSettings, strategies
from keepclose.apiserver.resources import RESOURCES, Resource
from keepclose.apiserver.schema.types import load_types
from keepclose.apiserver.serving.application import Application
from keepclose.apiserver.serving.deleting import Deleter
from keepclose.apiserver.serving.fair_queue import RequestThreads
from keepclose.apiserver.serving.http_messages import (
    HttpRequest,
    HttpResponse,
    PendingResponse,
    ResponseStream,
)
from keepclose.apiserver.serving.operations import Operations
from keepclose.apiserver.serving.options import RequestTarget, WriteOptions
from keepclose.apiserver.serving.writing import ObjectWriter
from keepclose.apiserver.storage.store import Store
from keepclose.model.gates import FeatureGates, Gate

JsonObject = dict[str, Any]
GATES: Final = FeatureGates().with_gates(
    Gate.PREFER_LOCAL_TRAFFIC_POLICY,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
)
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
REFUSALS: Final = frozenset({400, 403, 404, 405, 406, 409, 410, 413, 415, 422, 504})
BY_NAME: Final = {resource.qualified: resource for resource in RESOURCES}


class _Admitting:
    def admit(self, request: HttpRequest, verb: str, target: RequestTarget | None) -> RequestUser:
        """Admit every request."""
        del verb, target
        return self.user_of(request)

    def user_of(self, request: HttpRequest) -> RequestUser:
        """Return an administrator."""
        del request
        return RequestUser("admin", (MASTERS,))


class _Uncounted:
    def count(self, verb: str, target: RequestTarget | None, code: int, seconds: float) -> None:
        """Count nothing."""

    def watch_started(self, target: RequestTarget) -> Callable[[], None]:
        """Count nothing."""
        del target
        return lambda: None


class Bed:
    """A server that holds the namespaces which every cluster has."""

    def __init__(self) -> None:
        """Build the parts that a request passes through."""
        _raise_logged_faults()
        self.store = Store.open(None, clock=lambda: 1e9)
        kinds = strategies(AllocationSettings(seed=1))
        self.writer = ObjectWriter(self.store, kinds, load_types(GATES), GATES)
        operations = Operations(self.writer, Deleter(self.store, kinds))
        self.application = Application(self.store, operations, _Admitting(), _Uncounted(), {})
        for name in NAMESPACES[:1]:
            new = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            target = RequestTarget(BY_NAME["namespaces"])
            self.writer.create(target, new, WriteOptions(), manager="fuzz")

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        media_type: str = "application/json",
        accept: str = "application/json",
    ) -> HttpResponse:
        """Return the answer to a request, which must be one that clients are promised."""
        path, _, query = path.partition("?")
        headers = {
            b"content-type": media_type.encode(),
            b"accept": accept.encode(),
            b"user-agent": b"fuzz/1",
        }
        answer = self.handle(HttpRequest(method, path, query, headers, body))
        require(isinstance(answer, HttpResponse), f"a stream for {method} {path}")
        if not isinstance(answer, HttpResponse):
            raise RuleBroken("a stream")
        if answer.status >= 300:
            status = msgspec.json.decode(answer.body)
            require(status["kind"] == "Status", "a refusal is no Status")
            # Errors that have no reason are 500 in a real server too; our own faults have one.
            known = answer.status in REFUSALS or (answer.status == 500 and "reason" not in status)
            require(known, f"status {answer.status}: {answer.body[:300]!r}")
        for name, value in answer.headers:
            require(b"\n" not in name + value and b"\r" not in value, "a header has two lines")
        return answer

    def handle(self, request: HttpRequest) -> HttpResponse | ResponseStream:
        """Return what the server answers, also where it works beside the event loop."""
        answer = self.application.handle(request)
        return asyncio.run(self._finish(answer)) if isinstance(answer, PendingResponse) else answer

    async def _finish(self, pending: PendingResponse) -> HttpResponse | ResponseStream:
        try:
            return await pending.begin()
        finally:
            # NB: the threads would outlive the input.
            self.application.workers.close()
            self.application.workers = RequestThreads()

    def create(self, resource: Resource, body: bytes, **how: Any) -> HttpResponse:
        """Create an object."""
        query = how.pop("query", "")
        return self.ask("POST", f"{collection_path(resource)}{query}", body, **how)


def collection_path(resource: Resource) -> str:
    """Return the path of a kind's objects, in the namespace default where they have one."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    within = "/namespaces/default" if resource.namespaced else ""
    return f"{root}/{resource.version}{within}/{resource.plural}"


def _raise_logged_faults() -> None:
    structlog.configure(processors=[_raise_fault], cache_logger_on_first_use=False)


def _raise_fault(_logger: object, _name: str, event: MutableMapping[str, Any]) -> NoReturn:
    """Raise what the server would log as a fault of its own; everything else is not logged."""
    if event.get("exc_info"):
        raise  # noqa: PLE0704 - called while the fault is handled
    raise structlog.DropEvent
