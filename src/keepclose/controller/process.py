"""The controller as a process: a client, optional leader election, HTTP pages and signals.

With leader election only the holder of the lease syncs. It releases the lease once its last syncs
have ended, so that the next leader need not wait for the lease to expire. The pages (metrics,
health, the reasons of a decision) are read-only and have no authentication: they are meant for
loopback or the cluster's own network.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Final
from uuid import uuid4

from keepclose.controller.controller import Controller
from keepclose.controller.metrics import ControllerMetrics
from keepclose.controller.other_controllers import refuse_other_controller
from keepclose.demand.reader import DemandMetrics
from keepclose.demand.settings import DemandOptions
from keepclose.demand.sources import ReadPages
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.leader_election import LeaderElector
from keepclose.kube.transport.retries import Retries
from keepclose.reconcile.instrumentation import describe_plan
from keepclose.reconcile.settings import (
    CONTROLLER_COMPONENT,
    MIRRORING_COMPONENT,
    ControllerSettings,
)
from keepclose.runtime.pages import ListenAddress, controller_pages
from keepclose.runtime.program import (
    OnReady,
    ReadyMessage,
    beside,
    find_loop_factory,
    ignore_ready,
    run_program,
    tune_garbage_collection,
)

LEASE_NAMESPACE: Final = "kube-system"
LEASE_NAME: Final = "keepclose-controller"
# Standby replicas read the lease twice as often as the leader renews it, for a quick handover.
SEEK_PERIOD_S: Final = 1.0
_NO_RETRIES: Final = Retries(max_elapsed=0.0)


def run_controller(
    settings: ControllerSettings,
    connection: ConnectionSettings,
    *,
    leader_elect: bool,
    is_forced: bool = False,
    listening: ListenAddress | None = None,
    demand: DemandOptions | None = None,
    read_pages: ReadPages | None = None,
    on_ready: OnReady = ignore_ready,
) -> None:
    """Run a controller until SIGTERM or SIGINT; call `on_ready` once with the address of its pages.

    Raise ConfigError when the settings cannot work or another controller manages the slices,
    LeadershipLost when another replica may lead, and OSError when the pages cannot be served.
    """
    work = serve_controller(
        settings,
        connection,
        leader_elect=leader_elect,
        is_forced=is_forced,
        clock=SystemClock(),
        listening=listening,
        demand=demand,
        read_pages=read_pages,
        on_ready=on_ready,
    )
    run_program(work, loop_factory=find_loop_factory())


async def serve_controller(
    settings: ControllerSettings,
    connection: ConnectionSettings,
    *,
    leader_elect: bool,
    is_forced: bool = False,
    clock: Clock,
    listening: ListenAddress | None = None,
    demand: DemandOptions | None = None,
    read_pages: ReadPages | None = None,
    on_ready: OnReady = ignore_ready,
) -> None:
    """Run a controller until cancelled, with `leader_elect` only while it holds the lease."""
    metrics = ControllerMetrics(
        max_endpoints=settings.plan.max_endpoints, max_per_subset=settings.mirroring_max
    )
    async with connect(connection, clock=clock, retries=_NO_RETRIES) as client:
        recorder = EventRecorder(
            client, component=CONTROLLER_COMPONENT, clock=clock, host=socket.gethostname()
        )
        mirroring_recorder = EventRecorder(
            client, component=MIRRORING_COMPONENT, clock=clock, host=socket.gethostname()
        )
        controller = Controller(
            client,
            settings,
            clock=clock,
            recorder=recorder,
            mirroring_recorder=mirroring_recorder,
            observer=metrics,
            demand=demand,
            read_pages=read_pages,
            before_sync=None
            if is_forced
            else partial(
                refuse_other_controller, client, managed_by=settings.plan.managed_by, clock=clock
            ),
        )
        if controller.demand is not None:
            DemandMetrics(metrics.registry, controller.demand)
        pages = controller_pages(
            metrics=metrics.page,
            is_ready=controller.synced.is_set,
            explain=lambda key: describe_plan(controller.explain(key)),
        )
        if listening is None:
            on_ready(ReadyMessage("keepclose controller runs"))
        else:
            url = f"http://{listening.host}:{await pages.start(*listening)}"
            on_ready(ReadyMessage(f"keepclose controller runs, pages at {url}", pages=url))
        try:
            await _lead(controller, client, clock=clock, leader_elect=leader_elect)
        finally:
            await pages.stop()


async def _lead(
    controller: Controller, client: Client, *, clock: Clock, leader_elect: bool
) -> None:
    if not leader_elect:
        await _work(controller, clock=clock)
        return
    elector = LeaderElector(
        client,
        namespace=LEASE_NAMESPACE,
        name=LEASE_NAME,
        identity=f"{socket.gethostname()}_{os.getpid()}_{uuid4()}",
        clock=clock,
        seek_period_s=SEEK_PERIOD_S,
    )
    await elector.run(lambda: _work(controller, clock=clock))


async def _work(controller: Controller, *, clock: Clock) -> None:
    async with beside(
        tune_garbage_collection(controller.synced, lambda: controller.is_idle, clock=clock)
    ):
        await controller.run()
