"""From a complete request to its answer: who asks, may they, and which part answers.

Knows the paths of the API and nothing of sockets. Every refusal below comes up as a Failure and
becomes a Status here; a fault of our own is logged with its trace and answered with 500, and the
server goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import structlog

from keepclose.apiserver.failures import (
    Failure,
    method_not_allowed,
    no_such_path,
    unsupported_patch_type,
)
from keepclose.apiserver.patching.merge import apply_merge_patch
from keepclose.apiserver.patching.operations import apply_json_patch
from keepclose.apiserver.patching.strategic import apply_strategic_patch
from keepclose.apiserver.resources import BINDINGS
from keepclose.apiserver.security.users import AUTHENTICATED, User
from keepclose.apiserver.serving import bodies
from keepclose.apiserver.serving.answers import (
    answer_failure,
    answer_status,
    answer_with,
    answer_written,
    noting,
)
from keepclose.apiserver.serving.binding import SUCCESS, bind_pod
from keepclose.apiserver.serving.container_requests import refuse_container_request
from keepclose.apiserver.serving.deleting import Deleter, read_delete_options
from keepclose.apiserver.serving.forms import Form, encode, read_accept, render_entry, render_list
from keepclose.apiserver.serving.identities import check_path_name, drop_duplicate_owners
from keepclose.apiserver.serving.messages import Answer, Request, Stream
from keepclose.apiserver.serving.notices import warning_headers
from keepclose.apiserver.serving.options import (
    WriteOptions,
    parse_query,
    read_list_options,
    read_write_options,
    wants_watch,
)
from keepclose.apiserver.serving.reading import read_list, read_one
from keepclose.apiserver.serving.reviews import answer_review, answers_review
from keepclose.apiserver.serving.targets import Target, parse_path, verb_of
from keepclose.apiserver.serving.watching import Watch
from keepclose.apiserver.serving.writing import Writer, manager_name
from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.strategies.endpoints import DEPRECATED
from keepclose.apiserver.strategies.scale import scale_of, write_scale

log = structlog.get_logger(__name__)
Query = dict[str, str]


class Guard(Protocol):
    """Says who calls and what they may do; raises Failure where they may not."""

    def admit(self, request: Request, verb: str, target: Target | None) -> None:
        """Return when the request may go on."""
        ...

    def user_of(self, request: Request) -> User:
        """Return who calls."""
        ...


class Gauges(Protocol):
    """Counts requests."""

    def count(self, verb: str, target: Target | None, code: int, seconds: float) -> None:
        """Take note of an answered request."""
        ...

    def watch_started(self, target: Target) -> Callable[[], None]:
        """Take note of a watch; call what is returned when it ends."""
        ...


Page = Callable[[Request, Query], Answer]


class Application:
    """The API behind one server."""

    def __init__(
        self,
        writer: Writer,
        deleter: Deleter,
        guard: Guard,
        gauges: Gauges,
        pages: dict[str, Page],
        *,
        bookmark_seconds: float = 60.0,
    ) -> None:
        """Put the parts together; `pages` are the paths that are no resources."""
        self.writer = writer
        self.store = writer.store
        self._deleter = deleter
        self._guard = guard
        self._gauges = gauges
        self._pages = pages
        self._bookmark_seconds = bookmark_seconds
        # Called when a request comes in.
        self.on_request: Callable[[], None] = _nothing
        self._verbs: dict[str, Callable[[Request, Target, Query, Form], Answer | Stream]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def handle(self, request: Request) -> Answer | Stream:
        """Return the answer to a request; never raises."""
        started = time.perf_counter()
        self.on_request()
        target: Target | None = None
        verb = ""
        try:
            query = parse_query(request.query)
            target = parse_path(request.path)
            if target is None:
                verb = request.method.lower()
                answer: Answer | Stream = self._page(request, query)
            else:
                found = verb_of(request.method, target, watch=wants_watch(query))
                # NB: who may not use the resource must not learn which verbs it has.
                verb = found or request.method.lower()
                self._guard.admit(request, verb, target)
                answer = self._serve(request, target, query, found)
        except Failure as failure:
            answer = answer_failure(failure)
        except StorageError as error:
            log.error("storage", path=request.path, error=str(error))  # noqa: TRY400 - says it all
            answer = answer_failure(Failure(500, "InternalError", f"Internal error: {error}"))
        except Exception:
            log.exception("request failed", method=request.method, path=request.path)
            message = "Internal error occurred: see the server's log"
            answer = answer_failure(Failure(500, "InternalError", message))
        code = answer.status if isinstance(answer, Answer) else 200
        self._gauges.count(verb, target, code, time.perf_counter() - started)
        return answer

    def _serve(
        self, request: Request, target: Target, query: Query, verb: str | None
    ) -> Answer | Stream:
        if verb is None:
            raise method_not_allowed()
        form = read_accept(request.header(b"accept"))
        # The warning names the release from which on it is given.
        warned = target.resource.qualified == "endpoints" and self.writer.gates.knows_since(33)
        deprecated = [DEPRECATED] if warned else []
        with noting(deprecated):
            if verb != "update":
                # An update is compared with its body first.
                check_path_name(target)
            answer = self._verbs[verb](request, target, query, form)
        if deprecated and isinstance(answer, Answer):
            answer.headers = warning_headers(deprecated) + answer.headers
        return answer

    def _page(self, request: Request, query: Query) -> Answer:
        if request.method == "POST" and answers_review(request.path):
            user = self._guard.user_of(request)
            if AUTHENTICATED not in user.groups:
                self._guard.admit(request, "create", None)
            return answer_review(request, user)
        self._guard.admit(request, request.method.lower(), None)
        refuse_container_request(request.path)
        path = request.path.rstrip("/") or "/"
        page = self._pages.get(path)
        if page is None:
            raise no_such_path()
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        return page(request, query)

    def _get(self, request: Request, target: Target, query: Query, form: Form) -> Answer:
        del request
        entry = read_one(self.store, target)
        if target.subresource == "scale":
            scale = scale_of(target.resource, msgspec.json.decode(entry.data))
            return answer_with(200, encode(scale, form.media_type), form)
        data = render_entry(target.resource, entry, form, query.get("includeObject", ""))
        return answer_with(200, data, form)

    def _list(self, request: Request, target: Target, query: Query, form: Form) -> Answer:
        del request
        listed = read_list(self.store, target, read_list_options(query))
        data = render_list(
            target.resource, listed.entries, form, listed.metadata, query.get("includeObject", "")
        )
        return answer_with(200, data, form)

    def _watch(self, request: Request, target: Target, query: Query, form: Form) -> Stream:
        del request
        watch = Watch(
            self.store,
            target,
            read_list_options(query),
            form,
            include=query.get("includeObject", ""),
            bookmark_seconds=self._bookmark_seconds,
        )
        watch.on_close = self._gauges.watch_started(target)
        return watch

    def _create(self, request: Request, target: Target, query: Query, form: Form) -> Answer:
        binds = target.subresource == "binding" or target.resource is BINDINGS
        resource = BINDINGS if binds else target.resource
        options = read_write_options(query)
        new, warnings = bodies.read_object(
            request.body,
            bodies.media_type_of(request.header(b"content-type")),
            resource,
            self.writer.type_of(resource),
            validation=options.field_validation,
        )
        with noting(warnings):
            if binds:
                bind_pod(self.store, target, new, dry_run=options.dry_run)
                return answer_status(201, SUCCESS, warnings, form)
            warnings += drop_duplicate_owners(new["metadata"])
            written = self.writer.create(target, new, options, manager=_manager(options, request))
        return answer_written(target, written, warnings, form)

    def _update(self, request: Request, target: Target, query: Query, form: Form) -> Answer:
        resource = target.resource
        options = read_write_options(query)
        media_type = bodies.media_type_of(request.header(b"content-type"))
        manager = _manager(options, request)
        if target.subresource == "scale":
            scale = bodies.read_values(request.body, media_type, bodies.SCALE.kind)
            bodies.check_scale(scale, self.writer.type_of(bodies.SCALE))
            return self._scaled(target, scale, options, manager, form)
        new, warnings = bodies.read_object(
            request.body,
            media_type,
            resource,
            self.writer.type_of(resource, target),
            validation=options.field_validation,
        )
        with noting(warnings):
            warnings += drop_duplicate_owners(new["metadata"])
            written = self.writer.update(target, new, options, manager=manager)
        return answer_written(target, written, warnings, form)

    def _patch(self, request: Request, target: Target, query: Query, form: Form) -> Answer:
        resource = target.resource
        media_type = bodies.media_type_of(request.header(b"content-type"))
        if media_type not in bodies.PATCH_TYPES:
            raise unsupported_patch_type()
        options = read_write_options(query, patch=media_type)
        scaled = target.subresource == "scale"
        shape = self.writer.type_of(bodies.SCALE if scaled else resource, target)
        if media_type == bodies.APPLY:
            manager = bodies.required_manager(options.field_manager)
            applied = bodies.read_applied(request.body, resource)
            written = self.writer.apply(target, applied, options, manager=manager)
            return answer_written(target, written, [], form)
        manager = _manager(options, request)
        current = self.writer.current(target)
        document = scale_of(resource, current) if scaled else current
        if media_type == bodies.JSON_PATCH:
            patched = apply_json_patch(document, request.body)
        elif media_type == bodies.MERGE_PATCH:
            patched = apply_merge_patch(document, bodies.read_patch(request.body))
        else:
            patched = apply_strategic_patch(document, bodies.read_patch(request.body), shape)
        if scaled:
            bodies.check_scale(patched, shape, patched=True)
            return self._scaled(target, patched, options, manager, form)
        bodies.check_kind(patched, resource)
        warnings = bodies.check_patched(
            patched, resource, shape, validation=options.field_validation
        )
        with noting(warnings):
            written = self.writer.update(target, patched, options, manager=manager)
        return answer_written(target, written, warnings, form)

    def _scaled(
        self,
        target: Target,
        scale: dict[str, Any],
        options: WriteOptions,
        manager: str,
        form: Form,
    ) -> Answer:
        current = self.writer.current(target)
        changed = write_scale(target.resource, current, scale)
        written = self.writer.update(target, changed, options, manager=manager)
        shown = scale_of(target.resource, written.object)
        return answer_with(200, encode(shown, form.media_type), form)

    def _delete(self, request: Request, target: Target, query: Query, form: Form) -> Answer:
        options = read_delete_options(request, query)
        code, body = self._deleter.delete(target, options)
        return answer_with(code, encode(body, form.media_type), form)

    def _delete_collection(
        self, request: Request, target: Target, query: Query, form: Form
    ) -> Answer:
        options = read_delete_options(request, query)
        listed = self._deleter.delete_collection(target, read_list_options(query), options)
        data = render_list(target.resource, listed.entries, form, listed.metadata)
        return answer_with(200, data, form)


def _manager(options: WriteOptions, request: Request) -> str:
    return manager_name(options.field_manager, request.header(b"user-agent"))


def _nothing() -> None:
    pass
