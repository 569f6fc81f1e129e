"""Answers AdmissionReviews of EndpointSlices: the HTTPS server, and the patch of each answer.

The write is always allowed. The answer patches the hints of endpoints and nothing else, with one
exception: an update of the built-in controller that only removes hints also changes the trigger
time annotation and its field manager. The answer restores both, so that the update becomes a no-op
and no watcher receives an event. A slice that is unknown, unreadable or out of scope passes as it
is.

It answers from memory, within about a millisecond, and never rejects a write. Until the caches are
complete, and after any error, a slice passes as it is: late hints are better than late endpoints.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
import structlog
from aiohttp import web

from keepclose.heuristics.process import fetch_answers
from keepclose.kube.clock import Clock
from keepclose.model.decoding import decode
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION
from keepclose.routing.heuristic_answers import HeuristicAnswer, ZoneDemand
from keepclose.routing.hint_facts import SliceFacts
from keepclose.routing.node_level import EndpointOwner
from keepclose.routing.strategy import Strategy
from keepclose.routing.traffic_shares import Shares
from keepclose.runtime.pages import PageServer, add_health_pages
from keepclose.slices.changes import is_managed_by
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.registration import ServingPair, load_pair
from keepclose.webhook.rehinting import carry_hints, rehint
from keepclose.webhook.scope import decide_scope
from keepclose.webhook.settings import WEBHOOK_PATH

HINTS_MANAGER: Final = "keepclose-hints"
"""The field manager of the hint keeper's own writes, which the webhook does not change."""
_API_VERSION: Final = "admission.k8s.io/v1"
_ANNOTATIONS: Final = "/metadata/annotations"
_MANAGED_FIELDS: Final = "/metadata/managedFields"
_TRIGGER_PATH: Final = f"{_ANNOTATIONS}/{TRIGGER_TIME_ANNOTATION.replace('/', '~1')}"

_Operation = dict[str, Any]
"""One operation of a JSON patch (RFC 6902)."""
# A slice holds up to a thousand endpoints, and a review has its old and its new version.
_MAX_BYTES: Final = 16 * 1024 * 1024
_JSON: Final = "application/json"
_log = structlog.get_logger(__name__)


class ClusterView(Protocol):
    """The state of the cluster in memory; no method sends a request."""

    @property
    def settings(self) -> PlannerSettings:
        """The settings by which hints are decided."""
        ...

    @property
    def cluster(self) -> ClusterNodes:
        """The nodes."""
        ...

    def service(self, key: NamespacedName) -> Service | None:
        """Return a Service, None when it is not in the cache."""
        ...

    def slices(self, key: NamespacedName) -> Sequence[EndpointSlice]:
        """Return the slices of a Service that the built-in controller manages."""
        ...

    def shares(self, service: Service, strategy: Strategy) -> Shares | None:
        """Return the shares of a Service by measured demand; None where it does not count."""
        ...

    def owners(self, slices: Sequence[EndpointSlice]) -> Sequence[EndpointOwner]:
        """Return node and owner of the ready endpoints, each pair once."""
        ...

    def facts(self, endpoint_slice: EndpointSlice) -> SliceFacts:
        """Return the facts of a slice."""
        ...


class AdmissionVerdict(StrEnum):
    """The result of a review; the values are labels of a metric."""

    HINTED = "hinted"
    RIGHT = "right"
    """The slice is in scope, and its hints are correct as they are."""
    OURS = "ours"
    """The hint keeper wrote the slice."""
    FOREIGN = "foreign"
    """The slice is out of scope."""
    UNKNOWN = "unknown"
    """The Service of the slice is not in the cache."""
    UNREADABLE = "unreadable"
    PENDING = "pending"
    """A custom heuristic has not answered yet."""


class AdmissionAnswer(msgspec.Struct, frozen=True):
    """The JSON patch of a slice, empty for one that stays as it is."""

    verdict: AdmissionVerdict
    patch: tuple[_Operation, ...] = ()
    heuristic: str = ""
    """The custom heuristic that must answer the questions first."""
    questions: tuple[ZoneDemand, ...] = ()


class _Options(msgspec.Struct, rename="camel"):
    field_manager: str | None = None


class _Request(msgspec.Struct, rename="camel"):
    """The request of an AdmissionReview; the objects are decoded only where they are needed."""

    uid: str
    operation: str = ""
    sub_resource: str | None = None
    options: _Options | None = None
    new: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="object")
    old: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="oldObject")


