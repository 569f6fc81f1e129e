"""A typed client of one API server: get, list, watch, create, update, patch, apply, delete.

The client adds to a transport what every caller needs: paths, typed answers, the errors of
`errors`, and retries of transient failures. It keeps no objects and starts no tasks. NB: structs
hold a subset of the API's fields. A PUT of a struct would erase the others, so change objects with
`patch` or `apply`, or send the whole object with `update_raw`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self, TypeVar

import msgspec
import structlog

from keepclose import __version__
from keepclose.kube import requests
from keepclose.kube.clock import Clock
from keepclose.kube.errors import CHECK_SERVER, BrokenStream, Expired
from keepclose.kube.requests import APPLY, TERSE, Body, Kind, PatchType
from keepclose.kube.transport.retries import RequestSender, Retries
from keepclose.kube.transport.transport import ApiRequest, Transport
from keepclose.kube.watch.list_decoding import PARTIAL, Page, decode_object, decode_page
from keepclose.kube.watch.stream import EventDecoder, WatchEvent, read_events
from keepclose.model.meta import ObjectMeta

_T = TypeVar("_T")

USER_AGENT: Final = f"keepclose/{__version__}"
MAX_PAGES: Final = 2000
"""The most pages of one list: a million objects in pages of 500."""

_log = structlog.get_logger()


class _Reader:
    """Reads from one API server. Close it, or use it as a context."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        user_agent: str = USER_AGENT,
        retries: Retries | None = None,
        timeout: float | None = 60.0,
    ) -> None:
        """Take the transport; `timeout` is for each attempt, in seconds."""
        self._clock = clock
        self._sender = RequestSender(
            transport,
            clock=clock,
            retries=retries if retries is not None else Retries(),
            headers={"Accept": requests.JSON, "User-Agent": user_agent},
            timeout=timeout,
        )

    async def get(
        self, kind: Kind[_T], name: str, *, namespace: str = "", resource_version: str = ""
    ) -> _T:
        """Return an object; raise NotFound when there is none."""
        request = requests.get_request(
            kind, name, namespace=namespace, resource_version=resource_version
        )
        return await self._fetch_object(kind, request, repeatable=True)

    async def list_page(
        self,
        kind: Kind[_T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
    ) -> Page[_T]:
        """Return one page of a list; `limit` 0 asks for everything at once."""
        request = requests.list_request(
            kind,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
            resource_version_match=resource_version_match,
        )
        body = await self._sender.fetch(request, repeatable=True)
        page = decode_page(kind, body, where=str(request))
        if page.rejected:
            name, cause = page.rejected[0]
            _log.warning(
                "unreadable objects skipped",
                kind=str(kind),
                count=len(page.rejected),
                first=name,
                cause=str(cause),
            )
        return page

    async def list_all(
        self,
        kind: Kind[_T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
        page_size: int = 500,
        on_page: Callable[[Page[_T], int], object] | None = None,
    ) -> Page[_T]:
        """Return a whole list as one page, read page by page at one resource version.

        `on_page` takes each page, and how many objects were read up to its end.

        When the version expires between two pages, the list is read again in a single request. The
        server offers to continue at a newer version instead; a watch from such a mixture would miss
        changes of its older part.
        """
        whole: Page[_T] | None = None
        token, limit = "", page_size
        where = f"list of {kind}"
        for _ in range(MAX_PAGES):
            try:
                page = await self.list_page(
                    kind,
                    namespace=namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                    limit=limit,
                    continue_token=token,
                    resource_version=resource_version,
                    resource_version_match=resource_version_match,
                )
            except Expired:
                if not token:
                    raise
                whole, token, limit = None, "", 0
                continue
            if on_page is not None:
                on_page(page, len(page.items) + (len(whole.items) if whole is not None else 0))
            if whole is None:
                whole = page
            else:
                whole.items += page.items
                whole.rejected += page.rejected
                whole.resource_version = page.resource_version
            if token and page.continue_token == token:
                raise BrokenStream(where, "a page continues with itself", fix=CHECK_SERVER)
            token = page.continue_token
            if not token:
                whole.continue_token, whole.remaining = "", None
                return whole
        raise BrokenStream(where, f"it has more than {MAX_PAGES:,} pages", fix=CHECK_SERVER)

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[_T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        timeout_seconds: int | None = None,
        send_initial_events: bool = False,
        idle_timeout: float | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[_T]]]:
        """Open a watch, yield its events, and close it at the end of the context.

        Opening is not retried. The server ends the watch after `timeout_seconds`, and then the
        iterator ends too. With `idle_timeout` a silent watch raises TimedOut; bookmarks come once
        a minute. With `send_initial_events` the watch begins with all objects, up to the bookmark
        that has `initial_events_end`.
        """
        request = requests.watch_request(
            kind,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            timeout_seconds=timeout_seconds,
            send_initial_events=send_initial_events,
        )
        where = f"watch of {request.path}"
        response = await self._sender.open(request)
        events = read_events(
            response.chunks(),
            EventDecoder(kind, where=where),
            clock=self._clock,
            idle_timeout=idle_timeout,
            where=where,
            is_initial=send_initial_events,
        )
        try:
            yield events
        finally:
            await events.aclose()
            await response.close()

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_bytes: int = 0,
    ) -> bytes:
        """Return the body of the answer to any request, such as GET /version or /readyz.

        An answer of more than `max_bytes` is a BrokenStream; 0 means the limit of the transport.
        """
        request = ApiRequest(
            method, path, tuple(query), dict(headers or {}), body, max_bytes=max_bytes
        )
        return await self._sender.fetch(request, repeatable=method in ("GET", "HEAD"))

    async def close(self) -> None:
        """Close the connections; idempotent."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch_object(
        self, kind: Kind[_T], request: ApiRequest, *, repeatable: bool = False
    ) -> _T:
        body = await self._sender.fetch(request, repeatable=repeatable)
        return decode_object(kind, body, where=str(request))


class Client(_Reader):
    """Reads and writes on one API server. Close it, or use it as a context."""

    async def create(
        self,
        kind: Kind[_T],
        obj: Body,
        *,
        namespace: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> _T:
        """Create an object and return it as stored; the object may name its namespace."""
        request = requests.create_request(
            kind, obj, namespace=namespace, field_manager=field_manager, dry_run=dry_run
        )
        return await self._fetch_object(kind, request, repeatable=dry_run)

    async def update(
        self,
        kind: Kind[_T],
        obj: msgspec.Struct,
        *,
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> _T:
        """Replace an object and return it as stored; a dry run returns what would be stored.

        NB: fields that the struct does not have are erased on the server. Use it only for kinds
        whose struct has all fields; otherwise use `patch`, `apply` or `update_raw`.
        """
        request = requests.replace_request(
            kind, obj, subresource=subresource, field_manager=field_manager, dry_run=dry_run
        )
        return await self._fetch_object(kind, request)

    async def write(self, kind: Kind[_T], obj: msgspec.Struct) -> ObjectMeta:
        """Replace an object, or create one that has no name yet; return its metadata as stored.

        The server leaves out the rest of the answer, which the caller has just sent. NB: as with
        `update`, fields that the struct does not have are erased on the server.
        """
        if requests.identity(obj).name:
            request = requests.replace_request(kind, obj)
        else:
            request = requests.create_request(kind, obj)
        request.headers["Accept"] = TERSE
        return (await self._fetch_object(PARTIAL, request)).metadata

    async def update_raw(
        self,
        kind: Kind[_T],
        obj: Mapping[str, Any],
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> _T:
        """Replace an object by plain values that hold all its fields."""
        request = requests.replace_request(
            kind, obj, subresource=subresource, field_manager=field_manager
        )
        return await self._fetch_object(kind, request)

    async def patch(
        self,
        kind: Kind[_T],
        name: str,
        patch: Body,
        *,
        namespace: str = "",
        type: PatchType = PatchType.MERGE,  # noqa: A002
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> _T:
        """Change parts of an object and return it as stored, or in a dry run as it would be.

        A `metadata.resourceVersion` in the patch makes it fail with Conflict when the object has
        changed since.
        """
        request = requests.patch_request(
            kind,
            name,
            patch,
            namespace=namespace,
            media_type=type,
            subresource=subresource,
            field_manager=field_manager,
            dry_run=dry_run,
        )
        return await self._fetch_object(kind, request)

    async def apply(
        self,
        kind: Kind[_T],
        name: str,
        obj: Body,
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> _T:
        """Apply an object (server-side apply) and return the result.

        Fields of another manager raise Conflict unless `force` takes them over.
        """
        request = requests.patch_request(
            kind,
            name,
            obj,
            namespace=namespace,
            media_type=APPLY,
            subresource=subresource,
            field_manager=field_manager,
            force=force,
        )
        return await self._fetch_object(kind, request, repeatable=True)

    async def delete(
        self,
        kind: Kind[_T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period: int | None = None,
        propagation: str = "",
    ) -> None:
        """Delete an object, if it still has this uid and version.

        With one of the two preconditions the request is repeated after a lost connection; then
        NotFound may mean that the first attempt deleted the object.
        """
        fields = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {field: value for field, value in fields.items() if value}
        request = requests.delete_request(
            kind,
            name,
            namespace=namespace,
            preconditions=preconditions,
            grace_period=grace_period,
            propagation=propagation,
        )
        await self._sender.fetch(request, repeatable=bool(preconditions))


__all__ = ["USER_AGENT", "Body", "Client", "PatchType"]
