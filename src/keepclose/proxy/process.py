"""The proxy as a process: a connection, a writer, pages, and signals that end it.

Ending it leaves the rules as they are, so that traffic flows on until the next one takes over.
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
from keepclose.proxy.conntrack.stale_flows import ConntrackSettings, SysctlError, set_sysctls
from keepclose.proxy.health import HealthServer
from keepclose.proxy.nft.requirements import COUNTED_POOLS, POOLS, find_missing
from keepclose.proxy.nft.select_writer import (
    CannotProgramError,
    DryRunWriter,
    WriterName,
    WriterSettings,
    choose_writer,
)
from keepclose.proxy.nft.writer import NftFamily, NftWriter
from keepclose.proxy.settings import PROXY_COMPONENT, PROXY_FAMILIES, ProxySettings
from keepclose.proxy.status import ProxyPages
from keepclose.ruleset import cleanup_text
from keepclose.ruleset.settings import RulesetSettings
from keepclose.runtime.event_loop import until_signal

# Caches hold much that stays; looking through all of it often costs more than it finds.
_COLLECTED_AT_START: Final = 2_000_000
_COLLECTED_AFTER: Final = (100_000, 50, 100)
# A table of ten thousand Services takes the kernel many seconds; what takes longer hangs.
_WRITE_S: Final = 120.0
# How long a command that runs once waits for a server.
_ANSWER_S: Final = 30.0
_ONCE: Final = Retries(max_elapsed=0.0)

_log = structlog.get_logger(__name__)


class Address(NamedTuple):
    """Where pages are served; port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Surroundings(NamedTuple):
    """What a proxy uses of the machine.

    A way to write rules, addresses for its pages, and settings of connection tracking, which are
    left alone where there are none.
    """

    writer: WriterName = "auto"
    pages: Address | None = None
    health: Address | None = None
    conntrack: ConntrackSettings | None = None


def _ignore(_text: str) -> None:
    """Tell nobody."""


def run_proxy(
    settings: ProxySettings,
    connection: ConnectionSettings,
    *,
    surroundings: Surroundings,
    on_ready: Callable[[str], None] = _ignore,
) -> None:
    """Run a proxy until SIGTERM or SIGINT; `on_ready` is told once where its pages are.

    Raise ConfigError when the cluster cannot be asked with these settings, CannotProgramError when
    rules cannot be written here, and OSError when the pages cannot be served.
    """
    gc.set_threshold(_COLLECTED_AT_START)
    work = serve_proxy(
        settings,
        connection,
        surroundings=surroundings,
        clock=SystemClock(),
        on_ready=on_ready,
        on_synced=_spare_what_stays,
    )
    asyncio.run(until_signal(work))


def _spare_what_stays() -> None:
    """Have the collector look no more at what the start made."""
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


def run_once(
    settings: ProxySettings, connection: ConnectionSettings, *, writer: WriterName = "auto"
) -> None:
    """Write all rules once; raises ConfigError, CannotProgramError, NftError and TimeoutError."""
    asyncio.run(until_signal(_write_once(settings, connection, writer)))


def show_transactions(
    settings: ProxySettings,
    connection: ConnectionSettings,
    *,
    show: Callable[[str], None],
    writer: WriterName = "auto",
) -> None:
    """Show what would have to be written; raises ConfigError and TimeoutError."""
    asyncio.run(until_signal(_show(settings, connection, show, writer)))


def remove_tables(settings: ProxySettings, *, writer: WriterName = "auto") -> None:
    """Remove the tables of all families, if there are any; raises CannotProgramError, NftError."""
    asyncio.run(until_signal(_remove(settings, writer)))


