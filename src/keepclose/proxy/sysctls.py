"""Sets the sysctls of connection tracking at start, as kube-proxy does.

Forwarding, route_localnet and the reverse path filters belong to the network plugin of the node and
are never changed. A setting of 0 leaves the value as it is. A value that cannot be written is an
error, unless it is already set: nf_conntrack_max cannot be changed in a network namespace other
than the host's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import structlog

_CONNTRACK_MAX_LIMIT: Final = 1 << 20
_FLOWS_PER_BUCKET: Final = 4
_CONNTRACK_MAX: Final = "net/netfilter/nf_conntrack_max"
_HASH_SIZE: Final = Path("module/nf_conntrack/parameters/hashsize")
_log = structlog.get_logger(__name__)


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
