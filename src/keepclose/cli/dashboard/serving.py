"""The dashboard as a program: its connection to the cluster, its server, and its parts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import Final, NamedTuple

from keepclose.cli.dashboard.feed import Feed
from keepclose.cli.dashboard.live_flows import follow_flows, read_cluster_flows, read_lab_flows
from keepclose.cli.dashboard.watched_cluster import WatchedCluster
from keepclose.cli.dashboard.web_guard import WebGuard
from keepclose.cli.dashboard.web_pages import DashboardPages
from keepclose.cli.options import ChosenCluster
from keepclose.kube.clock import Clock
from keepclose.kube.connection import connect
from keepclose.kube.requests import SERVICES
from keepclose.kube.transport.retries import Retries
from keepclose.runtime.pages import ListenAddress
from keepclose.runtime.program import Parts, keep_running
from keepclose.slices.settings import PlannerSettings

_TOKEN_BYTES: Final = 24
_FLOWS_AGAIN_S: Final = 30.0
_NO_RETRIES: Final = Retries(max_elapsed=0.0)
# Where "every address" is bound, a browser of this machine uses loopback.
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - not bound here


class DashboardOptions(NamedTuple):
    """What a dashboard shows, and where."""

    cluster: ChosenCluster
    settings: PlannerSettings
    address: ListenAddress
    agent_namespace: str
    allows_writes: bool = False


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; a name other than localhost does not."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_dashboard(
    options: DashboardOptions, *, clock: Clock, on_ready: Callable[[str], None]
) -> None:
    """Serve until cancelled; `on_ready` gets the URL with the token of this run.

    Raises ListenError, KubeError if the cluster does not answer at first, and ConfigError.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    host, port = options.address
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connect(options.cluster.connection, clock=clock, retries=_NO_RETRIES)
        )
        await client.list_page(SERVICES, limit=1)
        feed = Feed()
        watched = WatchedCluster(
            options.cluster.name,
            options.settings,
            feed=feed,
            clock=clock,
            allows_writes=options.allows_writes,
        )
        guard = WebGuard(token, names=frozenset({host.lower()} - {""}))
        server = DashboardPages(watched, feed, client).serve(guard)
        stack.push_async_callback(server.stop)
        stack.callback(feed.end)
        port = await server.start(host, port)
        lab = options.cluster.lab
        read_flows = (
            read_cluster_flows(client, options.agent_namespace, clock)
            if lab is None
            else read_lab_flows(lab)
        )
        # What agents send is not trusted, and the page is useful without it.
        flows = keep_running(
            lambda: follow_flows(read_flows, feed, clock=clock),
            what="reading of flow agents",
            after_s=_FLOWS_AGAIN_S,
        )
        parts = Parts((watched.run(client), flows), are_endless=True)
        stack.push_async_callback(parts.stop)
        await parts.until(watched.complete.wait())
        on_ready(f"http://{ListenAddress(_ANY.get(host, host), port)}/#token={token}")
        await parts.until_ended()
