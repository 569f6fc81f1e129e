"""Connection tracking: lists the kernel's flows over netlink, and deletes stale UDP flows.

A UDP flow has no end, so a client that keeps sending would stay with its first endpoint forever. As
in kube-proxy, a flow is stale if its original destination is an address of a Service and its reply
source is not a serving endpoint of that Service. Topology and policies do not matter: a change of
those never cuts a flow. TCP flows end by themselves and are never deleted.

It needs no conntrack program. A flow is deleted by its reply tuple and its identity number, which
the kernel computes from the flow: a newer flow of the same client to another endpoint is never
deleted.

Sets the sysctls of connection tracking at start, as kube-proxy does. Forwarding, route_localnet and
the reverse path filters belong to the network plugin of the node and are never changed. A setting
of 0 leaves the value as it is. A value that cannot be written is an error, unless it is already
set: nf_conntrack_max cannot be changed in a network namespace other than the host's.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from keepclose.kube.clock import Clock, SystemClock
from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from keepclose.proxy.nft.writer import NftFamily
from keepclose.system.netlink import (
    ACK,
    NETFILTER,
    NETFILTER_HEAD_BYTES,
    NetlinkSocket,
    attributes_of,
    encode_attribute,
    encode_nested,
    netfilter_head,
)

AddressPort = tuple[str, int]
UDP: Final = 17
SCTP: Final = 132
ATTEMPTS: Final = 5
_DEFAULT_LIMIT: Final = 30.0
_DELETED_AT_ONCE: Final = 64
_GET, _DELETE = 0x0101, 0x0102
# Attributes of a flow, and those inside a tuple.
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_SOURCES, _DESTINATIONS = (1, 3), (2, 4)
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
# The part of the original tuple that the kernel compares (since 5.8).
_BY_PROTOCOL: Final = 1 << 3
_log = structlog.get_logger(__name__)
_CONNTRACK_MAX_LIMIT: Final = 1 << 20
_FLOWS_PER_BUCKET: Final = 4
_CONNTRACK_MAX: Final = "net/netfilter/nf_conntrack_max"
_HASH_SIZE: Final = Path("module/nf_conntrack/parameters/hashsize")


class Flow(NamedTuple):
    """A connection that the kernel tracks, translated or not."""

    protocol: int
    destination: str
    """The original destination: the address of the Service."""
    destination_port: int
    reply_source: str
    """The source of replies: the endpoint."""
    reply_source_port: int
    source: str
    source_port: int
    reply: bytes = b""
    """The reply tuple, as the kernel sent it."""
    identity: bytes = b""
    zone: bytes = b""


class FlowListing(NamedTuple):
    """Flows, and whether the kernel's table stayed unchanged during the listing."""

    flows: list[Flow]
    complete: bool


