"""A small API server in memory, in place of a transport, with a switch for every fault.

Lists, pages, watches, bookmarks, expiry and conflicts work as in Kubernetes, for the kinds that
keepclose uses; there is no validation, no defaulting and no selector. A fault of one request is an
answer that comes before the real one (`answer_next`); a fault of an open watch is a call of its
method (`watches`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from keepclose.kube import requests
from keepclose.kube.errors import ConnectionLost
from keepclose.kube.requests import Kind
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.testing.fake_cluster_state import Change, Compacted, FakeStore, FakeWatch
from keepclose.testing.scripted_streams import (
    HOST,
    Answer,
    FakeResponse,
    MovableClock,
    ScriptedTransport,
    status_of,
)

T = TypeVar("T")
_KINDS: Final = {
    kind.path(): kind
    for kind in (
        requests.NODES,
        requests.PODS,
        requests.SERVICES,
        requests.ENDPOINTS,
        requests.EVENTS,
        requests.ENDPOINT_SLICES,
        requests.LEASES,
        requests.SECRETS,
        requests.MUTATING_WEBHOOKS,
    )
}
_JSON: Final = {"Content-Type": "application/json"}


class _Refused(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class FakeCluster:
    """Serves any number of clients; a test writes to it directly or through a client."""

    def __init__(
        self, clock: MovableClock, *, history: int = 20, streams_lists: bool = True
    ) -> None:
        self._clock = clock
        self._script = ScriptedTransport(clock)
        self._watches: list[FakeWatch] = []
        self.store = FakeStore(history=history)
        self.requests: list[ApiRequest] = []
        self.streams_lists = streams_lists
        """Whether a watch may begin with all objects; else the server rejects it."""
        self.expires_by_event = True
        """Whether an expired version ends a watch by an event; else by the status."""
        self.stale_by = 0
        """How many writes the server lags behind when a client accepts any version."""
        self.lost_answers = 0
        """How many of the next writes succeed while the client gets no answer."""

    @property
    def version(self) -> str:
        """The current resource version."""
        return str(self.store.version)

    @property
    def watches(self) -> list[FakeWatch]:
        """The open watches, stalled ones included."""
        self._watches = [watch for watch in self._watches if not watch.is_over]
        return list(self._watches)

    def answer_next(self, *answers: Answer) -> None:
        """Give these answers to the next requests, whatever their path."""
        self._script.script(*answers)

    def objects(self, kind: Kind[T]) -> dict[NamespacedName, T]:
        """Return all objects of a kind as clients see them."""
        present = self.store.at(kind.plural, self.store.version)
        return {key: msgspec.convert(obj, kind.struct) for key, obj in present.items()}

    def put(self, kind: Kind[Any], obj: msgspec.Struct | JsonObject) -> JsonObject:
        """Write an object as another client would."""
        plain: JsonObject = msgspec.to_builtins(obj)
        metadata = plain["metadata"]
        key = NamespacedName(metadata.get("namespace", ""), metadata["name"])
        return self.store.put(kind.plural, key, plain)

    def delete(self, kind: Kind[Any], name: str, *, namespace: str = "") -> None:
        """Delete an object as another client would."""
        self.store.delete(kind.plural, NamespacedName(namespace, name))

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer one request."""
        self.requests.append(request)
        if self._script.left:
            return await self._script.send(request)
        try:
            status, body = self._serve(request)
        except _Refused as refused:
            status, body = refused.code, status_of(refused.code, refused.reason, "")
        except Compacted:
            status, body = 410, status_of(410, "Expired", "too old resource version")
        if isinstance(body, FakeWatch):
            return FakeResponse(status, _JSON, body.chunks())
        if request.method != "GET" and status < 300 and self.lost_answers > 0:
            self.lost_answers -= 1
            raise ConnectionLost(HOST, "reset by peer")
        return FakeResponse(status, _JSON, _once(msgspec.json.encode(body)))

    async def close(self) -> None:
        """Do nothing; the cluster outlives its clients."""

    def _serve(self, request: ApiRequest) -> tuple[int, JsonObject | FakeWatch]:
        kind, namespace, name = _resolve(request.path)
        query = dict(request.query)
        body: JsonObject = msgspec.json.decode(request.body) if request.body else {}
        key = NamespacedName(namespace, name)
        if query.get("labelSelector") or query.get("fieldSelector"):
            _refuse(400, "BadRequest")
        if not name:
            if request.method == "POST":
                return 201, self._create(kind, namespace, body)
            if query.get("watch"):
                return 200, self._watch(kind, namespace, query)
            return 200, self._list(kind, namespace, query)
        current = self.store.get(kind.plural, key)
        if current is None:
            _refuse(404, "NotFound")
        if request.method == "GET":
            return 200, current
        if request.method == "DELETE":
            wanted = body.get("preconditions", {})
            if any(current["metadata"].get(field) != value for field, value in wanted.items()):
                _refuse(409, "Conflict")
            return 200, self.store.delete(kind.plural, key)
        if request.method == "PATCH":
            body = merge(current, body)
        wanted_version = body.get("metadata", {}).get("resourceVersion")
        if wanted_version and wanted_version != current["metadata"]["resourceVersion"]:
            _refuse(409, "Conflict")
        return 200, self.store.put(kind.plural, key, body)

    def _create(self, kind: Kind[Any], namespace: str, body: JsonObject) -> JsonObject:
        key = NamespacedName(namespace, body["metadata"]["name"])
        if self.store.get(kind.plural, key) is not None:
            _refuse(409, "AlreadyExists")
        return self.store.put(kind.plural, key, body)

    def _list(self, kind: Kind[Any], namespace: str, query: dict[str, str]) -> JsonObject:
        token = query.get("continue", "")
        is_any = query.get("resourceVersion") == "0"
        version = self.store.oldest(self.stale_by) if is_any else self.store.version
        start = 0
        if token:
            version, start = (int(number) for number in token.split(":"))
        present = [
            obj
            for key, obj in self.store.at(kind.plural, version).items()
            if namespace in ("", key.namespace)
        ]
        # A server that answers from its cache ignores the limit.
        limit = 0 if is_any else int(query.get("limit", 0))
        end = start + limit if limit else len(present)
        metadata = {"resourceVersion": str(version)}
        if end < len(present):
            metadata["continue"] = f"{version}:{end}"
        return {"kind": f"{kind.kind}List", "metadata": metadata, "items": present[start:end]}

    def _watch(self, kind: Kind[Any], namespace: str, query: dict[str, str]) -> FakeWatch:
        asked = query.get("resourceVersion", "")
        streams_list = query.get("sendInitialEvents") == "true"
        if streams_list and not self.streams_lists:
            _refuse(422, "Invalid")
        watch = FakeWatch(
            self._clock,
            lambda obj: namespace in ("", obj["metadata"].get("namespace", "")),
            version=lambda: self.version,
            has_bookmarks=query.get("allowWatchBookmarks") == "true",
            limit_s=float(query.get("timeoutSeconds", 1800)),
        )
        if streams_list or asked in ("", "0"):
            for obj in self.store.at(kind.plural, self.store.version).values():
                watch.tell("ADDED", obj)
            if streams_list:
                watch.send_bookmark(ends_initial=True)
        else:
            try:
                missed = self.store.since(kind.plural, int(asked))
            except Compacted:
                if not self.expires_by_event:
                    raise
                watch.expire()
                return watch
            for change in missed:
                watch.tell(change.type, change.object)
        self._watches.append(watch)
        self.store.listeners.append(partial(_pass_on, watch, kind.plural))
        return watch


def merge(target: Any, patch: Any) -> Any:
    """Return a value changed by a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for member, value in patch.items():
        if value is None:
            merged.pop(member, None)
        else:
            merged[member] = merge(merged.get(member), value)
    return merged


def _pass_on(watch: FakeWatch, plural: str, change: Change) -> None:
    if change.plural == plural and not watch.is_over:
        watch.tell(change.type, change.object)


def _resolve(path: str) -> tuple[Kind[Any], str, str]:
    """Return the kind, the namespace and the name in a path."""
    for kind in _KINDS.values():
        prefix = kind.path().removesuffix(f"/{kind.plural}")
        steps = path.removeprefix(prefix).strip("/").split("/") if path.startswith(prefix) else []
        namespace = ""
        if len(steps) >= 2 and steps[0] == "namespaces":
            namespace, steps = steps[1], steps[2:]
        if steps and steps[0] == kind.plural and len(steps) <= 2:
            return kind, namespace, steps[1] if len(steps) == 2 else ""
    return _refuse(404, "NotFound")


def _refuse(code: int, reason: str) -> NoReturn:
    raise _Refused(code, reason)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
