"""The proxy as a process: its connection, its writer, its pages, and the signals that end it.

The end of the process never changes the rules, so that traffic continues until the next proxy
takes over.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.transport.retries import Retries
from keepclose.model.addresses import IPV4
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.conntrack import ConntrackSettings, SysctlError, set_sysctls
from keepclose.proxy.health import HealthServer
from keepclose.proxy.nft.requirements import COUNTED_POOLS, POOLS, find_missing
from keepclose.proxy.nft.select_writer import (
    DryRunWriter,
    NftablesUnavailableError,
    WriterName,
    WriterSettings,
    choose_writer,
)
from keepclose.proxy.nft.writer import NftFamily, NftWriter
from keepclose.proxy.settings import PROXY_COMPONENT, PROXY_FAMILIES, ProxySettings
from keepclose.proxy.status import ProxyPages
from keepclose.ruleset import cleanup_text
from keepclose.ruleset.settings import RulesetSettings
from keepclose.runtime.pages import ListenAddress
from keepclose.runtime.program import (
    OnReady,
    Parts,
    ReadyMessage,
    ignore_ready,
    run_program,
)

# The caches hold many long-lived objects; frequent garbage collections cost more than they free.
_GC_THRESHOLD_AT_START: Final = 2_000_000
_GC_THRESHOLDS: Final = (100_000, 50, 100)
# The kernel needs many seconds for a table of ten thousand Services; a longer write hangs.
_WRITE_TIMEOUT_S: Final = 120.0
# How long a command that runs once waits for the API server.
_LIST_TIMEOUT_S: Final = 30.0
_NO_RETRIES: Final = Retries(max_elapsed=0.0)

_log = structlog.get_logger(__name__)


class ProxyHostSettings(NamedTuple):
    """What a proxy uses of the host.

    The writer of rules, the addresses of its pages, and the settings of connection tracking; None
    leaves connection tracking as it is.
    """

    writer: WriterName = "auto"
    pages: ListenAddress | None = None
    health: ListenAddress | None = None
    conntrack: ConntrackSettings | None = None


def run_proxy(
    settings: ProxySettings,
    connection: ConnectionSettings,
    *,
    host_settings: ProxyHostSettings,
    on_ready: OnReady = ignore_ready,
) -> None:
    """Run a proxy until SIGTERM or SIGINT; `on_ready` gets the addresses of its pages.

    Raises ConfigError if the connection settings cannot work, NftablesUnavailableError if this host
    does not allow rules to be written, and OSError if the pages cannot be served.
    """
    gc.set_threshold(_GC_THRESHOLD_AT_START)
    work = serve_proxy(
        settings,
        connection,
        host_settings=host_settings,
        clock=SystemClock(),
        on_ready=on_ready,
        on_synced=_freeze_garbage_collector,
    )
    run_program(work)


def run_once(
    settings: ProxySettings, connection: ConnectionSettings, *, writer: WriterName = "auto"
) -> None:
    """Write all rules once.

    Raises ConfigError, NftablesUnavailableError, NftError and TimeoutError.
    """
    run_program(_write_once(settings, connection, writer))


def show_transactions(
    settings: ProxySettings,
    connection: ConnectionSettings,
    *,
    show: Callable[[str], None],
    writer: WriterName = "auto",
) -> None:
    """Show the transactions that a sync would write; raises ConfigError and TimeoutError."""
    run_program(_show(settings, connection, show, writer))


def remove_tables(settings: ProxySettings, *, writer: WriterName = "auto") -> None:
    """Remove the tables of all families, if there are any.

    Raises NftablesUnavailableError and NftError.
    """
    run_program(_remove(settings, writer))


async def serve_proxy(
    settings: ProxySettings,
    connection: ConnectionSettings,
    *,
    host_settings: ProxyHostSettings,
    clock: Clock,
    on_ready: OnReady = ignore_ready,
    on_synced: Callable[[], None] | None = None,
    writer: NftWriter | None = None,
) -> None:
    """Run a proxy until cancelled; it calls `on_synced` once all rules are written."""
    async with AsyncExitStack() as stack:
        if writer is None:
            writer = await _select_writer(settings, host_settings.writer, clock)
            stack.push_async_callback(writer.close)
            settings = await fit_settings(settings, writer)
        else:
            stack.push_async_callback(writer.close)
        if host_settings.conntrack is not None:
            tune_conntrack(host_settings.conntrack)
        client = await stack.enter_async_context(
            connect(connection, clock=clock, retries=_NO_RETRIES)
        )
        recorder = EventRecorder(
            client, component=PROXY_COMPONENT, clock=clock, host=settings.node_name
        )
        proxy = NodeProxy(client, settings, writer=writer, clock=clock, recorder=recorder)
        ready = [f"keepclose proxy runs for node {settings.node_name}"]
        pages_url = ""
        # The lists start while the pages are set up. NB: the task does not run before the first
        # page has its port, so a port in use ends the command before it writes anything.
        parts = Parts((proxy.run(),))
        stack.push_async_callback(parts.stop)
        if host_settings.pages is not None:
            pages = ProxyPages(
                settings,
                metrics=proxy.metrics.page,
                refresh=proxy.counters.refresh,
                status=proxy.status,
            )
            stack.push_async_callback(pages.stop)
            host = host_settings.pages.host
            port = await pages.start(*host_settings.pages)
            pages_url = f"http://{ListenAddress(host, port)}"
            ready.append(f"pages at {pages_url}")
        if host_settings.health is not None:
            server = HealthServer(
                proxy.health,
                node=lambda: proxy.own_node,
                clock=clock,
                count=proxy.metrics.answered,
            )
            stack.push_async_callback(server.stop)
            ready.append(await _serve_health(server, host_settings.health, stack))
        on_ready(ReadyMessage(", ".join(ready), pages=pages_url))
        if on_synced is not None:
            parts.start(_call_after(proxy.synced, on_synced))
        try:
            await parts.until_ended()
        finally:
            # NB: before the pages, which report the health of the proxy until it has stopped.
            await parts.stop()


def find_families() -> tuple[str, ...]:
    """Return the address families that this host has; IPv6 may be disabled."""
    return PROXY_FAMILIES if Path("/proc/net/if_inet6").exists() else (IPV4,)


def tune_conntrack(settings: ConntrackSettings) -> None:
    """Apply the settings that can be applied, and log the others; traffic flows without them too.

    NB: in a network namespace other than the host's, the maximum cannot be changed.
    """
    for attempt in (settings, settings._replace(max_per_core=0)):
        try:
            set_sysctls(attempt)
        except SysctlError as error:
            _log.warning("connection tracking settings not applied", error=str(error))
        else:
            return


async def fit_settings(settings: ProxySettings, writer: NftWriter) -> ProxySettings:
    """Return the settings without optional features that this nft or kernel does not support."""
    tables = _nft_families(settings)
    if not await find_missing(writer, tables, (POOLS, COUNTED_POOLS)):
        return settings
    if missing := await find_missing(writer, tables, (POOLS,)):
        _log.warning("changes of large tables will be slow", missing=missing[0])
        return replace(settings, pooled=False)
    if settings.counts_connections:
        _log.warning("connections are not counted", missing=COUNTED_POOLS.name)
    return replace(settings, counts_connections=False)


def _freeze_garbage_collector() -> None:
    """Exclude all objects that exist after the start from garbage collection."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _call_after(event: asyncio.Event, work: Callable[[], None]) -> None:
    await event.wait()
    work()