class ConntrackTable:
    """A netlink socket for the kernel's flows; it blocks, and serves one thread at a time."""

    def __init__(
        self,
        family: socket.AddressFamily,
        *,
        seconds: float = 10.0,
        opened: socket.socket | None = None,
    ) -> None:
        """Open the socket in the namespace of the calling thread; raises OSError.

        A test passes an open socket whose peer is not the kernel.
        """
        self._head = netfilter_head(family)
        self._netlink = NetlinkSocket(NETFILTER, seconds=seconds, opened=opened)

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()

    def list_flows(self, protocol: int) -> FlowListing:
        """Return all flows of a protocol and of this family; raises OSError.

        If the table changes meanwhile, it is read again a few times; the last listing counts.
        """
        listing = FlowListing([], complete=False)
        for _ in range(ATTEMPTS):
            listing = self._list_once(protocol)
            if listing.complete:
                break
        return listing

    def delete(self, flows: Sequence[Flow]) -> int:
        """Delete flows and return how many still existed; raises OSError for any error."""
        deleted = 0
        for start in range(0, len(flows), _DELETED_AT_ONCE):
            bodies = [self._deletion(flow) for flow in flows[start : start + _DELETED_AT_ONCE]]
            codes = [code for code, _ in self._netlink.request_each(_DELETE, bodies, flags=ACK)]
            deleted += codes.count(0)
            # With ENOENT the flow has ended meanwhile.
            errors = [code for code in codes if code not in (0, errno.ENOENT)]
            if errors:
                raise OSError(errors[-1], f"cannot delete flows: {os.strerror(errors[-1])}")
        return deleted

    def _deletion(self, flow: Flow) -> bytes:
        body = self._head + encode_nested(_REPLY, flow.reply)
        if flow.identity:
            body += encode_attribute(_ID, flow.identity)
        if flow.zone:
            body += encode_attribute(_ZONE, flow.zone)
        return body

    def _list_once(self, protocol: int) -> FlowListing:
        original = encode_nested(_TUPLE_PROTO, encode_attribute(_NUMBER, bytes([protocol])))
        flow_filter = encode_attribute(1, struct.pack("=I", _BY_PROTOCOL))
        flow_filter += encode_attribute(2, bytes(4))
        body = encode_nested(_ORIGINAL, original) + encode_nested(_FILTER, flow_filter)
        flows: list[Flow] = []

        def read(_kind: int, reply: bytes) -> None:
            flow = parse_flow(reply, NETFILTER_HEAD_BYTES)
            # A kernel without support for the filter lists all flows.
            if flow is not None and flow.protocol == protocol:
                flows.append(flow)

        complete = self._netlink.dump(_GET, self._head + body, read, what="flows")
        return FlowListing(flows, complete)


def parse_flow(data: bytes, start: int = 0) -> Flow | None:
    """Return the flow of a netlink message's attributes; None for a flow without ports."""
    attributes = attributes_of(data, start)
    original, reply = attributes.get(_ORIGINAL), attributes.get(_REPLY)
    if original is None or reply is None:
        return None
    original_tuple, reply_tuple = _parse_tuple(original), _parse_tuple(reply)
    if original_tuple is None or reply_tuple is None:
        return None
    protocol, source, source_port, destination, destination_port = original_tuple
    return Flow(
        protocol,
        destination,
        destination_port,
        reply_tuple[1],
        reply_tuple[2],
        source,
        source_port,
        reply,
        attributes.get(_ID, b""),
        attributes.get(_ZONE, b""),
    )


def _parse_tuple(data: bytes) -> tuple[int, str, int, str, int] | None:
    parts = attributes_of(data)
    addresses = attributes_of(parts.get(_TUPLE_IP, b""))
    ports = attributes_of(parts.get(_TUPLE_PROTO, b""))
    source = next((addresses[kind] for kind in _SOURCES if kind in addresses), None)
    destination = next((addresses[kind] for kind in _DESTINATIONS if kind in addresses), None)
    if source is None or destination is None or not {len(source), len(destination)} <= {4, 16}:
        return None
    # Other protocols, such as ICMP, have no ports.
    if not ports.get(_NUMBER) or _SOURCE_PORT not in ports or _DESTINATION_PORT not in ports:
        return None
    return (
        ports[_NUMBER][0],
        _address(source),
        int.from_bytes(ports[_SOURCE_PORT], "big"),
        _address(destination),
        int.from_bytes(ports[_DESTINATION_PORT], "big"),
    )


