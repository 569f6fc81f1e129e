"""Flows that go to endpoints which serve no more: found by what Services offer now, and forgotten.

A UDP flow has no end, so a client that goes on sending stays with its first endpoint for ever. As
kube-proxy does, a flow is stale when its original destination is a Service's address and whoever
answers is none of the Service's serving endpoints, whatever topology and policies say: a change of
those never cuts a flow. TCP flows end by themselves and are never touched.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from keepclose.kube.clock import Clock, SystemClock
from keepclose.proxy.conntrack.netlink import UDP, Flow, FlowListing, FlowTable
from keepclose.proxy.nft.writer import NftFamily
from keepclose.proxy.nft.writer_thread import StuckError, WorkThread

AddressPort = tuple[str, int]
_DEFAULT_LIMIT: Final = 30.0

_log = structlog.get_logger(__name__)
_MOST: Final = 1 << 20
_PER_BUCKET: Final = 4
_MAX: Final = "net/netfilter/nf_conntrack_max"
_HASH_SIZE: Final = Path("module/nf_conntrack/parameters/hashsize")


class Frontends(NamedTuple):
    """Where clients send to, and the endpoints that may answer there, of one protocol.

    Addresses are in their canonical form.
    """

    addresses: Mapping[AddressPort, frozenset[AddressPort]] = {}
    """By cluster IP, load-balancer IP or external IP and port; also those without an endpoint."""
    node_ports: Mapping[int, frozenset[AddressPort]] = {}
    """By node port; only those with an endpoint, since a port alone may belong to others."""


class CleanUp(NamedTuple):
    """What a clean-up did."""

    examined: int = 0
    deleted: int = 0
    complete: bool = True
    """False when the kernel's table changed too fast to be read whole."""
    seconds: float = 0.0


class ConntrackError(Exception):
    """The kernel's table of flows could not be read or changed."""


def select_stale(flows: Iterable[Flow], frontends: Frontends) -> list[Flow]:
    """Return the flows to a Service whose endpoint serves no more; flows elsewhere never."""
    stale = []
    for flow in flows:
        answering = (flow.reply_source, flow.reply_source_port)
        serving = frontends.addresses.get((flow.destination, flow.destination_port))
        if serving is not None and answering not in serving:
            stale.append(flow)
            continue
        serving = frontends.node_ports.get(flow.destination_port)
        if serving is not None and answering not in serving:
            stale.append(flow)
    return stale


class Conntrack:
    """The flows of one family in one network namespace."""

    def __init__(
        self,
        family: NftFamily,
        *,
        namespace: Path | None = None,
        limit: float = _DEFAULT_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        self._family = socket.AF_INET if family == "ip" else socket.AF_INET6
        self._clock = clock or SystemClock()
        self._thread = WorkThread("conntrack", namespace=namespace, clock=clock)
        self._limit = limit

    async def clean(self, frontends: Frontends, *, protocol: int = UDP) -> CleanUp:
        """Delete the stale flows of a protocol; raises ConntrackError.

        Nothing is read when no Service is given.
        """
        if not frontends.addresses and not frontends.node_ports:
            return CleanUp()
        started = self._clock.monotonic()
        done = await self._run(lambda: self._clean(frontends, protocol))
        done = done._replace(seconds=self._clock.monotonic() - started)
        if done.deleted or not done.complete:
            _log.info(
                "stale flows forgotten",
                protocol=protocol,
                examined=done.examined,
                deleted=done.deleted,
                complete=done.complete,
            )
        return done

    async def close(self) -> None:
        """Let go of the thread."""
        self._thread.stop()

    def _clean(self, frontends: Frontends, protocol: int) -> CleanUp:
        table = FlowTable(self._family, seconds=self._limit)
        try:
            listing: FlowListing = table.list_flows(protocol)
            deleted = table.delete(select_stale(listing.flows, frontends))
        finally:
            table.close()
        return CleanUp(len(listing.flows), deleted, listing.complete)

    async def _run(self, work: Callable[[], CleanUp]) -> CleanUp:
        try:
            return await self._thread.run(work, limit=self._limit, what="the clean-up of flows")
        except (OSError, StuckError) as error:
            raise ConntrackError(str(error)) from None


class ConntrackSettings(NamedTuple):
    """As in the configuration of kube-proxy; seconds, and 0 to leave a value alone."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: int = 86400
    tcp_close_wait_timeout: int = 3600
    tcp_be_liberal: bool = False
    udp_timeout: int = 0
    udp_stream_timeout: int = 0


class SysctlError(Exception):
    """A kernel setting could not be read or written; says which one and the way out."""


def conntrack_max(settings: ConntrackSettings, cpus: int) -> int:
    """Return how many flows the kernel shall be able to know; 0 to leave that alone."""
    if settings.max_per_core <= 0:
        return 0
    scaled = settings.max_per_core * cpus
    if scaled > _MOST:
        return _MOST
    return max(scaled, settings.min)


def wanted_sysctls(settings: ConntrackSettings, cpus: int) -> dict[str, int]:
    """Return what to write, by the path below /proc/sys."""
    wanted = {
        _MAX: conntrack_max(settings, cpus),
        "net/netfilter/nf_conntrack_tcp_timeout_established": settings.tcp_established_timeout,
        "net/netfilter/nf_conntrack_tcp_timeout_close_wait": settings.tcp_close_wait_timeout,
        "net/netfilter/nf_conntrack_tcp_be_liberal": int(settings.tcp_be_liberal),
        "net/netfilter/nf_conntrack_udp_timeout": settings.udp_timeout,
        "net/netfilter/nf_conntrack_udp_timeout_stream": settings.udp_stream_timeout,
    }
    return {name: value for name, value in wanted.items() if value > 0}


def set_sysctls(
    settings: ConntrackSettings,
    *,
    cpus: int | None = None,
    proc: Path = Path("/proc/sys"),
    sys: Path = Path("/sys"),
) -> list[str]:
    """Write what differs and return the names of what was written; raises SysctlError.

    NB: /proc/sys/net is that of the calling thread's namespace.
    """
    written = []
    for name, value in wanted_sysctls(settings, cpus or os.cpu_count() or 1).items():
        if _write(proc / name, value, what=name):
            written.append(name)
        if name == _MAX and _grow_hash(sys / _HASH_SIZE, value // _PER_BUCKET):
            written.append(_HASH_SIZE.name)
    return written


def _grow_hash(path: Path, buckets: int) -> bool:
    # The whole machine shares this table; it only ever grows.
    if _read(path, what=path.name) >= buckets:
        return False
    return _write(path, buckets, what=path.name)


def _read(path: Path, *, what: str) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        raise SysctlError(
            f"cannot read {what}: {error}; is the module nf_conntrack loaded?"
        ) from None


def _write(path: Path, value: int, *, what: str) -> bool:
    before = _read(path, what=what)
    if before == value:
        return False
    try:
        path.write_text(str(value))
    except OSError as error:
        hint = "; --no-tune-conntrack leaves all of them alone" if what == _MAX else ""
        raise SysctlError(f"cannot set {what} to {value} (it is {before}): {error}{hint}") from None
    _log.info("kernel setting changed", name=what, before=before, value=value)
    return True
