"""One API server, only read: get, list, watch.

Most of keepclose needs no more than this, and what cannot write cannot break anything. The reader
adds to a transport what every caller needs: paths, typed answers, errors of the tree in `errors`,
and patience with failures that pass. It keeps no objects and starts no tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self, TypeVar

import structlog

from keepclose import __version__
from keepclose.kube import requests
from keepclose.kube.clock import Clock
from keepclose.kube.errors import CHECK_SERVER, BrokenStream, Expired
from keepclose.kube.exchanges import Exchange
from keepclose.kube.kinds import Kind
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import Request, Transport
from keepclose.kube.watch.list_decoding import Page, decode_object, decode_page
from keepclose.kube.watch.stream import EventDecoder, WatchEvent, read_events

T = TypeVar("T")

USER_AGENT: Final = f"keepclose/{__version__}"
MOST_PAGES: Final = 2000
"""The most answers that one list is made of: a million objects in pages of 500."""

log = structlog.get_logger()


class Reader:
    """Asks one API server. Close it, or use it as a context."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        user_agent: str = USER_AGENT,
        retries: Retries | None = None,
        timeout: float | None = 60.0,
    ) -> None:
        """Take the way to the server; `timeout` is for each attempt, in seconds."""
        self._clock = clock
        self._exchange = Exchange(
            transport,
            clock=clock,
            retries=retries if retries is not None else Retries(),
            headers={"Accept": requests.JSON, "User-Agent": user_agent},
            timeout=timeout,
        )

    async def get(
        self, kind: Kind[T], name: str, *, namespace: str = "", resource_version: str = ""
    ) -> T:
        """Return one object; raise NotFound when there is none."""
        request = requests.get_request(
            kind, name, namespace=namespace, resource_version=resource_version
        )
        return await self._fetch_object(kind, request, repeatable=True)

    async def list_page(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
    ) -> Page[T]:
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
        body = await self._exchange.fetch(request, repeatable=True)
        page = decode_page(kind, body, where=str(request))
        if page.rejected:
            name, cause = page.rejected[0]
            log.warning(
                "skipped unreadable objects",
                kind=str(kind),
                count=len(page.rejected),
                first=name,
                cause=str(cause),
            )
        return page

    async def list_all(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
        page_size: int = 500,
    ) -> Page[T]:
        """Return a whole list as one page, read in pieces, all of the same resource version.

        When the version expires between two pieces the list is read again, at once and whole. The
        server offers to go on from a newer version instead; a watch from such a mixture would
        miss what changed in its older part.
        """
        whole: Page[T] | None = None
        token, limit = "", page_size
        where = f"list of {kind}"
        for _ in range(MOST_PAGES):
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
            if whole is None:
                whole = page
            else:
                whole.items += page.items
                whole.rejected += page.rejected
                whole.resource_version = page.resource_version
            if token and page.continue_token == token:
                raise BrokenStream(where, "a page leads to itself", fix=CHECK_SERVER)
            token = page.continue_token
            if not token:
                whole.continue_token, whole.remaining = "", None
                return whole
        raise BrokenStream(where, f"it has more than {MOST_PAGES:,} pages", fix=CHECK_SERVER)

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        timeout_seconds: int | None = None,
        send_initial_events: bool = False,
        idle_timeout: float | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Open a watch, give its events, and close it at the end of the context.

        Opening is tried once. The server ends the watch after `timeout_seconds`, and then the
        iterator ends too. With `idle_timeout` a silent watch raises TimedOut; bookmarks come once
        a minute. `send_initial_events` begins with all objects, up to the bookmark that has
        `initial_events_end`.
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
        response = await self._exchange.open(request)
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
    ) -> bytes:
        """Return the body of any answer, such as that of /version or /readyz."""
        request = Request(method, path, tuple(query), dict(headers or {}), body)
        return await self._exchange.fetch(request, repeatable=method in ("GET", "HEAD"))

    async def close(self) -> None:
        """Close the connections. Twice is once."""
        await self._exchange.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch_object(
        self, kind: Kind[T], request: Request, *, repeatable: bool = False
    ) -> T:
        body = await self._exchange.fetch(request, repeatable=repeatable)
        return decode_object(kind, body, where=str(request))