def _address(raw: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


class Frontends(NamedTuple):
    """The addresses of Services and their serving endpoints, for one protocol.

    Addresses are in canonical form.
    """

    addresses: Mapping[AddressPort, frozenset[AddressPort]] = {}
    """By cluster IP, load balancer IP or external IP and port; also those without an endpoint."""
    node_ports: Mapping[int, frozenset[AddressPort]] = {}
    """By node port; only those with an endpoint: other programs may use the same port number."""


class CleanUp(NamedTuple):
    """The result of a clean-up."""

    examined: int = 0
    deleted: int = 0
    complete: bool = True
    """False if the kernel's table changed too fast to be read completely."""
    seconds: float = 0.0


class ConntrackError(Exception):
    """The kernel's table of flows could not be read or changed."""


def select_stale(flows: Iterable[Flow], frontends: Frontends) -> list[Flow]:
    """Return the flows to a Service whose endpoint no longer serves, never any other flow."""
    stale = []
    for flow in flows:
        endpoint = (flow.reply_source, flow.reply_source_port)
        serving = frontends.addresses.get((flow.destination, flow.destination_port))
        if serving is not None and endpoint not in serving:
            stale.append(flow)
            continue
        serving = frontends.node_ports.get(flow.destination_port)
        if serving is not None and endpoint not in serving:
            stale.append(flow)
    return stale


class Conntrack:
    """The kernel's flows of one family in one network namespace."""

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

        Without Services it does not read the kernel's table.
        """
        if not frontends.addresses and not frontends.node_ports:
            return CleanUp()
        started = self._clock.monotonic()
        clean_up = await self._run(lambda: self._clean(frontends, protocol))
        clean_up = clean_up._replace(seconds=self._clock.monotonic() - started)
        if clean_up.deleted or not clean_up.complete:
            _log.info(
                "stale flows deleted",
                protocol=protocol,
                examined=clean_up.examined,
                deleted=clean_up.deleted,
                complete=clean_up.complete,
            )
        return clean_up

    async def close(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def _clean(self, frontends: Frontends, protocol: int) -> CleanUp:
        table = ConntrackTable(self._family, seconds=self._limit)
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
    """The conntrack section of kube-proxy's configuration; 0 leaves a value as it is.

    Timeouts are in seconds.
    """

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: int = 86400
    tcp_close_wait_timeout: int = 3600
    tcp_be_liberal: bool = False
    udp_timeout: int = 0
    udp_stream_timeout: int = 0


class SysctlError(Exception):
    """A sysctl could not be read or written; the message names it and a remedy."""


def conntrack_max(settings: ConntrackSettings, cpus: int) -> int:
    """Return the limit for the number of flows in the kernel; 0 leaves it as it is."""
    if settings.max_per_core <= 0:
        return 0
    scaled = settings.max_per_core * cpus
    if scaled > _CONNTRACK_MAX_LIMIT:
        return _CONNTRACK_MAX_LIMIT
    return max(scaled, settings.min)


def desired_sysctls(settings: ConntrackSettings, cpus: int) -> dict[str, int]:
    """Return the desired values, by the path below /proc/sys."""
    desired = {
        _CONNTRACK_MAX: conntrack_max(settings, cpus),
        "net/netfilter/nf_conntrack_tcp_timeout_established": settings.tcp_established_timeout,
        "net/netfilter/nf_conntrack_tcp_timeout_close_wait": settings.tcp_close_wait_timeout,
        "net/netfilter/nf_conntrack_tcp_be_liberal": int(settings.tcp_be_liberal),
        "net/netfilter/nf_conntrack_udp_timeout": settings.udp_timeout,
        "net/netfilter/nf_conntrack_udp_timeout_stream": settings.udp_stream_timeout,
    }
    return {name: value for name, value in desired.items() if value > 0}


def set_sysctls(
    settings: ConntrackSettings,
    *,
    cpus: int | None = None,
    proc: Path = Path("/proc/sys"),
    sys: Path = Path("/sys"),
) -> list[str]:
    """Write the values that differ and return their names; raises SysctlError.

    NB: /proc/sys/net is that of the calling thread's namespace.
    """
    written = []
    for name, value in desired_sysctls(settings, cpus or os.cpu_count() or 1).items():
        if _write(proc / name, value, what=name):
            written.append(name)
        if name == _CONNTRACK_MAX and _grow_hash(sys / _HASH_SIZE, value // _FLOWS_PER_BUCKET):
            written.append(_HASH_SIZE.name)
    return written


def _grow_hash(path: Path, buckets: int) -> bool:
    # All network namespaces of the host share this table, so it is never shrunk.
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
        hint = (
            "; --no-tune-conntrack leaves all of them unchanged" if what == _CONNTRACK_MAX else ""
        )
        raise SysctlError(f"cannot set {what} to {value} (it is {before}): {error}{hint}") from None
    _log.info("kernel setting changed", name=what, before=before, value=value)
    return True
