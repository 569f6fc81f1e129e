"""The requests of `keepclose lab` for faults: decoded, carried out, and answered in plain values.

Whatever the user should read is raised as LabRefusal, also if the API server does not answer or a
link cannot be cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import msgspec

from keepclose.kube.errors import Invalid, KubeError
from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.injector import FaultInjector
from keepclose.model.json_values import JsonObject
from keepclose.system.namespaces import NetworkError

_ReportProgress = Callable[[JsonObject], None]
FaultHandler = Callable[[FaultInjector, JsonObject, _ReportProgress], Awaitable[JsonObject]]
_T = TypeVar("_T")


class _Request(msgspec.Struct, frozen=True):
    """The parameters of all requests; each handler reads its own."""

    name: str = ""
    zone: str = ""
    notice: bool = False
    force: bool = False
    timeout: Annotated[float, msgspec.Meta(ge=0)] = 60.0


async def handle_fail(
    injector: FaultInjector, params: JsonObject, _report: _ReportProgress
) -> JsonObject:
    """Fail the node, or all nodes of the zone, `name`."""
    return _plain(await _do(injector.fail(_read_named(params).name)))


async def handle_partition(
    injector: FaultInjector, params: JsonObject, _report: _ReportProgress
) -> JsonObject:
    """Partition the node `name`; with `notice` its Node is marked unreachable at once."""
    request = _read_named(params)
    return _plain(await _do(injector.partition(request.name, notice=request.notice)))


async def handle_cordon(
    injector: FaultInjector, params: JsonObject, _report: _ReportProgress
) -> JsonObject:
    """Cordon the node `name`."""
    name = _read_named(params).name
    return {"node": name, "changed": await _do(injector.cordon(name))}


async def handle_uncordon(
    injector: FaultInjector, params: JsonObject, _report: _ReportProgress
) -> JsonObject:
    """Uncordon the node `name`."""
    name = _read_named(params).name
    return {"node": name, "changed": await _do(injector.uncordon(name))}


async def handle_drain(
    injector: FaultInjector, params: JsonObject, report: _ReportProgress
) -> JsonObject:
    """Drain the node `name` within `timeout` s, reporting each pod; `force` as in kubectl drain."""
    request = _read_named(params)
    drained = injector.drain(
        request.name,
        force=request.force,
        timeout_s=request.timeout,
        on_gone=lambda pod: report({"gone": pod}),
    )
    return _plain(await _do(drained))


async def handle_relabel(
    injector: FaultInjector, params: JsonObject, _report: _ReportProgress
) -> JsonObject:
    """Move the node `name` to the `zone`; "" or "-" for none."""
    request = _read_named(params)
    zone = "" if request.zone == "-" else request.zone
    before, changed = await _do(injector.relabel(request.name, zone))
    return {"node": request.name, "before": before, "zone": zone, "changed": changed}


async def handle_heal(
    injector: FaultInjector, params: JsonObject, report: _ReportProgress
) -> JsonObject:
    """Undo all faults of the node or zone `name`, "" for all; report the nodes it waits for."""
    name = _read(params).name
    return _plain(await _do(injector.heal(name, on_wait=lambda nodes: report({"waiting": nodes}))))


async def handle_status(
    injector: FaultInjector, _params: JsonObject, _report: _ReportProgress
) -> JsonObject:
    """Return the state of all nodes."""
    states = await _do(injector.states())
    rows: list[JsonObject] = [_plain(state) | {"words": state.words} for state in states]
    return {"nodes": rows}


HANDLERS: Final[dict[str, FaultHandler]] = {
    "fail": handle_fail,
    "partition": handle_partition,
    "cordon": handle_cordon,
    "uncordon": handle_uncordon,
    "drain": handle_drain,
    "relabel": handle_relabel,
    "heal": handle_heal,
    "status": handle_status,
}


async def _do(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except Invalid as error:
        raise LabRefusal(str(error), code=2) from error
    except KubeError as error:
        raise LabRefusal(f"the request to the API server failed: {error}", code=4) from error
    except NetworkError as error:
        raise LabRefusal(str(error), code=1) from error


def _read(params: JsonObject) -> _Request:
    try:
        return msgspec.convert(params, _Request)
    except msgspec.ValidationError as error:
        raise LabRefusal(f"invalid request: {error}") from None


def _read_named(params: JsonObject) -> _Request:
    request = _read(params)
    if not request.name:
        raise LabRefusal("name a node; keepclose lab status lists them")
    return request


def _plain(value: msgspec.Struct) -> JsonObject:
    plain: JsonObject = msgspec.to_builtins(value)
    return plain