class _Review(msgspec.Struct):
    request: _Request


class _ManagedMeta(msgspec.Struct, rename="camel", frozen=True):
    managed_fields: msgspec.Raw = msgspec.Raw()


class _ManagedObject(msgspec.Struct, frozen=True):
    metadata: _ManagedMeta = _ManagedMeta()


_REVIEW_DECODER: Final = msgspec.json.Decoder(_Review)
_MANAGED_DECODER: Final = msgspec.json.Decoder(_ManagedObject)
_ENCODER: Final = msgspec.json.Encoder()


def read_review(body: bytes) -> _Request | None:
    """Return the request of an AdmissionReview, None when the body is not one."""
    try:
        return _REVIEW_DECODER.decode(body).request
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_response(uid: str, patch: Iterable[_Operation] = ()) -> bytes:
    """Return the AdmissionReview that allows the request, with the patch if there is one."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    operations = tuple(patch)
    if operations:
        response["patchType"] = "JSONPatch"
        # NB: msgspec encodes bytes as base64, which the API requires of a patch.
        response["patch"] = _ENCODER.encode(operations)
    review = {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}
    return _ENCODER.encode(review)


def answer_admission(
    request: _Request, view: ClusterView, answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = ()
) -> AdmissionAnswer:
    """Return the answer to a create or update of a slice; total.

    `answers` are those of a custom heuristic to the questions of an earlier result.
    """
    if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
        return AdmissionAnswer(AdmissionVerdict.FOREIGN)
    if request.options is not None and request.options.field_manager == HINTS_MANAGER:
        return AdmissionAnswer(AdmissionVerdict.OURS)
    incoming = _read_slice(request.new)
    old = _read_slice(request.old) if request.operation == "UPDATE" else None
    if incoming is None or (request.operation == "UPDATE" and old is None):
        return AdmissionAnswer(AdmissionVerdict.UNREADABLE)
    key = incoming.service_key
    if not key.name or not is_managed_by(incoming, view.settings.managed_by):
        return AdmissionAnswer(AdmissionVerdict.FOREIGN)
    service = view.service(key)
    if service is None:
        return AdmissionAnswer(AdmissionVerdict.UNKNOWN)
    scope = decide_scope(service, view.settings)
    if not scope.is_ours:
        return AdmissionAnswer(AdmissionVerdict.FOREIGN)
    carried = carry_hints(incoming, old)
    facts: dict[int, SliceFacts] = {}

    def facts_of(endpoint_slice: EndpointSlice) -> SliceFacts:
        if endpoint_slice is not carried:
            return view.facts(endpoint_slice)
        if not facts:
            facts[0] = view.facts(endpoint_slice)
        return facts[0]

    name = incoming.metadata.name
    others = [sibling for sibling in view.slices(key) if sibling.metadata.name != name]
    hinted = rehint(
        service,
        scope.strategy,
        (*others, carried),
        cluster=view.cluster,
        settings=view.settings,
        owners=view.owners,
        facts=facts_of,
        address_type=incoming.address_type,
        answers=answers,
        shares=view.shares(service, scope.strategy),
    )
    if hinted.questions:
        return AdmissionAnswer(
            AdmissionVerdict.PENDING, heuristic=scope.strategy.value, questions=hinted.questions
        )
    desired = next(
        (changed for changed in hinted.changed if changed.metadata.name == name), carried
    )
    patch = hint_operations(incoming, desired)
    if old is not None and _is_no_op(incoming, desired, old):
        patch += _trigger_time_operations(incoming, old)
        patch += _managed_fields_operations(request)
    return AdmissionAnswer(
        AdmissionVerdict.HINTED if patch else AdmissionVerdict.RIGHT, tuple(patch)
    )


def hint_operations(present: EndpointSlice, desired: EndpointSlice) -> list[_Operation]:
    """Return the operations that turn the hints of one version of a slice into those of another.

    Both versions must have the same endpoints in the same order.
    """
    operations: list[_Operation] = []
    pairs = zip(present.endpoints, desired.endpoints, strict=True)
    for index, (endpoint, hinted) in enumerate(pairs):
        if endpoint.hints == hinted.hints:
            continue
        path = f"/endpoints/{index}/hints"
        if hinted.hints is None:
            operations.append({"op": "remove", "path": path})
        else:
            # NB: "add" replaces a member that exists.
            operations.append({"op": "add", "path": path, "value": hinted.hints})
    return operations


def _is_no_op(incoming: EndpointSlice, desired: EndpointSlice, old: EndpointSlice) -> bool:
    """Return whether an update changes nothing but perhaps the trigger time."""
    new_meta, old_meta = incoming.metadata, old.metadata
    return (
        desired.endpoints == old.endpoints
        and incoming.ports == old.ports
        and new_meta.labels == old_meta.labels
        and new_meta.owner_references == old_meta.owner_references
        and new_meta.finalizers == old_meta.finalizers
        and _without_trigger_time(new_meta.annotations)
        == _without_trigger_time(old_meta.annotations)
    )


def _trigger_time_operations(incoming: EndpointSlice, old: EndpointSlice) -> list[_Operation]:
    before = old.metadata.annotations.get(TRIGGER_TIME_ANNOTATION)
    after = incoming.metadata.annotations.get(TRIGGER_TIME_ANNOTATION)
    if before == after:
        return []
    if before is None:
        return [{"op": "remove", "path": _TRIGGER_PATH}]
    if not incoming.metadata.annotations:
        return [{"op": "add", "path": _ANNOTATIONS, "value": {TRIGGER_TIME_ANNOTATION: before}}]
    return [{"op": "add", "path": _TRIGGER_PATH, "value": before}]


def _managed_fields_operations(request: _Request) -> list[_Operation]:
    # NB: the API server computes the managed fields before it calls webhooks, and stores an object
    # in which only they differ.
    before = _MANAGED_DECODER.decode(request.old).metadata.managed_fields
    after = _MANAGED_DECODER.decode(request.new).metadata.managed_fields
    if bytes(before) == bytes(after) or not bytes(before):
        return []
    return [{"op": "add", "path": _MANAGED_FIELDS, "value": before}]


def _without_trigger_time(annotations: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in annotations.items() if key != TRIGGER_TIME_ANNOTATION}


def _read_slice(raw: msgspec.Raw) -> EndpointSlice | None:
    decoded = decode("EndpointSlice", memoryview(raw))
    return decoded if isinstance(decoded, EndpointSlice) else None


class Webhook:
    """One server; start and stop it once."""

    def __init__(
        self,
        view: ClusterView,
        *,
        is_ready: Callable[[], bool],
        metrics: WebhookMetrics,
        clock: Clock,
    ) -> None:
        self._view = view
        self._is_ready = is_ready
        self._metrics = metrics
        self._clock = clock
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_post(WEBHOOK_PATH, self._review)
        add_health_pages(app, is_ready=is_ready)
        self._server = PageServer(app, stop_within_s=5.0)

    def load_certificate(self, pair: ServingPair) -> None:
        """Use this certificate for new connections; raise ConfigError for an invalid one."""
        load_pair(self._context, pair)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; raise ListenError when the address is not available."""
        return await self._server.start(host, port, tls=self._context)

    async def stop(self) -> None:
        """Stop listening; pending answers are sent first."""
        await self._server.stop()

    async def review(self, body: bytes) -> bytes | None:
        """Return the answer to an AdmissionReview; None when the body is not one."""
        started = self._clock.monotonic()
        request = read_review(body)
        if request is None:
            return None
        if not self._is_ready():
            self._metrics.reviewed("early", self._clock.monotonic() - started)
            return write_response(request.uid)
        try:
            answer = answer_admission(request, self._view)
            if answer.questions:
                heuristics = self._view.settings.heuristics
                answers = await fetch_answers(heuristics, answer.heuristic, answer.questions)
                answer = answer_admission(request, self._view, answers)
            response = write_response(request.uid, answer.patch)
            verdict = answer.verdict.value
        except Exception:  # noqa: BLE001 - logged, and the write is allowed
            _log.exception("review failed", uid=request.uid)
            response, verdict = write_response(request.uid), "error"
        self._metrics.reviewed(verdict, self._clock.monotonic() - started)
        return response

    async def _review(self, request: web.Request) -> web.Response:
        response = await self.review(await request.read())
        if response is None:
            return web.Response(status=400, text="the body must be an AdmissionReview")
        return web.Response(body=response, content_type=_JSON)
