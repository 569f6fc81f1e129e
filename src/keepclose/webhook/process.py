"""The webhook as a process: every replica answers reviews, the leader also runs the hint keeper.

A replica that loses the lease continues to answer and competes for the lease again. The
registration stays when the process stops: its failure policy lets writes through without an answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from uuid import uuid4

import structlog
from msgspec.structs import replace

from keepclose.demand.opening import open_demand
from keepclose.demand.reader import DEMAND_PAUSE_S, DemandMetrics, DemandReader
from keepclose.demand.settings import DemandOptions
from keepclose.heuristics.process import close_heuristics
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.errors import ConfigError, KubeError
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.leader_election import LeaderElector, LeadershipLost
from keepclose.kube.transport.retries import Retries
from keepclose.reconcile.instrumentation import describe_plan
from keepclose.reconcile.settings import ControllerSettings, defer_answers
from keepclose.runtime.pages import ListenAddress, controller_pages
from keepclose.runtime.program import (
    OnReady,
    Parts,
    ReadyMessage,
    beside,
    keep_running,
    run_program,
)
from keepclose.webhook.admission import Webhook
from keepclose.webhook.hint_keeper import HintKeeper
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.registration import (
    CHECK_S,
    Registration,
    ServingPair,
    ensure_pair,
    read_pair,
)
from keepclose.webhook.scope import HintView
from keepclose.webhook.settings import WEBHOOK_PATH, WebhookSettings

WEBHOOK_COMPONENT: Final = "keepclose-webhook"
WEBHOOK_LEASE_NAME: Final = "keepclose-webhook"
CONDITION_PREFIX: Final = "keepclose.dev/"
_NO_RETRIES: Final = Retries(max_elapsed=0.0)
_RETRY_S: Final = 2.0
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class WebhookProcess:
    """All parts of one replica; run it once."""

    def __init__(
        self,
        client: Client,
        settings: ControllerSettings,
        webhook: WebhookSettings,
        *,
        clock: Clock,
        leader_elect: bool,
        demand: DemandOptions | None = None,
    ) -> None:
        # Beside another controller, conditions need a type prefix of their own.
        plan = replace(settings.plan, condition_prefix=CONDITION_PREFIX)
        settings = defer_answers(replace(settings, plan=plan))
        self._heuristics = settings.plan.heuristics
        self._client = client
        self._settings = webhook
        self._clock = clock
        self._leader_elect = leader_elect
        self._recorder = EventRecorder(
            client, component=WEBHOOK_COMPONENT, clock=clock, host=socket.gethostname()
        )
        self.listening = asyncio.Event()
        self.synced = asyncio.Event()
        """Set once all caches have been complete, and demand was read or took too long."""
        self.metrics = WebhookMetrics()
        self.view = HintView(settings.plan)
        self.reflectors = self.view.reflectors(client, clock=clock)
        self.demand: DemandReader | None = None
        if demand is not None:
            self.demand = open_demand(
                demand, client, clock=clock, cluster=lambda: self.view.cluster
            )
            self.view.demand = self.demand.store
            DemandMetrics(self.metrics.registry, self.demand)
        self.keeper = HintKeeper(
            client,
            self.view,
            settings=settings,
            clock=clock,
            recorder=self._recorder,
            metrics=self.metrics,
        )
        self.webhook = Webhook(
            self.view, is_ready=self.synced.is_set, metrics=self.metrics, clock=clock
        )
        self._registration = Registration(
            client, webhook, managed_by=settings.plan.managed_by, clock=clock
        )
        self.port = 0
        """The port of the webhook, once `run` listens."""

    async def run(self) -> None:
        """Run until cancelled; raise ConfigError or OSError for settings that cannot work."""
        background: list[Coroutine[Any, Any, Any]] = [
            reflector.run() for reflector in self.reflectors
        ]
        background += [self._recorder.run(), self._serve()]
        parts = Parts(background)
        try:
            await parts.until_ended()
        finally:
            try:
                # NB: the keeper first, while the webhook still answers the reviews of its writes.
                await parts.stop()
                await self.webhook.stop()
            finally:
                # NB: after the syncs, which would report a closed heuristic as failed.
                close_heuristics(self._heuristics)

    async def _serve(self) -> None:
        pair = await self._find_pair()
        self.webhook.load_certificate(pair)
        self._registration.ca = pair.ca
        self.port = await self.webhook.start(self._settings.host, self._settings.port)
        self.listening.set()
        for reflector in self.reflectors:
            await reflector.synced.wait()
        async with beside(self._watch_certificate_files(pair)), beside(self._measure_demand()):
            if self.demand is not None:
                # NB: before reviews count, or those of a new replica would hint by CPU.
                await self.demand.wait_for_first()
            self.synced.set()
            _log.info("caches are complete", services=len(self.view.caches.services))
            if self._settings.registers:
                await self._retry(self._registration.ensure)
            await self._lead()

    async def _measure_demand(self) -> None:
        if self.demand is not None:
            demand, on_changed = self.demand, self.keeper.on_demand
            await keep_running(
                lambda: demand.run(on_changed), what="measured demand", after_s=DEMAND_PAUSE_S
            )

    async def _lead(self) -> None:
        async def work() -> None:
            async with beside(self._registration.keep()):
                await self.keeper.lead()

        while True:
            if not self._leader_elect:
                await work()
            elector = LeaderElector(
                self._client,
                namespace=self._settings.namespace,
                name=WEBHOOK_LEASE_NAME,
                identity=f"{socket.gethostname()}_{os.getpid()}_{uuid4()}",
                clock=self._clock,
            )
            try:
                await elector.run(work)
            except LeadershipLost as error:
                _log.warning("leadership lost", lease=WEBHOOK_LEASE_NAME, error=str(error))

    async def _find_pair(self) -> ServingPair:
        settings = self._settings
        if settings.certificate_file:
            return read_pair(settings.certificate_file, settings.key_file, settings.ca_file)

        async def ensure() -> ServingPair:
            return await ensure_pair(
                self._client,
                namespace=settings.namespace,
                hosts=settings.hosts,
                now=self._clock.now(),
            )

        return await self._retry(ensure)

    async def _watch_certificate_files(self, pair: ServingPair) -> None:
        """Load certificates that were renewed in their files."""
        settings = self._settings
        while settings.certificate_file:
            await self._clock.sleep(CHECK_S)
            try:
                current = read_pair(settings.certificate_file, settings.key_file, settings.ca_file)
                if current != pair:
                    self.webhook.load_certificate(current)
                    self._registration.ca, pair = current.ca, current
                    _log.info("certificate renewed", file=settings.certificate_file)
            except ConfigError as error:
                # A file may be read half written; the loaded certificate stays in use.
                _log.warning("renewed certificate not loaded", error=str(error))

    async def _retry(self, send: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Repeat a request until it succeeds; ConfigError passes through."""
        while True:
            try:
                return await send()
            except ConfigError:
                raise
            except KubeError as error:
                _log.warning("request failed, retrying", after_s=_RETRY_S, error=str(error))
                await self._clock.sleep(_RETRY_S)


