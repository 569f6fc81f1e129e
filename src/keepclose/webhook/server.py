"""The HTTPS server that answers AdmissionReviews of EndpointSlices.

It answers from memory, within about a millisecond, and never rejects a write. Until the caches are
complete, and after any error, a slice passes as it is: late hints are better than late endpoints.
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
from keepclose.webhook.admission import ClusterView, answer_admission, read_review, write_response
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.serving_certificates import ServingPair, load_pair
from keepclose.webhook.settings import WEBHOOK_PATH

# A slice holds up to a thousand endpoints, and a review has its old and its new version.
_MAX_BYTES: Final = 16 * 1024 * 1024
_JSON: Final = "application/json"
_log = structlog.get_logger(__name__)


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
        self._runner: web.AppRunner | None = None

    def load_certificate(self, pair: ServingPair) -> None:
        """Use this certificate for new connections; raise ConfigError for an invalid one."""
        load_pair(self._context, pair)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; raise OSError when the address is not available."""
        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_post(WEBHOOK_PATH, self._review)
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
        """Stop listening; pending answers are sent first."""
        if self._runner is not None:
            await self._runner.cleanup()

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
            _log.warning("request without an AdmissionReview", peer=request.remote)
            return web.Response(status=400, text="the body must be an AdmissionReview")
        return web.Response(body=response, content_type=_JSON)
