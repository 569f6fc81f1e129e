"""Answers complete requests: authenticates and authorizes them, and routes them to operations.

The application knows the paths of the API and no sockets. Every rejection below is raised as a
StatusError and becomes a Status here; a fault of the server is logged with its traceback and
answered with 500, and the server continues. Small requests are answered at once; large ones run in
a thread, and those of a user that has used its share of the event loop wait for their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from keepclose.apiserver.auth.users import AUTHENTICATED, MASTERS, RequestUser
from keepclose.apiserver.registry.endpointslices import DEPRECATED
from keepclose.apiserver.serving.attempts import MAX_ATTEMPTS, Attempt, ConflictingWriteError
from keepclose.apiserver.serving.deleting import Deleter
from keepclose.apiserver.serving.fair_queue import RequestThreads, Turns
from keepclose.apiserver.serving.guard import is_review, respond_review
from keepclose.apiserver.serving.http_messages import (
    HttpRequest,
    HttpResponse,
    PendingResponse,
    ResponseStream,
)
from keepclose.apiserver.serving.negotiation import (
    YAML_FORM,
    ListRendering,
    ResponseForm,
    read_accept,
    render_list,
)
from keepclose.apiserver.serving.object_meta import check_path_name
from keepclose.apiserver.serving.operations import Operations
from keepclose.apiserver.serving.options import (
    RequestTarget,
    parse_path,
    parse_query,
    read_list_options,
    verb_of,
    wants_watch,
)
from keepclose.apiserver.serving.reading import read_candidates, select_entries
from keepclose.apiserver.serving.request_bodies import PROTOBUF_TYPE, YAML_TYPES, media_type_of
from keepclose.apiserver.serving.responses import (
    PLAIN_BYTES,
    ListStream,
    respond_error,
    respond_with,
    warning_headers,
    warnings_on_error,
)
from keepclose.apiserver.serving.subresources import (
    log_target,
    read_log,
    reject_container_request,
)
from keepclose.apiserver.serving.watching import Watch
from keepclose.apiserver.status_errors import (
    StatusError,
    method_not_allowed,
    path_not_found,
    stale,
    too_many_requests,
)
from keepclose.apiserver.storage.errors import Exists, Missing, Stale, StorageError
from keepclose.apiserver.storage.store import Store

LARGE_BYTES: Final = 32 * 1024
"""A request with more bytes of JSON runs in a thread."""
YAML_FACTOR: Final = 8
"""YAML takes at least this many times as long to read and write as JSON."""
PROTOBUF_FACTOR: Final = 8
"""An empty object takes two bytes of protobuf."""
MANY_VALUES: Final = 3000
"""JSON with more values runs in a thread too; 32 KiB of an ordinary object have half as many."""
SMALL_LIST: Final = 64
"""A list of more objects runs in a thread, unless they are sent as they are stored."""
MAX_WATCHES: Final = 1000
"""The open watches that one user may have; administrators are exempt."""
_PLAIN: Final = ResponseForm()
# As in kube-apiserver, probes are answered under any load.
_NEVER_QUEUED: Final = frozenset(("/healthz", "/livez", "/readyz"))

_log = structlog.get_logger(__name__)

_Query = dict[str, str]
_Page = Callable[[HttpRequest, _Query], HttpResponse]


class _Guard(Protocol):
    """Authenticates and authorizes requests."""

    def admit(self, request: HttpRequest, verb: str, target: RequestTarget | None) -> RequestUser:
        """Return the user of an authorized request. Raises StatusError for another."""
        ...

    def user_of(self, request: HttpRequest) -> RequestUser:
        """Return the user of the request."""
        ...


class _RequestMetrics(Protocol):
    """Counts requests."""

    def count(self, verb: str, target: RequestTarget | None, code: int, seconds: float) -> None:
        """Record an answered request."""
        ...

    def watch_started(self, target: RequestTarget) -> Callable[[], None]:
        """Record the start of a watch; the caller calls the returned function at its end."""
        ...


class Call(NamedTuple):
    """An authorized request for a resource."""

    request: HttpRequest
    target: RequestTarget
    query: _Query
    verb: str
    form: ResponseForm
    user: RequestUser

    @property
    def exempt(self) -> bool:
        """Whether the user never waits, as administrators."""
        return MASTERS in self.user.groups


class Application:
    """The handler of all requests of one server."""

    def __init__(
        self,
        store: Store,
        operations: Operations,
        guard: _Guard,
        metrics: _RequestMetrics,
        pages: dict[str, _Page],
        *,
        bookmark_seconds: float = 60.0,
    ) -> None:
        """Assemble the parts; `pages` answer the paths without a resource."""
        self.store = store
        self.writer = operations.writer
        self._operations = operations
        self._guard = guard
        self._metrics = metrics
        self._pages = pages
        self._bookmark_seconds = bookmark_seconds
        self.workers = RequestThreads()
        self._turns: Turns[HttpResponse | ResponseStream | PendingResponse] = Turns()
        # The portions of lists that are sent as they are stored.
        self._list_turns: Turns[bytes] = Turns()
        self._watches: dict[str, int] = {}
        # Called for each request.
        self.on_request: Callable[[], None] = _nothing

    def handle(self, request: HttpRequest) -> HttpResponse | ResponseStream | PendingResponse:
        """Return the response to a request, a stream or a pending response; never raises."""
        started = time.perf_counter()
        self.on_request()
        target: RequestTarget | None = None
        verb = request.method.lower()
        try:
            query = parse_query(request.query)
            target = parse_path(request.path)
            if target is None:
                # NB: the OpenAPI documents are built at their first request.
                if _is_large_body(request) or request.path.startswith("/openapi/"):
                    return self._page_in_thread(request, query, started)
                if request.path in _NEVER_QUEUED:
                    answer: HttpResponse | ResponseStream = self._page(request, query)
                else:
                    return self._page_in_turn(request, query, started)
            else:
                served_verb = verb_of(request.method, target, watch=wants_watch(query))
                # NB: a user without rights to the resource must not learn which verbs it supports.
                verb = served_verb or verb
                user = self._guard.admit(request, verb, target)
                if served_verb is None:
                    raise method_not_allowed()  # noqa: TRY301 - answered as all rejections are
                form = read_accept(request.header(b"accept"))
                call = Call(request, target, query, served_verb, form, user)
                if self._is_large(call):
                    return PendingResponse(partial(self._answer_in_thread, call, started))
                if MASTERS not in user.groups:
                    serve = partial(self._answer_now, call, started)
                    # NB: starting a watch costs little, and a watch that is cancelled in a queue
                    # would never be closed.
                    if verb == "watch":
                        return serve()
                    return self._take_turn(user, serve, (verb, target), started, call)
                answer = self._serve(call, self._operations)
        except Exception as error:  # noqa: BLE001 - every failure is answered
            answer = _error_answer(error, request)
        self._count(verb, target, answer, started)
        return answer

    def _take_turn(
        self,
        user: RequestUser,
        serve: Callable[[], HttpResponse | ResponseStream],
        counted: tuple[str, RequestTarget | None],
        started: float,
        call: Call | None = None,
    ) -> HttpResponse | ResponseStream | PendingResponse:
        """Answer now, or later when the user has used its share of the event loop."""
        if MASTERS in user.groups or not self._turns.must_wait(user.name, started):
            return serve()

        def begin() -> HttpResponse | ResponseStream | PendingResponse:
            # The stored objects may have grown while the request waited.
            if call is not None and self._is_large(call):
                return PendingResponse(partial(self._answer_in_thread, call, started))
            return serve()

        async def wait() -> HttpResponse | ResponseStream:
            try:
                answer = await self._turns.run(user.name, begin)
                return await answer.begin() if isinstance(answer, PendingResponse) else answer
            except StatusError as failure:
                answer = respond_error(failure)
                self._count(*counted, answer, started)
                return answer

        return PendingResponse(wait)

    def _page_in_turn(
        self, request: HttpRequest, query: _Query, started: float
    ) -> HttpResponse | ResponseStream | PendingResponse:
        user = self._guard.user_of(request)
        verb = request.method.lower()

        def serve() -> HttpResponse:
            begun = time.perf_counter()
            try:
                answer = self._page(request, query)
            except Exception as error:  # noqa: BLE001 - every failure is answered
                answer = _error_answer(error, request)
            self._turns.spend(user.name, begun, time.perf_counter() - begun)
            self._count(verb, None, answer, started)
            return answer

        return self._take_turn(user, serve, (verb, None), started)

    def _answer_now(self, call: Call, started: float) -> HttpResponse | ResponseStream:
        begun = time.perf_counter()
        try:
            answer: HttpResponse | ResponseStream = self._serve(call, self._operations)
        except Exception as error:  # noqa: BLE001 - every failure is answered
            answer = _error_answer(error, call.request)
        self._turns.spend(call.user.name, begun, time.perf_counter() - begun)
        self._count(call.verb, call.target, answer, started)
        return answer

    async def _answer_in_thread(self, call: Call, started: float) -> HttpResponse | ResponseStream:
        """Answer in a thread."""
        try:
            if call.verb == "list":
                answer: HttpResponse | ResponseStream = await self._list_in_thread(call)
            else:
                answer = await self._run_in_thread(call, partial(self._attempt, call))
        except Exception as error:  # noqa: BLE001 - every failure is answered
            answer = _error_answer(error, call.request)
        self._count(call.verb, call.target, answer, started)
        return answer

    def _page_in_thread(
        self, request: HttpRequest, query: _Query, started: float
    ) -> PendingResponse:
        user = self._guard.user_of(request)

        async def begin() -> HttpResponse:
            try:
                answer = await self.workers.run(
                    user.name, partial(self._page, request, query), exempt=MASTERS in user.groups
                )
            except Exception as error:  # noqa: BLE001 - every failure is answered
                answer = _error_answer(error, request)
            self._count(request.method.lower(), None, answer, started)
            return answer

        return PendingResponse(begin)

    def _count(
        self,
        verb: str,
        target: RequestTarget | None,
        answer: HttpResponse | ResponseStream,
        started: float,
    ) -> None:
        code = answer.status if isinstance(answer, HttpResponse) else 200
        self._metrics.count(verb, target, code, time.perf_counter() - started)

    async def _run_in_thread(self, call: Call, work: Callable[[], HttpResponse]) -> HttpResponse:
        return await self.workers.run(call.user.name, work, exempt=call.exempt)

    def _attempt(self, call: Call) -> HttpResponse:
        """Execute the call in a thread, and repeat it after a conflict with another write."""
        for _ in range(MAX_ATTEMPTS):
            attempt = Attempt(self.store, self.workers)
            writer = self.writer.with_store(attempt)
            operations = Operations(writer, Deleter(attempt, writer.strategies))
            try:
                answer = self._serve(call, operations)
            except (Exists, Missing, ConflictingWriteError, Stale):
                continue
            if isinstance(answer, HttpResponse):
                return answer
        resource = call.target.resource
        raise stale(resource.plural, resource.group, call.target.name)

    def _is_large(self, call: Call) -> bool:
        """Return whether the request must run in a thread."""
        verb, target = call.verb, call.target
        if verb == "watch":
            return False
        if verb in ("list", "deletecollection"):
            if self.store.count(target.resource.store, target.namespace) > SMALL_LIST:
                return True
            size = sum(
                len(entry.data)
                for entry in self.store.entries(target.resource.store, target.namespace)
            )
        else:
            size = len(call.request.body)
            if verb == "get" and call.form == _PLAIN:
                return False
            if _is_large_body(call.request):
                return True
            if target.name:
                entry = self.store.get(target.resource.store, target.namespace, target.name)
                if entry is not None:
                    size += len(entry.data)
                    if entry.data.count(b",") > MANY_VALUES:
                        return True
        if call.form.media_type == YAML_FORM:
            size *= YAML_FACTOR
        return size > LARGE_BYTES

    def _serve(self, call: Call, operations: Operations) -> HttpResponse | ResponseStream:
        request, target, query, verb, form, _ = call
        # kube-apiserver sends the warning from the release that it names.
        warned = target.resource.qualified == "endpoints" and self.writer.gates.knows_since(33)
        deprecated = [DEPRECATED] if warned else []
        with warnings_on_error(deprecated):
            if verb != "update":
                # An update checks the name of its body first.
                check_path_name(target)
            if verb == "list":
                answer: HttpResponse | ResponseStream = self._list(call)
            elif verb == "watch":
                answer = self._watch(call)
            else:
                answer = operations.verbs[verb](request, target, query, form)
        if deprecated and isinstance(answer, HttpResponse):
            answer.headers = warning_headers(deprecated) + answer.headers
        return answer

    def _page(self, request: HttpRequest, query: _Query) -> HttpResponse:
        if request.method == "POST" and is_review(request.path):
            user = self._guard.user_of(request)
            if AUTHENTICATED not in user.groups:
                self._guard.admit(request, "create", None)
            return respond_review(request, user)
        target = log_target(request.path)
        self._guard.admit(request, request.method.lower(), target)
        if target is not None and request.method == "GET":
            log = read_log(self.store, target, query.get("container", ""))
            if log is not None:
                return HttpResponse(200, log, b"text/plain")
        reject_container_request(request.path)
        path = request.path.rstrip("/") or "/"
        page = self._pages.get(path)
        if page is None:
            raise path_not_found()
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        return page(request, query)

    def _list(self, call: Call) -> HttpResponse:
        """Return a short list."""
        options = read_list_options(call.query)
        listed = select_entries(read_candidates(self.store, call.target, options), options)
        data = render_list(
            call.target.resource,
            listed.entries,
            call.form,
            listed.metadata,
            call.query.get("includeObject", ""),
        )
        return respond_with(200, data, call.form)

    async def _list_in_thread(self, call: Call) -> HttpResponse | ResponseStream:
        """Return a long list as a stream, or at once when few bytes are selected."""
        target, form = call.target, call.form
        check_path_name(target)
        options = read_list_options(call.query)
        candidates = read_candidates(self.store, target, options)
        run = partial(self.workers.run, call.user.name, exempt=call.exempt)
        if candidates.selection.matches_all or len(candidates.entries) <= SMALL_LIST:
            listed = select_entries(candidates, options)
        else:
            listed = await run(partial(select_entries, candidates, options))
        include = call.query.get("includeObject", "")
        rendering = ListRendering(target.resource, form, listed.metadata, include)
        entries = listed.entries
        if rendering.is_plain and sum(len(entry.data) for entry in entries) <= PLAIN_BYTES:
            return respond_with(200, rendering.whole(entries), form)
        # NB: a list must not be rejected after its first portion.
        take_turn = partial(self._list_turns.run, call.user.name, begun=True)
        run_portion = take_turn if rendering.is_plain else partial(run, begun=True)
        return ListStream(rendering, entries, run_portion)

    def _watch(self, call: Call) -> ResponseStream:
        name = call.user.name
        open_watches = self._watches.get(name, 0)
        if open_watches >= MAX_WATCHES and not call.exempt:
            raise too_many_requests()
        watch = Watch(
            self.store,
            call.target,
            read_list_options(call.query),
            call.form,
            include=call.query.get("includeObject", ""),
            bookmark_seconds=self._bookmark_seconds,
            take_turn=partial(self._list_turns.run, name, begun=True),
            run=partial(self.workers.run, name, exempt=call.exempt, begun=True),
        )
        self._watches[name] = open_watches + 1
        ended = self._metrics.watch_started(call.target)

        def close() -> None:
            ended()
            left = self._watches[name] - 1
            if left:
                self._watches[name] = left
            else:
                del self._watches[name]

        watch.on_close = close
        return watch


def _is_large_body(request: HttpRequest) -> bool:
    """Return whether decoding the body takes so long that it must run in a thread."""
    size = len(request.body)
    if not size:
        return False
    media_type = media_type_of(request.header(b"content-type"))
    if media_type in YAML_TYPES:
        size *= YAML_FACTOR
    elif media_type == PROTOBUF_TYPE:
        size *= PROTOBUF_FACTOR
    return size > LARGE_BYTES or request.body.count(b",") > MANY_VALUES


def _error_answer(error: Exception, request: HttpRequest) -> HttpResponse:
    """Return the response to an error; a fault of the server is logged."""
    if isinstance(error, StatusError):
        answer = respond_error(error)
        # NB: frames of the traceback refer to the future that holds the error, and to the body of
        # the request. Only the garbage collector would free them.
        error.__traceback__ = error.__context__ = None
        return answer
    if isinstance(error, StorageError):
        _log.error("storage failed", path=request.path, error=str(error))
        return respond_error(StatusError(500, "InternalError", f"Internal error: {error}"))
    _log.error("request failed", method=request.method, path=request.path, exc_info=error)
    message = "Internal error occurred: see the server's log"
    return respond_error(StatusError(500, "InternalError", message))


def _nothing() -> None:
    pass
