"""What the reference says about metrics: names, types, labels and texts of all pages served.

Names, types and texts are read from the pages themselves, so they are those that a scraper sees;
labels, which a page without series does not tell, are asked of the registry behind it. Nothing is
described here a second time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from keepclose.accounting.flow_table import ALL_DETAIL, FlowTable
from keepclose.apiserver.http.connection_table import ConnectionTable
from keepclose.apiserver.metrics import ServerMetrics
from keepclose.apiserver.serving.http_messages import ConnectionLimits
from keepclose.apiserver.storage.store import Store
from keepclose.controller.metrics import ControllerMetrics
from keepclose.demand.file_source import FileSource
from keepclose.demand.reader import DemandMetrics, DemandReader
from keepclose.demand.settings import DemandOptions, DemandOrigin
from keepclose.demand.store import DemandStore
from keepclose.flows.metrics import AgentCounts, FlowMetrics
from keepclose.kube.clock import SystemClock
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.settings import PlannerSettings
from keepclose.webhook.metrics import WebhookMetrics

_TOTAL = "_total"


class _Page(NamedTuple):
    title: str
    where: str
    text: bytes
    registry: CollectorRegistry


class _Family(NamedTuple):
    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def describe_metrics() -> str:
    """Return a section with a table for each process."""
    about = (
        "Series whose names end in `_created`, the start times of others, are not listed. A"
        " series with labels appears with its first value.\n"
    )
    return "\n".join([about, *(_section(page) for page in _pages()), _flows_section()])


def _demand_page() -> _Page:
    clock = SystemClock()
    options = DemandOptions(DemandOrigin.FILE, file="demand.csv")
    store = DemandStore(
        options.use, source=options.source, by_cpu=lambda: Shares({}), now=clock.monotonic
    )
    source = FileSource(options.file, clock=clock)
    registry = CollectorRegistry()
    DemandMetrics(registry, DemandReader(source, store, clock=clock, period_s=options.period_s))
    return _Page(
        "Measured demand",
        "With `--demand`, `keepclose controller` serves these in addition, in both modes.",
        generate_latest(registry),
        registry,
    )


def _pages() -> Iterator[_Page]:
    controller = ControllerMetrics(max_endpoints=PlannerSettings().max_endpoints)
    yield _Page(
        "Controller",
        "`keepclose controller`, mirroring included, serves these at `--metrics-address`.",
        controller.page(),
        controller.registry,
    )
    webhook = WebhookMetrics()
    yield _Page(
        "Controller in webhook mode",
        "`keepclose controller --mode=webhook` serves these, and not those above, at"
        " `--metrics-address`.",
        webhook.page(),
        webhook.registry,
    )
    yield _demand_page()
    proxy = ProxyMetrics()
    proxy.count_connections(lambda: ())
    proxy.count_unserved(lambda: ())
    yield _Page(
        "Node proxy",
        "`keepclose proxy` serves these at `--metrics-bind-address`. With `--no-counters` it has no"
        " series of connections and packets.",
        proxy.page(),
        proxy.registry,
    )
    store = Store.open(None)
    server = ServerMetrics(store)
    server.follow(ConnectionTable(ConnectionLimits(), time.monotonic))
    yield _Page(
        "API server",
        "`keepclose apiserver` serves these at the path `/metrics` of its own port.",
        server.page(),
        server.registry,
    )
    store.close()


def _flows_section() -> str:
    """Return the section of the flows agent, which has no registry."""
    metrics = FlowMetrics(ALL_DETAIL, table=FlowTable, counts=AgentCounts)
    where = (
        "`keepclose flows` serves these at `--metrics-bind-address`. The labels of nodes, clients"
        " and endpoints appear with `--detail`."
    )
    return _table("Flows agent", where, sorted(_Family(*family) for family in metrics.families()))


def _section(page: _Page) -> str:
    return _table(page.title, page.where, _families(page))


def _table(title: str, where: str, families: list[_Family]) -> str:
    rows = "\n".join(
        f"| `{one.name}` | {one.type} | {', '.join(f'`{label}`' for label in one.labels)} "
        f"| {one.help} |"
        for one in families
    )
    return (
        f"## {title}\n\n{where}\n\n"
        f"| metric | type | labels | what it shows |\n|---|---|---|---|\n{rows}\n"
    )


def _families(page: _Page) -> list[_Family]:
    """Return what a page has to show, by name."""
    labels = dict(_labels(page.registry))
    helps: dict[str, str] = {}
    found = []
    for line in page.text.decode().splitlines():
        word, _, rest = line.removeprefix("# ").partition(" ")
        name, _, text = rest.partition(" ")
        if word == "HELP":
            helps[name] = text
        elif word == "TYPE":
            own = name if name in labels else name.removesuffix(_TOTAL)
            # NB: the library also shows when series began, in families that no collector makes.
            if own in labels:
                found.append(_Family(name, text, labels[own], helps[name]))
    return sorted(found)


def _labels(registry: CollectorRegistry) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the labels of each family by its name in the registry."""
    collectors: dict[Collector, list[str]] = vars(registry)["_collector_to_names"]
    for collector in collectors:
        for family in collector.collect():
            # One that was made with its labels hands out families that do not know them.
            holder = family if "_labelnames" in vars(family) else collector
            yield family.name, tuple(vars(holder).get("_labelnames", ()))
