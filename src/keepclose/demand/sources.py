"""The sources of demand: flow agents, a Prometheus, or what else has a `DemandSource`.

A source is read as a whole, within limits of time and size. What cannot be read is a
`DemandReadError` that names the address and what to do; a source that is read in part says so in
notes. Blocking calls and the decoding of answers happen in threads, so that syncs go on.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol
from urllib.parse import SplitResult, urlencode

from keepclose.accounting.flow_files import FlowFileError, page_lines, read_json_lines
from keepclose.accounting.flow_table import ZONES_ONLY, FlowTable
from keepclose.accounting.prometheus_answers import read_vector
from keepclose.demand.agent_pages import MAX_AGENT_PAGE_BYTES, PageReader
from keepclose.demand.prometheus_queries import DemandQuery
from keepclose.demand.rates import (
    MAX_DEMAND_BYTES,
    ServiceRates,
    add_rates,
    rates_of_flows,
    rates_of_series,
)
from keepclose.demand.settings import DemandMeasure
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError
from keepclose.model.meta import NamespacedName
from keepclose.model.plain_text import make_plain
from keepclose.system.bounded_http import HttpPageError, get_page, show_url, split_url
from keepclose.system.files import MAX_SETTINGS_BYTES, InputError, read_input
from keepclose.system.threads import ask_in_thread

EXCHANGE_WITHIN_S: Final = 20.0
"""For a whole exchange with an agent or a Prometheus."""
FIRST_GAP_S: Final = 5.0
"""Between the first two readings of agents, whose difference is the first rate."""
_AT_ONCE: Final = 2
"""Agents at addresses that are read at once: each takes one of the few threads of the program."""
MAX_MEASURED_ROWS: Final = 300_000
"""The most rows of all agents together; in memory they take about 200 MiB."""
_SHOWN: Final = 3
_NOTE_LENGTH: Final = 500
_MAX_TOKEN_BYTES: Final = 1 << 16
_NO_BYTES: Final = (
    "it counts no bytes, because net.netfilter.nf_conntrack_acct is 0; run it with "
    "--enable-accounting, or measure connections"
)
_TOKEN: Final = re.compile(r"[!-~]+")

TakePage = Callable[[str, bytes], str]
"""Takes the page of an agent by name, in a thread, and returns why it cannot; "" if it can."""


class ReadErrors(NamedTuple):
    """Why agents could not be read, by name, and what else the log should say."""

    by_agent: dict[str, str]
    notes: tuple[str, ...] = ()


ReadPages = Callable[[TakePage], Awaitable[ReadErrors]]
"""Reads the pages of all agents, and returns what was not read."""


class DemandReadError(Exception):
    """A source that cannot be read; the message names it, and what to do."""


class DemandReading(NamedTuple):
    """The rates of all Services that a source has measured."""

    rates: ServiceRates
    age_s: float = 0.0
    """How long ago they were measured."""
    notes: tuple[str, ...] = ()
    rejected: Mapping[NamespacedName, str] = {}
    """Why the rates of a Service could not be read, which are not among `rates`."""
    period_s: float = inf
    """How long was counted for them; infinite where the source has seen to that."""


class DemandSource(Protocol):
    """What measures demand."""

    async def read(self) -> DemandReading:
        """Return the present rates; raise DemandReadError."""
        ...


class _Agent:
    """The last table of an agent, and the rates since the one before it."""

    def __init__(self) -> None:
        self.table: FlowTable | None = None
        self.rates: ServiceRates = {}
        self.at: float | None = None
        """When it last had rates, by our clock."""
        self.period_s = inf
        """How long it counted for them."""


class AgentSource:
    """The flow agents of a cluster, whose counters are read again and again.

    An agent that does not answer counts as before, for a while. If less than half of the agents of
    a zone have answered in that time, nothing is measured, because that zone would seem to send
    little. While no agent of a zone answers, readings are as old as its last rates.
    """

    def __init__(
        self,
        read_pages: ReadPages,
        *,
        clock: Clock,
        measure: DemandMeasure = DemandMeasure.CONNECTIONS,
        kept_s: float = 300.0,
        zones: Callable[[], Mapping[str, str]] | None = None,
        namespace: str = "kube-system",
    ) -> None:
        """Take what reads pages; `zones` returns the zone of each node where agents are nodes'.

        `namespace` is that of the agents, for errors.
        """
        self._read_pages = read_pages
        self._clock = clock
        self._measure = measure
        self._kept_s = kept_s
        self._zones = zones
        self._namespace = namespace
        self._agents: dict[str, _Agent] = {}

    async def read(self) -> DemandReading:
        """Read all agents; the first time twice, because a rate needs two readings."""
        if not any(agent.at is not None for agent in self._agents.values()):
            await self._read_once()
            await self._clock.sleep(FIRST_GAP_S)
        errors, others = await self._read_once()
        self._check_zones(errors)
        total: ServiceRates = {}
        for agent in self._agents.values():
            if self._is_fresh(agent):
                add_rates(total, agent.rates)
        notes = [f"{name}: {why}" for name, why in sorted(errors.items())]
        if len(notes) > _SHOWN:
            notes[_SHOWN:] = [f"and {len(notes) - _SHOWN:,} more agents do not answer"]
        notes += [make_plain(note, most=_NOTE_LENGTH) for note in others[:_SHOWN]]
        periods = [agent.period_s for agent in self._agents.values() if self._is_fresh(agent)]
        return DemandReading(
            total,
            age_s=self._find_age(),
            notes=tuple(notes),
            period_s=min(periods, default=inf),
        )

    def _find_age(self) -> float:
        """Return the age of the newest rates of the zone whose agents are silent for longest."""
        zones = {} if self._zones is None else self._zones()
        newest: dict[str, float] = {}
        for name, agent in self._agents.items():
            if agent.at is not None and self._is_fresh(agent) and self._counts(name, zones):
                zone = zones.get(name, "")
                newest[zone] = max(agent.at, newest.get(zone, agent.at))
        return max((self._clock.monotonic() - at for at in newest.values()), default=0.0)

    async def _read_once(self) -> ReadErrors:
        listed: set[str] = set()

        def take(name: str, page: bytes) -> str:
            listed.add(name)
            try:
                table = read_json_lines(page_lines(page), name=name).reduced(ZONES_ONLY)
            except FlowFileError as error:
                return str(error)
            if self._measure is DemandMeasure.BYTES and not table.has_bytes:
                # NB: its clients would seem to send nothing.
                return _NO_BYTES
            others = sum(
                len(agent.table)
                for other, agent in self._agents.items()
                if other != name and agent.table is not None
            )
            if others + len(table) > MAX_MEASURED_ROWS:
                return (
                    f"all agents together have more than {MAX_MEASURED_ROWS:,} rows; measure with "
                    "a Prometheus instead"
                )
            self._record(name, table)
            return ""

        try:
            errors, notes = await self._read_pages(take)
        except (KubeError, ValueError) as error:
            message = f"the flow agents cannot be listed: {error}"
            raise DemandReadError(message) from error
        for name in [name for name in self._agents if name not in listed and name not in errors]:
            del self._agents[name]
        if not listed and not errors:
            message = (
                f"the cluster runs no flow agent in the namespace {self._namespace}; start them as "
                "docs/howto/flows.md says, or name another one with --demand-agent-namespace"
            )
            raise DemandReadError(message)
        for name in errors:
            self._agents.setdefault(name, _Agent())
        return ReadErrors(
            {name: make_plain(why, most=_NOTE_LENGTH) for name, why in errors.items()}, notes
        )

    def _record(self, name: str, table: FlowTable) -> None:
        agent = self._agents.setdefault(name, _Agent())
        before, agent.table = agent.table, table
        if before is None:
            return
        later = table.since(before)
        if later.seconds > 0.0:
            # NB: an agent that counts no more of a zone has measured that it sends nothing.
            agent.rates = rates_of_flows(later, measure=self._measure, counted=table)
            agent.at = self._clock.monotonic()
            agent.period_s = later.seconds

    def _is_fresh(self, agent: _Agent) -> bool:
        return agent.at is not None and self._clock.monotonic() - agent.at <= self._kept_s

    def _counts(self, name: str, zones: Mapping[str, str]) -> bool:
        """Return whether an agent must answer: not on a node that is not ready, or has no zone."""
        return self._zones is None or bool(zones.get(name))

    def _check_zones(self, errors: Mapping[str, str]) -> None:
        """Raise DemandReadError if a zone is measured by less than half of its agents."""
        zones = {} if self._zones is None else self._zones()
        agents: dict[str, list[bool]] = {zone: [] for zone in zones.values() if zone}
        for name, agent in self._agents.items():
            # NB: a new agent has no rate before its second reading, and is not missed.
            is_known = self._is_fresh(agent) or (name not in errors and agent.table is not None)
            if self._counts(name, zones):
                agents.setdefault(zones.get(name, ""), []).append(is_known)
        for zone, known in sorted(agents.items()):
            if (zone and not known) or 2 * sum(known) < len(known):
                where = f" of zone {zone}" if zone else ""
                why = next(iter(errors.values()), "there is none")
                message = f"{sum(known)} of {len(known)} flow agents{where} answer: {why}"
                raise DemandReadError(message)


def pages_of_cluster(client: Client, namespace: str, *, clock: Clock) -> ReadPages:
    """Return what reads the agents of a namespace through the API server.

    One that hangs must not take the time that the whole reading has.
    """

    async def read(take: TakePage) -> ReadErrors:
        reader = PageReader(client, take, clock=clock, page_within_s=EXCHANGE_WITHIN_S)
        await reader.read(namespace=namespace, option="--demand-agent-namespace")
        return ReadErrors(reader.errors, tuple(reader.notes))

    return read


def pages_of_addresses(addresses: tuple[str, ...]) -> ReadPages:
    """Return what reads the agents at some addresses, http://HOST:PORT each.

    Raises HttpPageError for one that cannot work.
    """
    urls = [split_url(address) for address in addresses]

    async def read(take: TakePage) -> ReadErrors:
        errors: dict[str, str] = {}
        slots = asyncio.Semaphore(_AT_ONCE)
        # A page of the largest size takes many times its size while it is parsed.
        taking = asyncio.Lock()

        async def read_agent(url: SplitResult) -> None:
            path = url.path if url.path.strip("/") else "/flows"
            name = show_url(url, path)

            def fetch() -> bytes:
                return get_page(
                    url,
                    f"{path}?walk=true",
                    what="flow agent",
                    most=MAX_AGENT_PAGE_BYTES,
                    within_s=EXCHANGE_WITHIN_S,
                )

            async with slots:
                try:
                    page = await ask_in_thread(fetch)
                except HttpPageError as error:
                    why = f"{error}; {error.fix}"
                else:
                    async with taking:
                        why = await ask_in_thread(lambda: take(name, page))
            if why:
                errors[name] = why

        await asyncio.gather(*map(read_agent, urls))
        return ReadErrors(errors)

    return read


class PrometheusSource:
    """A Prometheus that answers a query for rates now."""

    def __init__(
        self,
        address: str,
        query: DemandQuery,
        *,
        zones: Callable[[], Mapping[str, str]],
        token_file: str = "",
        ca_file: str = "",
    ) -> None:
        """Take the address and the query; `zones` returns the zone of each node.

        The files are read again for each question, because tokens and certificates are renewed.
        """
        self._url = split_url(address)
        self._query = query
        self._zones = zones
        self._token_file = token_file
        self._ca_file = ca_file

    def check(self) -> None:
        """Raise DemandReadError if the files of token and authorities cannot be used."""
        if self._token_file:
            _read_token(self._token_file)
        if self._ca_file:
            _trust(self._ca_file)

    async def read(self) -> DemandReading:
        """Ask the query; raise DemandReadError."""
        name = show_url(self._url, self._url.path)
        # NB: here, because the nodes belong to the event loop: what a thread computes from them may
        # be stored after they changed.
        zones = self._zones()
        try:
            rates = await ask_in_thread(lambda: self._ask(name, zones))
        except HttpPageError as error:
            message = f"{error}; {error.fix}" if error.fix else str(error)
            raise DemandReadError(message) from error
        except FlowFileError as error:
            message = f"{error}; check --demand-query"
            raise DemandReadError(message) from error
        note = f"{name} answers the query without a series that has a Service and a zone"
        return DemandReading(rates, notes=() if rates else (note,))

    def _ask(self, name: str, zones: Mapping[str, str]) -> ServiceRates:
        target = f"{self._url.path.rstrip('/')}/api/v1/query?"
        data = get_page(
            self._url,
            target + urlencode({"query": self._query.text}),
            what="Prometheus",
            most=MAX_DEMAND_BYTES,
            within_s=EXCHANGE_WITHIN_S,
            token=_read_token(self._token_file) if self._token_file else "",
            tls=_trust(self._ca_file) if self._ca_file else None,
        )
        series = read_vector(data, name=name)
        return rates_of_series(series, self._query.labels, zones=zones)


def _read_token(path: str) -> str:
    """Return the token in a file; an error never shows any of it."""
    try:
        token = read_input(path, most=_MAX_TOKEN_BYTES, takes_pipes=False).decode("ascii").strip()
    except (InputError, OSError) as error:
        message = (
            f"--demand-token-file {make_plain(path, most=200)} cannot be read: {error}; "
            "name a file with the token in one line"
        )
        raise DemandReadError(message) from None
    except ValueError:
        token = ""
    if not _TOKEN.fullmatch(token):
        message = f"--demand-token-file {make_plain(path, most=200)} has no token; write one line"
        raise DemandReadError(message)
    return token


def _trust(path: str) -> ssl.SSLContext:
    """Return what trusts the authorities in a file, and no others."""
    try:
        text = read_input(path, most=MAX_SETTINGS_BYTES, takes_pipes=False).decode("ascii")
        context = ssl.create_default_context(cadata=text)
    except (InputError, OSError, ValueError) as error:
        message = (
            f"--demand-ca-file {make_plain(path, most=200)} cannot be used: "
            f"{make_plain(str(error), most=200)}; name a file of certificates in PEM"
        )
        raise DemandReadError(message) from None
    return context
