"""The webhook as a process: every replica answers, and the holder of the lease keeps hints too.

A replica that loses the lease goes on answering and seeks the lease again. When the process stops
the registration stays, because writes go through without an answer.
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

from keepclose.heuristics.process import close_heuristics
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.errors import ConfigError, KubeError
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.leader_election import LeaderElector, LeadershipLost
from keepclose.kube.transport.retries import Retries
from keepclose.reconcile.settings import ControllerSettings, defer_answers
from keepclose.runtime.event_loop import until_signal
from keepclose.runtime.pages import Listening, Pages
from keepclose.webhook.hint_keeper import HintKeeper
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.registration import CHECK_S, Registration
from keepclose.webhook.scope import HintView
from keepclose.webhook.server import Webhook
from keepclose.webhook.serving_certificates import ServingPair, keep_pair, read_pair
from keepclose.webhook.settings import PATH, WebhookSettings

_T = TypeVar("_T")
WEBHOOK_COMPONENT: Final = "keepclose-webhook"
WEBHOOK_LEASE_NAME: Final = "keepclose-webhook"
CONDITION_PREFIX: Final = "keepclose.dev/"
_ONCE: Final = Retries(max_elapsed=0.0)
_RETRY_S: Final = 2.0
_log = structlog.get_logger(__name__)


class WebhookProcess:
    """All parts of one replica, put together; run it once."""

    def __init__(
        self,
        client: Client,
        settings: ControllerSettings,
        webhook: WebhookSettings,
        *,
        clock: Clock,
        leader_elect: bool,
    ) -> None:
        # Beside another controller conditions need a name of their own.
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
        """Set once all caches have been complete."""
        self.metrics = WebhookMetrics()
        self.view = HintView(settings.plan)
        self.reflectors = self.view.reflectors(client, clock=clock)
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
        """Where reviews are answered, once `run` has begun to listen."""

    async def run(self) -> None:
        """Run until cancelled; ConfigError and OSError tell of settings that cannot work."""
        background: list[Coroutine[Any, Any, Any]] = [one.run() for one in self.reflectors]
        background += [self._recorder.run(), self._serve()]
        tasks = [asyncio.create_task(one) for one in background]
        try:
            await _first_failure(tasks)
        finally:
            try:
                # NB: the keeper first, while the webhook still answers to what its writes cause.
                for task in reversed(tasks):
                    task.cancel()
                    await asyncio.wait((task,))
                await self.webhook.stop()
            finally:
                # NB: after the syncs, which would take a closed heuristic for one that failed.
                close_heuristics(self._heuristics)

    async def _serve(self) -> None:
        pair = await self._find_pair()
        self.webhook.trust(pair)
        self._registration.ca = pair.ca
        self.port = await self.webhook.start(self._settings.host, self._settings.port)
        self.listening.set()
        for reflector in self.reflectors:
            await reflector.synced.wait()
        self.synced.set()
        _log.info("caches are complete", services=len(self.view.caches.services))
        if self._settings.registers:
            await self._patiently(self._registration.ensure)
        watching = asyncio.create_task(self._follow_files(pair))
        try:
            await self._lead()
        finally:
            watching.cancel()
            await asyncio.wait((watching,))

    async def _lead(self) -> None:
        async def work() -> None:
            keeping = asyncio.create_task(self._registration.keep())
            try:
                await self.keeper.lead()
            finally:
                keeping.cancel()
                await asyncio.wait((keeping,))

        while True:
            if not self._leader_elect:
                await work()
            elector = LeaderElector(
                self._client,
                namespace=self._settings.home,
                name=WEBHOOK_LEASE_NAME,
                identity=f"{socket.gethostname()}_{os.getpid()}_{uuid4()}",
                clock=self._clock,
            )
            try:
                await elector.run(work)
            except LeadershipLost as error:
                _log.warning("another replica keeps hints now", error=str(error))

    async def _find_pair(self) -> ServingPair:
        settings = self._settings
        if settings.certificate_file:
            return read_pair(settings.certificate_file, settings.key_file, settings.ca_file)

        async def keep() -> ServingPair:
            return await keep_pair(
                self._client,
                namespace=settings.home,
                hosts=settings.hosts,
                now=self._clock.now(),
            )

        return await self._patiently(keep)

    async def _follow_files(self, pair: ServingPair) -> None:
        """Take certificates that were renewed in their files."""
        settings = self._settings
        while settings.certificate_file:
            await self._clock.sleep(CHECK_S)
            try:
                found = read_pair(settings.certificate_file, settings.key_file, settings.ca_file)
                if found != pair:
                    self.webhook.trust(found)
                    self._registration.ca, pair = found.ca, found
                    _log.info("took a renewed certificate", file=settings.certificate_file)
            except ConfigError as error:
                # Files may be seen half written; what is loaded still serves.
                _log.warning("cannot take the renewed certificate", error=str(error))

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        while True:
            try:
                return await ask()
            except ConfigError:
                raise
            except KubeError as error:
                _log.warning("the API server does not do it yet", error=str(error))
                await self._clock.sleep(_RETRY_S)


def run_webhook(
    settings: ControllerSettings,
    webhook: WebhookSettings,
    connection: ConnectionSettings,
    *,
    leader_elect: bool,
    listening: Listening | None = None,
    on_ready: Callable[[str], None],
) -> None:
    """Run a webhook until SIGTERM or SIGINT; `on_ready` is told once where it answers.

    Raise ConfigError when the settings cannot work, and OSError when a port cannot be had.
    """
    work = serve_webhook(
        settings,
        webhook,
        connection,
        leader_elect=leader_elect,
        clock=SystemClock(),
        listening=listening,
        on_ready=on_ready,
    )
    asyncio.run(until_signal(work))


async def serve_webhook(
    settings: ControllerSettings,
    webhook: WebhookSettings,
    connection: ConnectionSettings,
    *,
    leader_elect: bool,
    clock: Clock,
    listening: Listening | None = None,
    on_ready: Callable[[str], None],
) -> None:
    """Run a webhook until cancelled."""
    async with connect(connection, clock=clock, retries=_ONCE) as client:
        process = WebhookProcess(client, settings, webhook, clock=clock, leader_elect=leader_elect)
        pages = Pages(
            metrics=process.metrics.page,
            is_ready=process.synced.is_set,
            explain=process.keeper.explain,
        )
        shown = ""
        if listening is not None:
            port = await pages.start(*listening)
            shown = f", pages at http://{listening.host}:{port}"

        async def tell() -> None:
            await process.synced.wait()
            where = f"https://{webhook.host}:{process.port}{PATH}"
            on_ready(f"keepclose webhook answers at {where}{shown}")

        telling = asyncio.create_task(tell())
        try:
            await process.run()
        finally:
            telling.cancel()
            await asyncio.wait((telling,))
            await pages.stop()


async def _first_failure(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for ever, or until a task fails, and raise that."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
