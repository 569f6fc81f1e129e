"""The requests that a running cluster answers, by name; and the namespaces that a user may enter.

Commands can be run in the namespaces of nodes, their clients, pods and the outside host. The
namespaces have no names in the file system: they are open files of the lab's process, and a process
that may look into it can enter them. Pages of programs in these namespaces are read from here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from keepclose.lab.access import LabRefusal, LabView
from keepclose.lab.cluster.control import ControlHandler, ReportProgress
from keepclose.lab.cluster.node_pages import FLOW_PAGES, read_page
from keepclose.lab.cluster.process_keeper import ROLES, Components
from keepclose.lab.cluster.programs import ProgramError
from keepclose.lab.faults.handlers import HANDLERS, FaultHandler
from keepclose.lab.faults.injector import FaultInjector
from keepclose.lab.slo.measurement import handle_slo
from keepclose.lab.traffic.run import handle_traffic
from keepclose.model.gates import (
    GateError,
    VersionError,
    gates_at,
    parse_emulated_version,
    parse_gates,
)
from keepclose.model.json_values import JsonObject
from keepclose.routing.node_level import NodeLevelMode
from keepclose.system.namespaces import NetworkError

_OUTSIDE: Final = "outside"
_SHOWN: Final = 12


async def handle_places(
    lab: LabView, _params: dict[str, Any], _report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Return the process that holds the namespaces, and the file descriptor of each by name.

    Pods are named namespace/name; `client/NODE` is the client of a node.
    """
    underlay = lab.underlay
    if underlay is None:
        raise LabRefusal(f"without packets there is nothing to enter: {lab.no_packets}", code=5)
    fds = {_OUTSIDE: underlay.outside.namespace.fd}
    for name, node in underlay.nodes.items():
        fds[name] = node.namespace.fd
        fds[f"client/{name}"] = node.client.namespace.fd
    for key in lab.kubelets.caches.pods:
        place = lab.kubelets.place_of(key)
        if place is not None and place.namespace is not None:
            fds[str(key)] = place.namespace.fd
    return {"pid": os.getpid(), "user_namespace": is_mapped(_uid_map()), "fds": fds}


def is_mapped(uid_map: str) -> bool:
    """Return whether a process is root of its own user namespace, with a single mapped user."""
    lines = [line.split() for line in uid_map.splitlines()]
    return len(lines) == 1 and lines[0][-1:] == ["1"]


def find_place(fds: dict[str, int], name: str) -> int:
    """Return the file descriptor of a network namespace by the name of its node or pod.

    A pod may be named without its Kubernetes namespace, or as kubectl names it: pod/NAME. Raises
    LabRefusal with close names.
    """
    if name in fds:
        return fds[name]
    pods = [full for full in fds if "/" in full and not full.startswith("client/")]
    short = name.removeprefix("pod/").removeprefix("pods/")
    named = [full for full in pods if full.partition("/")[2] == short]
    if len(named) == 1:
        return fds[named[0]]
    if named:
        raise LabRefusal(f"several pods are called {short!r}: {', '.join(sorted(named))}", code=2)
    full_names = {full.partition("/")[2]: full for full in pods} | {full: full for full in fds}
    close = get_close_matches(short, full_names, n=1)
    there = sorted(full for full in fds if "/" not in full and full != _OUTSIDE)
    shown = ", ".join(there[:_SHOWN]) + (" ..." if len(there) > _SHOWN else "")
    hint = f"; did you mean {full_names[close[0]]}?" if close else ""
    raise LabRefusal(
        f"no node or pod is called {name!r}; name a node ({shown}), client/NODE for its clients, "
        f"a pod, or outside{hint}",
        code=3,
    )


def make_handlers(lab: LabView, components: Components) -> dict[str, ControlHandler]:
    """Return the handlers for a lab and its programs."""
    injector = FaultInjector(lab)

    async def traffic(params: JsonObject, report: ReportProgress) -> JsonObject:
        return await handle_traffic(lab._replace(gates=components.gates["proxy"]), params, report)

    async def gates(params: JsonObject, _report: ReportProgress) -> JsonObject:
        return await _change_gates(components, params)

    async def places(params: JsonObject, report: ReportProgress) -> JsonObject:
        return await handle_places(lab, params, report)

    async def slo(params: JsonObject, report: ReportProgress) -> JsonObject:
        return await handle_slo(lab._replace(gates=components.gates["proxy"]), params, report)

    def bind(handle: FaultHandler) -> ControlHandler:
        return lambda params, report: handle(injector, params, report)

    async def flows(_params: JsonObject, _report: ReportProgress) -> JsonObject:
        return await _read_flows(lab, components)

    handlers: dict[str, ControlHandler] = {
        "flows": flows,
        "traffic": traffic,
        "gates": gates,
        "slo": slo,
        "places": places,
    }
    return handlers | {name: bind(handle) for name, handle in HANDLERS.items()}


async def _read_flows(lab: LabView, components: Components) -> JsonObject:
    """Return the flows that the agent of each node has counted, or why there are none."""
    if lab.underlay is None:
        raise LabRefusal(f"without packets there are no flows: {lab.no_packets}", code=5)
    if not components.counts_flows:
        raise LabRefusal("this cluster counts no flows; start it with keepclose up --flows", code=3)
    nodes = dict(lab.underlay.nodes)
    pages = await asyncio.gather(
        *(read_page(node.namespace, FLOW_PAGES, "/flows?walk=true") for node in nodes.values()),
        return_exceptions=True,
    )
    answer: JsonObject = {"flows": {}, "errors": {}}
    for name, page in zip(nodes, pages, strict=True):
        if isinstance(page, str):
            answer["flows"][name] = page
        elif isinstance(page, (OSError, NetworkError)):
            answer["errors"][name] = str(page) or type(page).__name__
        else:
            raise page
    return answer


def _uid_map() -> str:
    return Path("/proc/self/uid_map").read_text()


async def _change_gates(components: Components, params: JsonObject) -> JsonObject:
    """Restart programs with other gates, and return the gates of all."""
    roles = tuple(params.get("only") or ROLES)
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise LabRefusal(f"--only: {unknown[0]!r} must be one of {', '.join(ROLES)}")
    text = str(params.get("gates", ""))
    version = str(params.get("emulated_version") or "")
    mode = str(params.get("node_level") or "")
    if mode and not text and not version:
        # Only the controller has this mode.
        roles = ("controller",)
    started: list[str] = []
    try:
        node_level = NodeLevelMode(mode) if mode else None
        emulated = gates_at(parse_emulated_version(version)) if version else None
        desired = {
            role: parse_gates(text, defaults=emulated or components.gates[role]) for role in roles
        }
        if text or mode or version:
            started = await components.change(desired, node_level)
    except VersionError as error:
        raise LabRefusal(f"--emulated-version: {error}") from error
    except GateError as error:
        raise LabRefusal(f"feature gates: {error}") from error
    except ValueError:
        modes = ", ".join(mode_value.value for mode_value in NodeLevelMode)
        raise LabRefusal(f"--node-level-topology-mode: {mode!r} must be one of {modes}") from None
    except ProgramError as error:
        raise LabRefusal(str(error), code=1) from error
    return {
        "started": started,
        "gates": {role: sorted(gates.enabled) for role, gates in components.gates.items()},
        "emulated": {
            role: gates.emulated_minor
            for role, gates in components.gates.items()
            if gates.emulated_minor is not None
        },
    }
