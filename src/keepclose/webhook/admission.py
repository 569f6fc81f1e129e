"""What a webhook answers when the API server shows it a slice that is about to be written.

The write is always allowed. The answer changes the hints of endpoints and nothing else, with one
exception: an update of the built-in controller that had nothing to say but "no hints" also moves
the trigger time, and who owns it, to and fro. Both are put back, so that nothing is left to write
and nobody watches it. Whatever is unknown, unreadable or none of ours passes as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from keepclose.model.decoding import decode
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION
from keepclose.routing.heuristic_answers import HeuristicAnswer, ZoneDemand
from keepclose.routing.hint_facts import SliceFacts
from keepclose.routing.node_level import EndpointOwner
from keepclose.slices.changes import is_managed_by
from keepclose.slices.settings import Cluster, Settings
from keepclose.webhook.rehinting import carry_hints, rehint
from keepclose.webhook.scope import claim_service

HINTS_MANAGER: Final = "keepclose-hints"
"""The field manager of our own writes, which need no second opinion."""
_API_VERSION: Final = "admission.k8s.io/v1"
_ANNOTATIONS: Final = "/metadata/annotations"
_OWNERSHIP: Final = "/metadata/managedFields"
_TRIGGER_PATH: Final = f"{_ANNOTATIONS}/{TRIGGER_TIME_ANNOTATION.replace('/', '~1')}"

_Operation = dict[str, Any]
"""One step of a JSON patch (RFC 6902)."""


class View(Protocol):
    """What is known of the cluster at this moment, without asking anybody."""

    @property
    def settings(self) -> Settings:
        """How hints are decided."""
        ...

    @property
    def cluster(self) -> Cluster:
        """The nodes."""
        ...

    def service(self, key: NamespacedName) -> Service | None:
        """Return a Service, None when it is not known."""
        ...

    def slices(self, key: NamespacedName) -> Sequence[EndpointSlice]:
        """Return the slices of a Service that the built-in controller manages."""
        ...

    def owners(self, slices: Sequence[EndpointSlice]) -> Sequence[EndpointOwner]:
        """Return node and owner of the ready endpoints, each pair once."""
        ...

    def facts(self, one: EndpointSlice) -> SliceFacts:
        """Return the facts of a slice."""
        ...


class AdmissionVerdict(StrEnum):
    """What became of a slice; the words are those of a metric."""

    HINTED = "hinted"
    RIGHT = "right"
    """It is ours, and its hints are right as they are."""
    OURS = "ours"
    """We wrote it ourselves."""
    FOREIGN = "foreign"
    """It is none of ours."""
    UNKNOWN = "unknown"
    """Its Service has not been seen."""
    UNREADABLE = "unreadable"
    PENDING = "pending"
    """A custom heuristic has not answered yet."""


class AdmissionAnswer(msgspec.Struct, frozen=True):
    """The steps that change the slice; none leave it as it is."""

    verdict: AdmissionVerdict
    patch: tuple[_Operation, ...] = ()
    heuristic: str = ""
    """The custom heuristic that has to answer the questions first."""
    questions: tuple[ZoneDemand, ...] = ()


class _Options(msgspec.Struct, rename="camel"):
    field_manager: str | None = None


class _Request(msgspec.Struct, rename="camel"):
    """The request of an AdmissionReview; the objects are read only where they are needed."""

    uid: str
    operation: str = ""
    sub_resource: str | None = None
    options: _Options | None = None
    new: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="object")
    old: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="oldObject")


class _Review(msgspec.Struct):
    request: _Request


class _Owned(msgspec.Struct, rename="camel", frozen=True):
    managed_fields: msgspec.Raw = msgspec.Raw()


class _OwnedObject(msgspec.Struct, frozen=True):
    metadata: _Owned = _Owned()


_REVIEWS: Final = msgspec.json.Decoder(_Review)
_OWNED: Final = msgspec.json.Decoder(_OwnedObject)
_ENCODER: Final = msgspec.json.Encoder()


def read_review(body: bytes) -> _Request | None:
    """Return the request of an AdmissionReview, None when the bytes are none."""
    try:
        return _REVIEWS.decode(body).request
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_response(uid: str, patch: Iterable[_Operation] = ()) -> bytes:
    """Return the AdmissionReview that allows the request, with the steps if there are any."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    steps = tuple(patch)
    if steps:
        response["patchType"] = "JSONPatch"
        # NB: bytes become base64, as the API wants a patch.
        response["patch"] = _ENCODER.encode(steps)
    review = {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}
    return _ENCODER.encode(review)


