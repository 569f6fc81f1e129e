"""The kernel settings of connection tracking that a proxy sets at start, as kube-proxy does.

Only these: forwarding, route_localnet and the filters of reverse paths belong to whoever builds the
node's network. A setting of 0 is left as it is. A value that cannot be written is an error, except
one that holds already: in a namespace other than the first, nf_conntrack_max cannot be changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import structlog

_MOST: Final = 1 << 20
_PER_BUCKET: Final = 4
_MAX: Final = "net/netfilter/nf_conntrack_max"
_HASH_SIZE: Final = Path("module/nf_conntrack/parameters/hashsize")

_log = structlog.get_logger(__name__)


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
