"""The flows agent of a node: what it reads, what it counts, and what it shows.

With a checkpoint it shows only what the checkpoint holds, so that a crash never makes a count fall:
the next process begins with what was shown. A scrape writes the checkpoint first, at most once a
second. If it cannot be written, counts stay as they are, and log, metrics and /readyz say so.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

import structlog

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.flow_table import FlowTable
from keepclose.flows.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFile,
    boot_id,
    encode_checkpoint,
    own_namespace,
    read_checkpoint,
    seconds_since_boot,
)
from keepclose.flows.collector import Collector, ConntrackUnavailableError, Inside, run_here
from keepclose.flows.flow_rows import FlowRows
from keepclose.flows.ledger import Ledger
from keepclose.flows.metrics import AgentCounts, FlowMetrics, ShownFlows
from keepclose.flows.name_sources import NameSources, SteadyTime, WrongNodeName
from keepclose.flows.settings import FlowSettings
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.runtime.program import Parts
from keepclose.system.conntrack import enable_accounting
from keepclose.system.netlink import interface_addresses

REFRESH_S: Final = 1.0
"""The least time between two checkpoints or two walks that requests cause; the most for which a
request waits for events to be read."""
_TICK_S: Final = 1.0
_RETRY_S: Final = 1.0
_NO_PERIOD: Final = (
    "the counts are those of open connections since each began: they have no period, so they have "
    "no rate and no cost an hour"
)
_log = structlog.get_logger(__name__)


class UnknownNodeError(Exception):
    """No Node has the name that was given; the message says which it may be."""

    def __init__(self, wrong: WrongNodeName) -> None:
        super().__init__(wrong.problem)
        self.fix = wrong.fix


class FlowAgent:
    """Counts the connections of one node; open it, then run it."""

    def __init__(
        self,
        settings: FlowSettings,
        *,
        client: Client,
        clock: Clock,
        inside: Inside = run_here,
    ) -> None:
        """Take the settings; `inside` runs work in the network namespace of the node."""
        self._settings, self._clock, self._inside = settings, clock, inside
        now = SteadyTime(clock)
        self._now = now
        self.book = AddressBook(cluster_ranges=settings.cluster_ranges, subnets=settings.subnets)
        rows = FlowRows(
            self.book,
            node=settings.node_name,
            detail=settings.detail,
            now=now,
            most=settings.most_flows,
            has_all_names=False,
        )
        self.ledger = Ledger(rows, most_waiting=settings.most_waiting)
        self.sources = NameSources(self.book, settings, client=client, clock=clock, now=now)
        self.collector = Collector(
            self.ledger,
            clock=clock,
            walk_s=settings.walk_s,
            buffer_bytes=settings.buffer_bytes,
            inside=inside,
        )
        self.ready = asyncio.Event()
        """Set once connections are counted and the caches were complete."""
        self._start = now()
        self._gap_s = 0.0
        self._counts_once = False
        self._addresses: frozenset[bytes] = frozenset()
        self._shown = ShownFlows(settings.most_services)
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self._walked_at = 0.0
        path = settings.checkpoint
        self._file = None if path is None else CheckpointFile(path)
        self.table = FlowTable(start=self._start, end=self._start)
        """All flows, as of the last refresh."""
        self._shown_table = FlowTable()
        self._counts = AgentCounts()
        self.metrics = FlowMetrics(
            settings.detail, table=lambda: self._shown_table, counts=self._shown_counts
        )

    def open(self) -> None:
        """Begin to receive events, and read the checkpoint.

        Raises ConntrackUnavailableError and CheckpointUnavailableError.
        """
        if self._file is not None:
            self._file.open()
        self.collector.open()
        state = self.collector.state
        if state is not None and not state.accounts:
            self._handle_missing_accounting()
        self._record_addresses()
        # NB: before the first request for a page, which reads events or walks the table.
        self.ledger.ignores_past = not self._continue()
        self._publish()

    def close(self) -> None:
        """Stop receiving events, and release the checkpoint. Idempotent."""
        self.collector.close()
        if self._file is not None:
            self._file.close()

    async def run(self) -> None:
        """Count until cancelled; then write a last checkpoint."""
        parts = Parts((self.sources.run(),))
        try:
            await parts.until(self._start_counting())
            for part in (
                self.collector.read_events(),
                self.collector.walk_at_intervals(self._after_walk),
                self._tick(),
                self._refresh_at_intervals(),
                self._report_ready(),
            ):
                parts.start(part)
            await parts.until_ended()
        finally:
            await parts.stop()
            # NB: a scrape may be writing an older state at this moment.
            async with self._refreshing:
                await self.collector.drain()
                await self._save()

    async def count_once(self, *, within_s: float) -> FlowTable:
        """Return the flows of the connections that are open now; their period is not known.

        Raises TimeoutError, UnknownNodeError, and errors of the API server that waiting does not
        change.
        """
        parts = Parts((self.sources.run(),))
        try:
            await parts.until(self._clock.wait_for(self.sources.wait_synced(), within_s))
        finally:
            await parts.stop()
        wrong = self.sources.find_wrong_name(self._addresses)
        if wrong is not None:
            raise UnknownNodeError(wrong)
        self.ledger.ignores_past = False
        self._counts_once = True
        # NB: before the walk, so that connections beyond the limit of waiting are not unknown.
        self.ledger.tick(at=self._clock.monotonic(), wait_s=0.0, is_synced=True)
        if not await self.collector.walk():
            raise ConntrackUnavailableError(
                "the kernel's table of connections could not be read", "try again"
            )
        self.ledger.tick(at=self._clock.monotonic(), wait_s=0.0, is_synced=True)
        table = self._live_table()
        # NB: each connection has counted since it began, so a cost would be one of no period.
        table.start = table.end = 0.0
        table.notes.append(_NO_PERIOD)
        return table

    async def refresh(self, *, walks: bool = False) -> None:
        """Bring the table and the metrics up to date, at most once a second.

        With `walks`, bytes of open connections are counted first.
        """
        async with self._refreshing:
            now = self._clock.monotonic()
            if walks and now - self._walked_at >= REFRESH_S:
                self._walked_at = now
                await self.collector.walk()
                self._refreshed_at = None
            if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_S:
                return
            self._refreshed_at = now
            # NB: a scrape waits for this; events that are left are read a moment later.
            await self.collector.drain(most_s=REFRESH_S)
            self._tick_once()
            await self._save()

    async def _start_counting(self) -> None:
        try:
            await self._clock.wait_for(self.sources.synced.wait(), self._settings.start_wait_s)
        except TimeoutError:
            _log.warning(
                "the API server has not answered yet; connections wait for names, "
                f"at most {self._settings.most_waiting:,}"
            )
        self._tick_once()
        while not await self.collector.walk():
            await self._clock.sleep(_RETRY_S)
            self._tick_once()

    def find_problem(self) -> str:
        """Return why counts are old, or not those of the node that is meant; else ""."""
        wrong = self.sources.find_wrong_name(self._addresses)
        if wrong is not None:
            return f"{wrong.problem}; {wrong.fix}"
        return "" if self._file is None else self._file.problem

    async def _report_ready(self) -> None:
        await self.sources.synced.wait()
        wrong = self.sources.find_wrong_name(self._addresses)
        if wrong is not None:
            _log.warning(f"zones and nodes are missing: {wrong.problem}", fix=wrong.fix)
        self.ready.set()

    async def _tick(self) -> NoReturn:
        while True:
            await self._clock.sleep(_TICK_S)
            self._tick_once()

    def _tick_once(self) -> None:
        self.ledger.tick(
            at=self._clock.monotonic(),
            wait_s=self._settings.name_wait_s,
            is_synced=self.sources.is_synced,
        )

    async def _refresh_at_intervals(self) -> NoReturn:
        while True:
            await self._clock.sleep(self._settings.checkpoint_s)
            await self.refresh()

    def _after_walk(self) -> None:
        try:
            self._record_addresses()
        except OSError as error:
            _log.warning("the addresses of this node could not be read", error=str(error))

    def _record_addresses(self) -> None:
        addresses: frozenset[bytes] = self._inside(interface_addresses)
        if addresses != self._addresses:
            self._addresses = addresses
            self.book.set_own_addresses(self._settings.node_name, addresses, at=self._now())

    def _handle_missing_accounting(self) -> None:
        if self._settings.enables_accounting:
            try:
                self._inside(enable_accounting)
            except OSError as error:
                raise ConntrackUnavailableError(
                    f"net.netfilter.nf_conntrack_acct cannot be set: {error.strerror}",
                    "set it on the node: sysctl -w net.netfilter.nf_conntrack_acct=1, "
                    "and leave out --enable-accounting",
                    needs_privilege=True,
                ) from None
            self.collector.check_state()
            _log.info("accounting turned on; connections that are open already have no counters")
            return
        _log.warning(
            "bytes are not counted, only connections: net.netfilter.nf_conntrack_acct is 0",
            fix="pass --enable-accounting, or: sysctl -w net.netfilter.nf_conntrack_acct=1",
        )

    def _continue(self) -> bool:
        """Continue from the checkpoint; return whether there is one."""
        if self._file is None:
            return False
        try:
            checkpoint = read_checkpoint(
                self._file.path, boot=boot_id(), namespace=self._inside(own_namespace)
            )
        except CheckpointError as error:
            _log.warning("counts begin at 0", reason=str(error))
            return False
        if checkpoint is None:
            return False
        self.ledger.load(checkpoint.ledger, at=self._clock.monotonic())
        gap_s = max(0.0, seconds_since_boot() - checkpoint.boot_s)
        # NB: not where it began by the wall clock of that time, which may have been set since.
        self._start = max(0.0, self._now() - (checkpoint.end - checkpoint.start) - gap_s)
        self._gap_s = checkpoint.gap_s + gap_s
        collector = self.collector
        collector.lost, collector.walks = checkpoint.lost, checkpoint.walks
        collector.table_full = checkpoint.table_full
        self._shown.load(self._live_table(), checkpoint.shown)
        _log.info(
            "counting continues from the checkpoint",
            open_connections=len(self.ledger),
            gap_seconds=round(gap_s, 1),
        )
        return True

    def _live_table(self) -> FlowTable:
        state = self.collector.state
        has_bytes = state is not None and state.accounts
        end = max(self._start, self._now())
        table = self.ledger.rows.table(start=self._start, end=end, has_bytes=has_bytes)
        if not has_bytes:
            table.notes.append(
                f"{self._settings.node_name}: bytes are not counted, because "
                "net.netfilter.nf_conntrack_acct is 0"
            )
        if state is not None and not state.reports_events and not self._counts_once:
            table.notes.append(
                f"{self._settings.node_name}: connections that begin and end between two walks are "
                "missing, because net.netfilter.nf_conntrack_events is 0"
            )
        if self._gap_s >= 1:
            table.notes.append(
                f"{self._settings.node_name}: no agent ran for {self._gap_s:,.0f} s; connections "
                "that began and ended then are missing"
            )
        if self.collector.lost:
            table.notes.append(
                f"{self._settings.node_name}: {self.collector.lost:,} events were lost; "
                "connections that began and ended between two walks may be missing"
            )
        return table

    async def _save(self) -> None:
        """Write the checkpoint if there is one, and show what it holds.

        Before the first whole walk ever there is nothing to continue from, and nothing is shown.
        """
        if self._file is None:
            self._publish()
            return
        if self.ledger.ignores_past:
            # NB: the next process would take what is open as its own, and count all of it.
            return
        table = self._live_table()
        counts = self._live_counts()
        shown = self._shown.update(table)
        data = encode_checkpoint(
            Checkpoint(
                boot_id(),
                self._inside(own_namespace),
                seconds_since_boot(),
                self._start,
                max(self._start, self._now()),
                self.ledger.state(),
                self._shown.state(),
                counts.lost,
                counts.walks,
                counts.table_full,
                counts.gap_s,
            )
        )
        if await self._file.save(data):
            self.table, self._shown_table, self._counts = table, shown, counts

    def _publish(self) -> None:
        self.table = self._live_table()
        self._shown_table = self._shown.update(self.table)
        self._counts = self._live_counts()

    def _shown_counts(self) -> AgentCounts:
        # NB: failures are no part of what could not be written.
        failures = 0 if self._file is None else self._file.failures
        return self._counts._replace(checkpoint_failures=failures)

    def _live_counts(self) -> AgentCounts:
        collector, state = self.collector, self.collector.state
        return AgentCounts(
            collector.lost,
            collector.walks,
            len(self.ledger),
            self.ledger.waiting,
            state is not None and state.accounts,
            self._gap_s,
            self.ledger.unobserved,
            collector.table_full,
            reports_events=state is not None and state.reports_events,
        )
