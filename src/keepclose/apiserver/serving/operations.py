"""The operations behind the verbs: each answers one request and never awaits.

Small requests run on the event loop, against the store itself; large ones run in a thread, against
an `Attempt`, which repeats them after a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from keepclose.apiserver.patch.json_patch import apply_json_patch, apply_merge_patch
from keepclose.apiserver.patch.strategic_merge import apply_strategic_patch
from keepclose.apiserver.resources import BINDINGS
from keepclose.apiserver.serving import request_bodies
from keepclose.apiserver.serving.deleting import Deleter, read_delete_options
from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse
from keepclose.apiserver.serving.negotiation import ResponseForm, encode, render_entry, render_list
from keepclose.apiserver.serving.object_meta import drop_duplicate_owners
from keepclose.apiserver.serving.options import (
    RequestTarget,
    WriteOptions,
    read_list_options,
    read_write_options,
)
from keepclose.apiserver.serving.reading import get_entry
from keepclose.apiserver.serving.responses import (
    respond_status,
    respond_with,
    respond_written,
    warnings_on_error,
)
from keepclose.apiserver.serving.subresources import SUCCESS, bind_pod, scale_of, write_scale
from keepclose.apiserver.serving.writing import ObjectWriter, manager_name
from keepclose.apiserver.status_errors import unsupported_patch_type

_Query = dict[str, str]
_Operation = Callable[[HttpRequest, RequestTarget, _Query, ResponseForm], HttpResponse]


class Operations:
    """The verbs other than list and watch, with one writer and one deleter."""

    def __init__(self, writer: ObjectWriter, deleter: Deleter) -> None:
        """Hold the writer and the deleter of one store."""
        self.writer = writer
        self._deleter = deleter
        self.verbs: dict[str, _Operation] = {
            "get": self.get,
            "create": self.create,
            "update": self.update,
            "patch": self.patch,
            "delete": self.delete,
            "deletecollection": self.delete_collection,
        }

    def get(
        self, request: HttpRequest, target: RequestTarget, query: _Query, form: ResponseForm
    ) -> HttpResponse:
        """Return one object."""
        del request
        entry = get_entry(self.writer.store, target)
        if target.subresource == "scale":
            scale = scale_of(target.resource, msgspec.json.decode(entry.data))
            return respond_with(200, encode(scale, form.media_type), form)
        data = render_entry(target.resource, entry, form, query.get("includeObject", ""))
        return respond_with(200, data, form)

    def create(
        self, request: HttpRequest, target: RequestTarget, query: _Query, form: ResponseForm
    ) -> HttpResponse:
        """Create an object, or bind a pod."""
        binds = target.subresource == "binding" or target.resource is BINDINGS
        resource = BINDINGS if binds else target.resource
        options = read_write_options(query)
        new, warnings = request_bodies.read_body_object(
            request.body,
            request_bodies.media_type_of(request.header(b"content-type")),
            resource,
            self.writer.type_of(resource),
            validation=options.field_validation,
        )
        with warnings_on_error(warnings):
            if binds:
                bind_pod(self.writer.store, target, new, dry_run=options.dry_run)
                return respond_status(201, SUCCESS, warnings, form)
            warnings += drop_duplicate_owners(new["metadata"])
            written = self.writer.create(
                target, new, options, manager=_manager(options, request), rights=request.rights
            )
        return respond_written(target, written, warnings, form)

    def update(
        self, request: HttpRequest, target: RequestTarget, query: _Query, form: ResponseForm
    ) -> HttpResponse:
        """Replace the stored object."""
        resource = target.resource
        options = read_write_options(query)
        media_type = request_bodies.media_type_of(request.header(b"content-type"))
        manager = _manager(options, request)
        if target.subresource == "scale":
            scale = request_bodies.read_values(request.body, media_type, request_bodies.SCALE.kind)
            request_bodies.check_scale(scale, self.writer.type_of(request_bodies.SCALE))
            return self._update_scale(target, scale, options, manager, form)
        new, warnings = request_bodies.read_body_object(
            request.body,
            media_type,
            resource,
            self.writer.type_of(resource, target),
            validation=options.field_validation,
        )
        with warnings_on_error(warnings):
            warnings += drop_duplicate_owners(new["metadata"])
            written = self.writer.update(
                target, new, options, manager=manager, rights=request.rights
            )
        return respond_written(target, written, warnings, form)

    def patch(
        self, request: HttpRequest, target: RequestTarget, query: _Query, form: ResponseForm
    ) -> HttpResponse:
        """Change an object by a patch of any type."""
        resource = target.resource
        media_type = request_bodies.media_type_of(request.header(b"content-type"))
        if media_type not in request_bodies.ACCEPTED_PATCH_TYPES:
            raise unsupported_patch_type()
        options = read_write_options(query, patch=media_type)
        is_scale = target.subresource == "scale"
        shape = self.writer.type_of(request_bodies.SCALE if is_scale else resource, target)
        if media_type == request_bodies.APPLY_YAML:
            manager = request_bodies.required_manager(options.field_manager)
            applied = request_bodies.read_applied(request.body, resource)
            written = self.writer.apply(
                target, applied, options, manager=manager, rights=request.rights
            )
            return respond_written(target, written, [], form)
        manager = _manager(options, request)
        current = self.writer.current(target)
        document = scale_of(resource, current) if is_scale else current
        if media_type == request_bodies.JSON_PATCH_TYPE:
            patched = apply_json_patch(document, request.body)
        elif media_type == request_bodies.MERGE_PATCH:
            patched = apply_merge_patch(document, request_bodies.read_patch(request.body))
        else:
            patched = apply_strategic_patch(
                document, request_bodies.read_patch(request.body), shape
            )
        if is_scale:
            request_bodies.check_scale(patched, shape, patched=True)
            return self._update_scale(target, patched, options, manager, form)
        request_bodies.check_kind(patched, resource)
        warnings = request_bodies.check_patched(
            patched, resource, shape, validation=options.field_validation
        )
        with warnings_on_error(warnings):
            written = self.writer.update(
                target, patched, options, manager=manager, rights=request.rights
            )
        return respond_written(target, written, warnings, form)

    def _update_scale(
        self,
        target: RequestTarget,
        scale: dict[str, Any],
        options: WriteOptions,
        manager: str,
        form: ResponseForm,
    ) -> HttpResponse:
        current = self.writer.current(target)
        changed = write_scale(target.resource, current, scale)
        written = self.writer.update(target, changed, options, manager=manager)
        new_scale = scale_of(target.resource, written.object)
        return respond_with(200, encode(new_scale, form.media_type), form)

    def delete(
        self, request: HttpRequest, target: RequestTarget, query: _Query, form: ResponseForm
    ) -> HttpResponse:
        """Delete one object."""
        options = read_delete_options(request, query)
        code, body = self._deleter.delete(target, options)
        return respond_with(code, encode(body, form.media_type), form)

    def delete_collection(
        self, request: HttpRequest, target: RequestTarget, query: _Query, form: ResponseForm
    ) -> HttpResponse:
        """Delete the selected objects, and return them."""
        options = read_delete_options(request, query)
        listed = self._deleter.delete_collection(target, read_list_options(query), options)
        data = render_list(target.resource, listed.entries, form, listed.metadata)
        return respond_with(200, data, form)


def _manager(options: WriteOptions, request: HttpRequest) -> str:
    return manager_name(options.field_manager, request.header(b"user-agent"))
