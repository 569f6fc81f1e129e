"""The flows agent as a process: its connection, its pages, and the signals that end it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from itertools import islice
from typing import Final

from aiohttp import web

from keepclose.accounting.flow_files import write_json_lines
from keepclose.accounting.flow_table import FlowTable
from keepclose.flows.agent import FlowAgent
from keepclose.flows.collector import Inside, run_here
from keepclose.flows.settings import FlowSettings
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.transport.retries import Retries
from keepclose.runtime.pages import METRICS_TYPE, ListenAddress, PageServer, add_health_pages
from keepclose.runtime.program import OnReady, Parts, ReadyMessage, ignore_ready, run_program

JSON_LINES_TYPE: Final = "application/x-ndjson"
# Parameters of mallopt.
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
_LARGE_BYTES: Final = 1 << 17
_GC_THRESHOLDS: Final = (100_000, 50, 100)
_LINES_AT_ONCE: Final = 500
_LIST_TIMEOUT_S: Final = 30.0
_NO_RETRIES: Final = Retries(max_elapsed=0.0)


def run_agent(
    settings: FlowSettings,
    connection: ConnectionSettings,
    *,
    pages: ListenAddress | None,
    on_ready: OnReady = ignore_ready,
) -> None:
    """Run an agent until SIGTERM or SIGINT; `on_ready` gets the address of its pages.

    Raises ConfigError if the connection settings cannot work, ConntrackUnavailableError if the
    kernel's connections cannot be read, CheckpointUnavailableError if the checkpoint cannot be
    written, and OSError if the pages cannot be served.
    """
    keep_small()
    work = serve_agent(settings, connection, clock=SystemClock(), pages=pages, on_ready=on_ready)
    run_program(work)


def read_present(settings: FlowSettings, connection: ConnectionSettings) -> FlowTable:
    """Return the flows of the connections that are open now.

    Raises as `run_agent` does, UnknownNodeError, errors of the API server, and TimeoutError.
    """
    tables: list[FlowTable] = []

    async def read() -> None:
        clock = SystemClock()
        async with connect(connection, clock=clock, retries=_NO_RETRIES) as client:
            agent = FlowAgent(settings, client=client, clock=clock)
            try:
                agent.open()
                tables.append(await agent.count_once(within_s=_LIST_TIMEOUT_S))
            finally:
                agent.close()

    run_program(read())
    return tables[0] if tables else FlowTable()


async def serve_agent(
    settings: FlowSettings,
    connection: ConnectionSettings,
    *,
    clock: Clock,
    pages: ListenAddress | None,
    on_ready: OnReady = ignore_ready,
    inside: Inside = run_here,
) -> None:
    """Run an agent until cancelled; `inside` runs work in the network namespace of the node.

    NB: the pages and the connection to the API server belong to the namespace of the caller.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connect(connection, clock=clock, retries=_NO_RETRIES)
        )
        agent = FlowAgent(settings, client=client, clock=clock, inside=inside)
        stack.callback(agent.close)
        agent.open()
        text = f"keepclose flows counts the connections of node {settings.node_name}"
        url = ""
        if pages is not None:
            server = flow_pages(agent)
            stack.push_async_callback(server.stop)
            port = await server.start(*pages)
            url = f"http://{ListenAddress(pages.host, port)}"
            text += f", pages at {url}"
        parts = Parts((agent.run(),))
        stack.push_async_callback(parts.stop)
        parts.start(_freeze_after(agent.ready))
        on_ready(ReadyMessage(text, pages=url))
        await parts.until_ended()


def keep_small() -> None:
    """Let the C library return memory to the kernel as soon as it is free, where it can.

    By default glibc keeps the tables that a dictionary or an array had before it grew.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_ARENA_MAX, 1)


def release_memory() -> None:
    """Return free memory to the kernel, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def flow_pages(agent: FlowAgent) -> PageServer:
    """Return the pages of an agent: metrics, the table as JSON lines, and health."""

    async def show_metrics(request: web.Request) -> web.Response:
        del request
        await agent.refresh()
        body = await join_lines(agent.metrics.lines())
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})

    async def show_flows(request: web.Request) -> web.Response:
        await agent.refresh(walks=request.query.get("walk") == "true")
        body = await join_lines(write_json_lines(agent.table))
        return web.Response(body=body, content_type=JSON_LINES_TYPE)

    async def show_life(request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/flows", show_flows)
    app.router.add_get("/livez", show_life)
    add_health_pages(app, is_ready=agent.ready.is_set, find_problem=agent.find_problem)
    return PageServer(app)


async def join_lines(lines: Iterable[str]) -> bytes:
    """Return lines as one body; probes are answered meanwhile, because a page may have 100,000."""
    parts = []
    left = iter(lines)
    while part := "".join(islice(left, _LINES_AT_ONCE)):
        parts.append(part.encode(errors="replace"))
        await asyncio.sleep(0)
    # NB: what the table and its lines took, which is more than the page.
    release_memory()
    return b"".join(parts)


async def _freeze_after(event: asyncio.Event) -> None:
    """Exclude the objects of the caches from garbage collection; they live long."""
    await event.wait()
    gc.collect()
    # What the start needed goes back to the kernel: an agent on each node should be small.
    release_memory()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
