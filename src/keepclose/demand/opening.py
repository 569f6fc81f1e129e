"""Puts the parts of measured demand together for a program, from its options.

A program opens demand at most once, after its caches exist, and runs the reader beside its syncs.
"""

from __future__ import annotations

from collections.abc import Callable

from keepclose.demand.file_source import FileSource
from keepclose.demand.prometheus_queries import find_query
from keepclose.demand.reader import DemandReader
from keepclose.demand.settings import DemandOptions, DemandOrigin
from keepclose.demand.sources import (
    AgentSource,
    DemandReadError,
    DemandSource,
    PrometheusSource,
    ReadPages,
    pages_of_addresses,
    pages_of_cluster,
)
from keepclose.demand.store import DemandStore
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConfigError
from keepclose.routing.traffic_shares import considered_nodes
from keepclose.slices.settings import ClusterNodes
from keepclose.system.bounded_http import HttpPageError


def open_demand(
    options: DemandOptions,
    client: Client,
    *,
    clock: Clock,
    cluster: Callable[[], ClusterNodes],
    read_pages: ReadPages | None = None,
) -> DemandReader:
    """Return the reader of demand; raise ConfigError for an address or file that cannot work.

    `cluster` returns the present nodes. `read_pages` reads flow agents in another way than by the
    options, with the names of nodes.
    """
    try:
        source = _open_source(options, client, clock=clock, cluster=cluster, read_pages=read_pages)
    except HttpPageError as error:
        is_agent = options.origin is DemandOrigin.FLOWS
        option = "--demand-flows" if is_agent else "--demand-prometheus-url"
        message = f"{option}: {error}; {error.fix or 'write http://HOST:PORT'}"
        raise ConfigError(message) from error
    except DemandReadError as error:
        # NB: what is wrong with a file at the start would be logged for ever, and never work.
        raise ConfigError(str(error)) from error
    except ValueError as error:
        message = f"--demand: {error}"
        raise ConfigError(message) from error
    store = DemandStore(
        options.use,
        source=options.source,
        by_cpu=lambda: cluster().shares,
        now=clock.monotonic,
    )
    return DemandReader(source, store, clock=clock, period_s=options.period_s)


def _open_source(
    options: DemandOptions,
    client: Client,
    *,
    clock: Clock,
    cluster: Callable[[], ClusterNodes],
    read_pages: ReadPages | None,
) -> DemandSource:
    def zones_of_all() -> dict[str, str]:
        return {name: node.zone for name, node in cluster().nodes.items()}

    def zones() -> dict[str, str]:
        return {node.name: node.zone for node in considered_nodes(cluster().nodes.values())}

    match options.origin:
        case DemandOrigin.PROMETHEUS:
            query = find_query(options.query, options.labels)
            prometheus = PrometheusSource(
                options.prometheus_url,
                query,
                zones=zones_of_all,
                token_file=options.token_file,
                ca_file=options.ca_file,
            )
            prometheus.check()
            return prometheus
        case DemandOrigin.FILE:
            file = FileSource(options.file, clock=clock)
            file.check()
            return file
        case DemandOrigin.FLOWS:
            by_node = read_pages is not None or not options.agents
            if read_pages is None:
                read_pages = (
                    pages_of_addresses(options.agents)
                    if options.agents
                    else pages_of_cluster(client, options.agent_namespace, clock=clock)
                )
            return AgentSource(
                read_pages,
                clock=clock,
                measure=options.measure,
                kept_s=options.use.stale_after_s,
                zones=zones if by_node else None,
                namespace=options.agent_namespace,
            )