def answer_admission(
    request: _Request, view: View, answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = ()
) -> AdmissionAnswer:
    """Return what to do about a slice that is about to be created or updated; total.

    `answers` are those of a custom heuristic to the questions of an earlier answer.
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
    claim = claim_service(service, view.settings)
    if not claim.is_ours:
        return AdmissionAnswer(AdmissionVerdict.FOREIGN)
    carried = carry_hints(incoming, old)
    facts: dict[int, SliceFacts] = {}

    def facts_of(one: EndpointSlice) -> SliceFacts:
        if one is not carried:
            return view.facts(one)
        if not facts:
            facts[0] = view.facts(one)
        return facts[0]

    name = incoming.metadata.name
    others = [one for one in view.slices(key) if one.metadata.name != name]
    hinted = rehint(
        service,
        claim.strategy,
        (*others, carried),
        cluster=view.cluster,
        settings=view.settings,
        owners=view.owners,
        facts=facts_of,
        address_type=incoming.address_type,
        answers=answers,
    )
    if hinted.questions:
        return AdmissionAnswer(
            AdmissionVerdict.PENDING, heuristic=claim.strategy.value, questions=hinted.questions
        )
    wanted = next((one for one in hinted.changed if one.metadata.name == name), carried)
    patch = hint_steps(incoming, wanted)
    if old is not None and _says_nothing(incoming, wanted, old):
        patch += _trigger_steps(incoming, old)
        patch += _ownership_steps(request)
    return AdmissionAnswer(
        AdmissionVerdict.HINTED if patch else AdmissionVerdict.RIGHT, tuple(patch)
    )


def hint_steps(present: EndpointSlice, wanted: EndpointSlice) -> list[_Operation]:
    """Return the steps from the hints of one version to those of another with the same endpoints.

    The endpoints must stand in the same order.
    """
    steps: list[_Operation] = []
    for number, (one, other) in enumerate(zip(present.endpoints, wanted.endpoints, strict=True)):
        if one.hints == other.hints:
            continue
        path = f"/endpoints/{number}/hints"
        if other.hints is None:
            steps.append({"op": "remove", "path": path})
        else:
            # NB: adding a member that is there replaces it.
            steps.append({"op": "add", "path": path, "value": other.hints})
    return steps


def _says_nothing(incoming: EndpointSlice, wanted: EndpointSlice, old: EndpointSlice) -> bool:
    """Return whether an update leaves everything as it was, but the trigger time perhaps."""
    one, other = incoming.metadata, old.metadata
    return (
        wanted.endpoints == old.endpoints
        and incoming.ports == old.ports
        and one.labels == other.labels
        and one.owner_references == other.owner_references
        and one.finalizers == other.finalizers
        and _but_trigger(one.annotations) == _but_trigger(other.annotations)
    )


def _trigger_steps(incoming: EndpointSlice, old: EndpointSlice) -> list[_Operation]:
    before = old.metadata.annotations.get(TRIGGER_TIME_ANNOTATION)
    after = incoming.metadata.annotations.get(TRIGGER_TIME_ANNOTATION)
    if before == after:
        return []
    if before is None:
        return [{"op": "remove", "path": _TRIGGER_PATH}]
    if not incoming.metadata.annotations:
        return [{"op": "add", "path": _ANNOTATIONS, "value": {TRIGGER_TIME_ANNOTATION: before}}]
    return [{"op": "add", "path": _TRIGGER_PATH, "value": before}]


def _ownership_steps(request: _Request) -> list[_Operation]:
    # NB: the API server works out who owns which field before it asks us, and a difference in that
    # alone would be stored.
    before = _OWNED.decode(request.old).metadata.managed_fields
    after = _OWNED.decode(request.new).metadata.managed_fields
    if bytes(before) == bytes(after) or not bytes(before):
        return []
    return [{"op": "add", "path": _OWNERSHIP, "value": before}]


def _but_trigger(annotations: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in annotations.items() if key != TRIGGER_TIME_ANNOTATION}


def _read_slice(raw: msgspec.Raw) -> EndpointSlice | None:
    found = decode("EndpointSlice", memoryview(raw))
    return found if isinstance(found, EndpointSlice) else None
