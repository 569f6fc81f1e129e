"""The pages of the dashboard: its own files, the stream of changes, Services and previews.

A stream sends what the browser lacks, at most some times a second, and a comment where nothing
changes. A browser that stops reading is dropped by the limits of the page server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from keepclose.advise.mechanism_changes import Mechanism
from keepclose.cli.dashboard.feed import MAX_STREAMS, Feed, Stream, TooManyStreamsError
from keepclose.cli.dashboard.watched_cluster import StaleServiceError, WatchedCluster
from keepclose.cli.dashboard.web_guard import WebGuard, answer_error
from keepclose.kube.client import Client
from keepclose.kube.errors import ApiError, Conflict, KubeError
from keepclose.kube.requests import SERVICES
from keepclose.model.meta import NamespacedName
from keepclose.runtime.pages import PageServer, prolong_request

FIELD_MANAGER: Final = "keepclose-dashboard"
STATIC_FILES: Final = {
    "dashboard.css": "text/css",
    "app.js": "text/javascript",
    "dom.js": "text/javascript",
    "server.js": "text/javascript",
    "service_list.js": "text/javascript",
    "service_page.js": "text/javascript",
    "words.js": "text/javascript",
    "zone_map.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_MAX_BODY: Final = 16 * 1024
_QUIET_S: Final = 2.0
"""After this time without a change, a comment finds out whether the browser still reads."""
_PAUSE_S: Final = 0.05
"""The shortest time between two messages of a stream."""


class WriteRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The mechanism that a user has previewed and wants."""

    namespace: str
    name: str
    mechanism: Mechanism
    resource_version: str


class DashboardPages:
    """Answers browsers from one watched cluster."""

    def __init__(self, cluster: WatchedCluster, feed: Feed, client: Client) -> None:
        self._cluster, self._feed, self._client = cluster, feed, client
        folder = files(__package__) / "static"
        self._index = (folder / "index.html").read_bytes()
        self._files = {name: (folder / name).read_bytes() for name in STATIC_FILES}

    def serve(self, guard: WebGuard) -> PageServer:
        """Return the server of the pages."""
        app = web.Application(client_max_size=_MAX_BODY)
        guard.install(app)
        app.router.add_get("/", self._show_index)
        app.router.add_get("/static/{name}", self._show_file)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/service", self._show_service)
        app.router.add_get("/api/preview", self._show_preview)
        app.router.add_post("/api/mechanism", self._set_mechanism)
        return PageServer(app)

    async def _show_index(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._index, content_type="text/html", charset="utf-8")

    async def _show_file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = self._files.get(name)
        if body is None:
            return answer_error(404, "there is no such file")
        return web.Response(body=body, content_type=STATIC_FILES[name], charset="utf-8")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            stream = self._feed.open_stream()
        except TooManyStreamsError:
            return answer_error(503, f"{MAX_STREAMS} windows follow already; close one")
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await _send_changes(stream, response, lambda: prolong_request(request))
        except ConnectionError:
            # The browser has gone.
            pass
        finally:
            stream.close()
        return response

    async def _show_service(self, request: web.Request) -> web.Response:
        page = await self._cluster.read_page(_key_of(request))
        return _answer(page) if page is not None else _unknown()

    async def _show_preview(self, request: web.Request) -> web.Response:
        try:
            mechanism = Mechanism(request.query.get("mechanism", ""))
        except ValueError:
            return answer_error(400, "there is no such mechanism")
        preview = await self._cluster.read_preview(_key_of(request), mechanism)
        if isinstance(preview, str):
            return answer_error(409, preview)
        return _answer(preview) if preview is not None else _unknown()

    async def _set_mechanism(self, request: web.Request) -> web.Response:
        if not self._cluster.allows_writes:
            return answer_error(403, "this dashboard only reads; start it with --allow-writes")
        try:
            wanted = msgspec.json.decode(await request.read(), type=WriteRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return answer_error(400, f"the request cannot be read: {error}")
        key = NamespacedName(wanted.namespace, wanted.name)
        return await _answer_write(
            lambda: self._write(key, wanted.mechanism, wanted.resource_version)
        )

    async def _write(self, key: NamespacedName, mechanism: Mechanism, version: str) -> None:
        patch = self._cluster.find_patch(key, mechanism, version)
        await self._client.patch(
            SERVICES, key.name, patch, namespace=key.namespace, field_manager=FIELD_MANAGER
        )


async def _send_changes(
    stream: Stream, response: web.StreamResponse, on_sent: Callable[[], None]
) -> None:
    while not stream.is_ended:
        if await stream.until_changed(_QUIET_S):
            await response.write(b"data: " + stream.take() + b"\n\n")
            on_sent()
            await asyncio.sleep(_PAUSE_S)
        else:
            await response.write(b":\n\n")
            on_sent()


async def _answer_write(write: Callable[[], Awaitable[None]]) -> web.Response:
    try:
        await write()
    except StaleServiceError as error:
        return answer_error(409, str(error))
    except Conflict:
        return answer_error(409, "the Service has changed since the preview; look at it again")
    except ApiError as error:
        return answer_error(502, f"the cluster refuses: {error}")
    except KubeError as error:
        return answer_error(502, f"the cluster does not answer: {error}")
    return _answer({})


def _key_of(request: web.Request) -> NamespacedName:
    return NamespacedName(request.query.get("namespace", ""), request.query.get("name", ""))


def _answer(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _unknown() -> web.Response:
    return answer_error(404, "there is no such Service")
