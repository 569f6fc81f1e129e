"""The HTTPS server that API servers show slices to.

It answers from memory, within a millisecond or so, and never refuses a write. Until the view is
complete, and whatever goes wrong, a slice passes as it is: hints that come late are better than
endpoints that come late.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web

from keepclose.heuristics.process import fetch_answers
from keepclose.kube.clock import Clock
from keepclose.runtime.pages import add_health_pages
from keepclose.webhook.admission import View, answer_admission, read_review, write_response
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.serving_certificates import ServingPair, load_pair
from keepclose.webhook.settings import PATH

_log = structlog.get_logger(__name__)
# A slice holds up to a thousand endpoints, and a review shows it before and after.
_MOST_BYTES: Final = 16 * 1024 * 1024
_JSON: Final = "application/json"


class Webhook:
    """One server; start and stop it once."""

    def __init__(
        self,
        view: View,
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
        self._runner: web.AppRunner | None = None

    def trust(self, pair: ServingPair) -> None:
        """Use this certificate for new connections; raises ConfigError where it is none."""
        load_pair(self._context, pair)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; raises OSError where that cannot be."""
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post(PATH, self._review)
        add_health_pages(app, is_ready=self._is_ready)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=5.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self._context)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Listen no more; answers under way are sent first."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def review(self, body: bytes) -> bytes | None:
        """Return the answer to an AdmissionReview; None for bytes that are none."""
        started = self._clock.monotonic()
        request = read_review(body)
        if request is None:
            return None
        if not self._is_ready():
            self._metrics.reviewed("early", self._clock.monotonic() - started)
            return write_response(request.uid)
        try:
            found = answer_admission(request, self._view)
            if found.questions:
                heuristics = self._view.settings.heuristics
                answers = await fetch_answers(heuristics, found.heuristic, found.questions)
                found = answer_admission(request, self._view, answers)
            response = write_response(request.uid, found.patch)
            verdict = found.verdict.value
        except Exception:  # noqa: BLE001 - told, and the write goes through
            _log.exception("a review failed", uid=request.uid)
            response, verdict = write_response(request.uid), "error"
        self._metrics.reviewed(verdict, self._clock.monotonic() - started)
        return response

    async def _review(self, request: web.Request) -> web.Response:
        response = await self.review(await request.read())
        if response is None:
            _log.warning("the body is no review", peer=request.remote)
            return web.Response(status=400, text="the body must be an AdmissionReview")
        return web.Response(body=response, content_type=_JSON)