async def serve_proxy(
    settings: ProxySettings,
    connection: ConnectionSettings,
    *,
    surroundings: Surroundings,
    clock: Clock,
    on_ready: Callable[[str], None] = _ignore,
    on_synced: Callable[[], None] | None = None,
    writer: NftWriter | None = None,
) -> None:
    """Run a proxy until cancelled; `on_synced` is called once all rules are written."""
    async with AsyncExitStack() as stack:
        if writer is None:
            writer = await _choose(settings, surroundings.writer, clock)
            stack.push_async_callback(writer.close)
            settings = await fit_settings(settings, writer)
        else:
            stack.push_async_callback(writer.close)
        if surroundings.conntrack is not None:
            tune_conntrack(surroundings.conntrack)
        client = await stack.enter_async_context(connect(connection, clock=clock, retries=_ONCE))
        recorder = EventRecorder(
            client, component=PROXY_COMPONENT, clock=clock, host=settings.node_name
        )
        proxy = NodeProxy(client, settings, writer=writer, clock=clock, recorder=recorder)
        said = [f"keepclose proxy runs for node {settings.node_name}"]
        # Listing begins while the pages are made. NB: nothing of this runs before the first page
        # has its port, so a port that is taken still ends the command before anything is written.
        running = asyncio.create_task(proxy.run())
        stack.push_async_callback(_cancel, running)
        if surroundings.pages is not None:
            pages = ProxyPages(
                settings,
                metrics=proxy.metrics.page,
                refresh=proxy.counters.refresh,
                status=proxy.status,
            )
            stack.push_async_callback(pages.stop)
            host = surroundings.pages.host
            port = await pages.start(*surroundings.pages)
            said.append(f"pages at http://{Address(host, port)}")
        if surroundings.health is not None:
            server = HealthServer(
                proxy.health,
                node=lambda: proxy.own_node,
                clock=clock,
                count=proxy.metrics.answered,
            )
            stack.push_async_callback(server.stop)
            said.append(await _serve_health(server, surroundings.health, stack))
        on_ready(", ".join(said))
        if on_synced is not None:
            stack.push_async_callback(
                _cancel, asyncio.create_task(_call_after(proxy.synced, on_synced))
            )
        await running


async def _call_after(event: asyncio.Event, work: Callable[[], None]) -> None:
    await event.wait()
    work()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def find_families() -> tuple[str, ...]:
    """Return the address families that this machine has; IPv6 may be switched off."""
    return PROXY_FAMILIES if Path("/proc/net/if_inet6").exists() else (IPV4,)


def tune_conntrack(settings: ConntrackSettings) -> None:
    """Set what can be set, and log what cannot; traffic flows without it too.

    NB: where a network namespace is not the machine's first, its maximum cannot be changed.
    """
    for wanted in (settings, settings._replace(max_per_core=0)):
        try:
            set_sysctls(wanted)
        except SysctlError as error:
            _log.warning("connection tracking stays as it is", error=str(error))
        else:
            return


async def _serve_health(server: HealthServer, address: Address, stack: AsyncExitStack) -> str:
    """Serve the health pages now, or as soon as whoever has their port lets go of it."""
    try:
        port = await server.start(*address)
    except OSError as error:
        task = asyncio.create_task(server.start_eventually(*address))
        stack.callback(task.cancel)
        return f"health not served yet ({error})"
    return f"health at http://{Address(address.host, port)}/healthz"


async def _choose(settings: ProxySettings, name: WriterName, clock: Clock) -> NftWriter:
    wanted = WriterSettings(prefer=name, families=_tables(settings), limit=_WRITE_S)
    chosen = await choose_writer(wanted, clock=clock)
    return chosen.writer


async def fit_settings(settings: ProxySettings, writer: NftWriter) -> ProxySettings:
    """Return the settings without what this nft or kernel cannot do, but need not."""
    tables = _tables(settings)
    if not await find_missing(writer, tables, (POOLS, COUNTED_POOLS)):
        return settings
    if missing := await find_missing(writer, tables, (POOLS,)):
        _log.warning("changes of large tables will be slow", missing=missing[0])
        return replace(settings, pooled=False)
    if settings.counts_connections:
        _log.warning("connections are not counted", missing=COUNTED_POOLS.name)
    return replace(settings, counts_connections=False)


def _tables(settings: ProxySettings) -> tuple[NftFamily, ...]:
    return tuple("ip" if family == IPV4 else "ip6" for family in settings.families)


async def _write_once(
    settings: ProxySettings, connection: ConnectionSettings, name: WriterName
) -> None:
    clock = SystemClock()
    writer = await _choose(settings, name, clock)
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
        reader: NftWriter | None = await _choose(settings, name, clock)
    except CannotProgramError:
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
    async with connect(connection, clock=clock, retries=_ONCE) as client:
        proxy = NodeProxy(client, settings, writer=writer, clock=clock)
        await proxy.run_once(within_s=_ANSWER_S)


async def _remove(settings: ProxySettings, name: WriterName) -> None:
    writer = await _choose(settings, name, SystemClock())
    try:
        for family in settings.families:
            layout = RulesetSettings(family=family, table=settings.table)
            await writer.apply(cleanup_text(layout))
    finally:
        await writer.close()