async def _serve_health(server: HealthServer, address: ListenAddress, stack: AsyncExitStack) -> str:
    """Serve the health pages now or, if another process has their port, once it is free."""
    try:
        port = await server.start(*address)
    except OSError as error:
        task = asyncio.create_task(server.start_eventually(*address))
        stack.callback(task.cancel)
        return f"health not served yet ({error})"
    return f"health at http://{ListenAddress(address.host, port)}/healthz"


async def _select_writer(settings: ProxySettings, name: WriterName, clock: Clock) -> NftWriter:
    writer_settings = WriterSettings(
        prefer=name, families=_nft_families(settings), limit=_WRITE_TIMEOUT_S
    )
    selected = await choose_writer(writer_settings, clock=clock)
    return selected.writer


def _nft_families(settings: ProxySettings) -> tuple[NftFamily, ...]:
    return tuple("ip" if family == IPV4 else "ip6" for family in settings.families)


async def _write_once(
    settings: ProxySettings, connection: ConnectionSettings, name: WriterName
) -> None:
    clock = SystemClock()
    writer = await _select_writer(settings, name, clock)
    try:
        await _sync_once(await fit_settings(settings, writer), connection, writer, clock)
    finally:
        await writer.close()


async def _show(
    settings: ProxySettings,
    connection: ConnectionSettings,
    show: Callable[[str], None],
    name: WriterName,
) -> None:
    clock = SystemClock()
    try:
        reader: NftWriter | None = await _select_writer(settings, name, clock)
    except NftablesUnavailableError:
        reader = None
    if reader is not None:
        settings = await fit_settings(settings, reader)
    writer = DryRunWriter(show, reader=reader)
    try:
        await _sync_once(settings, connection, writer, clock)
    finally:
        await writer.close()


async def _sync_once(
    settings: ProxySettings, connection: ConnectionSettings, writer: NftWriter, clock: Clock
) -> None:
    async with connect(connection, clock=clock, retries=_NO_RETRIES) as client:
        proxy = NodeProxy(client, settings, writer=writer, clock=clock)
        await proxy.run_once(within_s=_LIST_TIMEOUT_S)


async def _remove(settings: ProxySettings, name: WriterName) -> None:
    writer = await _select_writer(settings, name, SystemClock())
    try:
        for family in settings.families:
            layout = RulesetSettings(family=family, table=settings.table)
            await writer.apply(cleanup_text(layout))
    finally:
        await writer.close()
