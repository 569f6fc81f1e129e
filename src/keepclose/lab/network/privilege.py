"""The privileges, tools and kernel features that network namespaces need.

A process without root's capabilities gets them inside a user namespace, over nothing but what is
created there. Every answer is the result of a trial, never a guess from a version. Trials leave
nothing behind: only open files hold what they create.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from pathlib import Path
from typing import Final

from keepclose.lab.network.links import NODE_SETTINGS, run_batch
from keepclose.system.namespaces import (
    CLONE_NEWNET,
    CLONE_NEWUSER,
    NetworkError,
    create_network_namespace,
    search_path,
    unshare,
)

# CAP_NET_ADMIN and CAP_SYS_ADMIN.
_CAPABILITIES: Final = 1 << 12 | 1 << 21
_TOOLS: Final = (("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux"))
_NAT_TABLE: Final = """
table {family} keepclose-trial {{
  chain nat {{
    type nat hook prerouting priority -100
    policy accept
  }}
}}
"""


def become_root() -> None:
    """Get the capabilities to create namespaces, if need be as root of a user namespace.

    Does nothing if the process has them. Call it before there are threads. Raises NetworkError when
    the kernel refuses; the process is then unchanged.
    """
    if _has_capabilities():
        return
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise NetworkError("rights over a user namespace must be taken before there are threads")
    reason = _try_in_child()
    if reason:
        raise NetworkError(reason)
    _enter_user_namespace()


def why_no_packets() -> str:
    """Return in one line why this machine cannot have the lab's network, or "" if it can.

    Call it after become_root.
    """
    missing = missing_tool(search_path())
    if missing:
        return missing
    try:
        _try_network()
    except NetworkError as error:
        return str(error)
    return ""


def missing_tool(path: str) -> str:
    """Return which tool is not on a search path, and the package that has it, or ""."""
    for tool, package in _TOOLS:
        if shutil.which(tool, path=path) is None:
            return f"{tool} is not installed (package {package})"
    return ""


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _has_capabilities() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & _CAPABILITIES == _CAPABILITIES
    return False


def _try_in_child() -> str:
    """Return the kernel's refusal of a user namespace with networks, or ""."""
    # NB: a process that has entered a user namespace can never leave it. Some systems let every
    # process enter one and grant no capabilities there.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _enter_user_namespace()
            _unshare(CLONE_NEWNET, "network namespaces")
        except NetworkError as error:
            os.write(writer, str(error).encode())
        except BaseException as error:  # noqa: BLE001 - the child must not run on
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        refusal = pipe.read().decode()
    os.waitpid(child, 0)
    return refusal


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWUSER, "user namespaces")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise NetworkError(
            f"not root, and the kernel gives no rights in a user namespace: {error.strerror}"
        ) from None


def _unshare(flag: int, what: str) -> None:
    try:
        unshare(flag)
    except OSError as error:
        raise NetworkError(f"not root, and the kernel refuses {what}: {error.strerror}") from None


def _try_network() -> None:
    with contextlib.ExitStack() as stack:
        near = create_network_namespace("trial", NODE_SETTINGS)
        stack.callback(near.close)
        far = create_network_namespace("trial")
        stack.callback(far.close)
        trials = {
            "veth links": [f"link add trial type veth peer name eth0 netns {far.path}"],
            "bridges": ["link add br0 type bridge", "link set trial master br0 up"],
        }
        for what, lines in trials.items():
            try:
                run_batch(near, lines)
            except NetworkError as error:
                raise NetworkError(f"the kernel makes no {what}: {error}") from None
        for family in ("ip", "ip6"):
            try:
                near.run("nft", "-f", "-", text=_NAT_TABLE.format(family=family))
            except NetworkError as error:
                raise NetworkError(f"the kernel takes no rules of {family}: {error}") from None
