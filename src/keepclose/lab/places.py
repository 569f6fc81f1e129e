"""Where commands can be run inside a lab: nodes, their clients, pods and the outside host.

Namespaces have no names in the file system: they are open files of the process that runs the lab,
and whoever may look into that process can enter them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from keepclose.lab.refusals import LabRefusal

if TYPE_CHECKING:
    from keepclose.lab.view import LabView

OUTSIDE: Final = "outside"
_SHOWN: Final = 12


async def handle_places(
    lab: LabView, _params: dict[str, Any], _tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Return the process that holds the namespaces, and its file of each by name.

    Pods are named namespace/name; `client/NODE` is where the clients of a node are.
    """
    underlay = lab.underlay
    if underlay is None:
        raise LabRefusal(f"without packets there is nothing to enter: {lab.no_packets}", code=5)
    fds = {OUTSIDE: underlay.outside.namespace.fd}
    for name, node in underlay.nodes.items():
        fds[name] = node.namespace.fd
        fds[f"client/{name}"] = node.client.namespace.fd
    for key in lab.kubelets.pods:
        place = lab.kubelets.place_of(key)
        if place is not None and place.namespace is not None:
            fds[str(key)] = place.namespace.fd
    return {"pid": os.getpid(), "user_namespace": is_mapped(_uid_map()), "fds": fds}


def is_mapped(uid_map: str) -> bool:
    """Return whether a process made itself root of a user namespace: one user, and no other."""
    lines = [line.split() for line in uid_map.splitlines()]
    return len(lines) == 1 and lines[0][-1:] == ["1"]


def find_place(fds: dict[str, int], name: str) -> int:
    """Return the file of a place by its name, a pod's with or without its namespace.

    Raises LabRefusal with the names that are close.
    """
    if name in fds:
        return fds[name]
    pods = [full for full in fds if "/" in full and not full.startswith("client/")]
    named = [full for full in pods if full.partition("/")[2] == name]
    if len(named) == 1:
        return fds[named[0]]
    if named:
        raise LabRefusal(f"several pods are called {name!r}: {', '.join(sorted(named))}", code=2)
    known = {full.partition("/")[2]: full for full in pods} | {full: full for full in fds}
    close = get_close_matches(name, known, n=1)
    there = sorted(full for full in fds if "/" not in full)
    shown = ", ".join(there[:_SHOWN]) + (" ..." if len(there) > _SHOWN else "")
    hint = f"; did you mean {known[close[0]]}?" if close else ""
    raise LabRefusal(
        f"no place is called {name!r}; there are {shown}, client/NODE and pods{hint}", code=3
    )


def enter_command(command: list[str], *, pid: int, fd: int, user_namespace: bool) -> list[str]:
    """Return the command line that runs a command in the namespace of another process."""
    into = ["nsenter"]
    if user_namespace:
        # The user's own number stands for root in there.
        into += [f"--user=/proc/{pid}/ns/user", "--preserve-credentials"]
    return [*into, f"--net=/proc/{pid}/fd/{fd}", "--", *command]


def _uid_map() -> str:
    return Path("/proc/self/uid_map").read_text()