def run_webhook(
    settings: ControllerSettings,
    webhook: WebhookSettings,
    connection: ConnectionSettings,
    *,
    leader_elect: bool,
    listening: ListenAddress | None = None,
    demand: DemandOptions | None = None,
    on_ready: OnReady,
) -> None:
    """Run a webhook until SIGTERM or SIGINT; call `on_ready` once with its address.

    Raise ConfigError when the settings cannot work, and OSError when a port is not available.
    """
    work = serve_webhook(
        settings,
        webhook,
        connection,
        leader_elect=leader_elect,
        clock=SystemClock(),
        listening=listening,
        demand=demand,
        on_ready=on_ready,
    )
    run_program(work)


async def serve_webhook(
    settings: ControllerSettings,
    webhook: WebhookSettings,
    connection: ConnectionSettings,
    *,
    leader_elect: bool,
    clock: Clock,
    listening: ListenAddress | None = None,
    demand: DemandOptions | None = None,
    on_ready: OnReady,
) -> None:
    """Run a webhook until cancelled."""
    async with connect(connection, clock=clock, retries=_NO_RETRIES) as client:
        process = WebhookProcess(
            client, settings, webhook, clock=clock, leader_elect=leader_elect, demand=demand
        )
        pages = controller_pages(
            metrics=process.metrics.page,
            is_ready=process.synced.is_set,
            explain=lambda key: describe_plan(process.keeper.explain(key)),
        )
        pages_url = ""
        if listening is not None:
            pages_url = f"http://{listening.host}:{await pages.start(*listening)}"

        async def report_ready() -> None:
            await process.synced.wait()
            url = f"https://{webhook.host}:{process.port}{WEBHOOK_PATH}"
            text = f"keepclose webhook answers at {url}"
            if pages_url:
                text += f", pages at {pages_url}"
            on_ready(ReadyMessage(text, url=url, pages=pages_url))

        try:
            async with beside(report_ready()):
                await process.run()
        finally:
            await pages.stop()
