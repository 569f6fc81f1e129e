"""Requests for trouble, as they come from commands: read, done, and answered in plain values.

What the user should read is raised as LabRefusal; an API server that does not answer and links that
cannot be cut become one too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import msgspec

from keepclose.kube.errors import Invalid, KubeError
from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.injector import Troubles
from keepclose.model.json_values import JsonObject
from keepclose.system.namespaces import NetworkError

_Tell = Callable[[JsonObject], None]
TroubleHandler = Callable[[Troubles, JsonObject, _Tell], Awaitable[JsonObject]]
_T = TypeVar("_T")


class _Asked(msgspec.Struct, frozen=True):
    """The parameters of all requests; each reads those that it knows."""

    name: str = ""
    zone: str = ""
    notice: bool = False
    force: bool = False
    timeout: Annotated[float, msgspec.Meta(ge=0)] = 60.0


async def handle_fail(troubles: Troubles, params: JsonObject, _tell: _Tell) -> JsonObject:
    """Let the node or zone `name` die."""
    return _plain(await _do(troubles.fail(_read_named(params).name)))


async def handle_partition(troubles: Troubles, params: JsonObject, _tell: _Tell) -> JsonObject:
    """Cut the node `name` off; with `notice` the cluster knows at once."""
    asked = _read_named(params)
    return _plain(await _do(troubles.partition(asked.name, notice=asked.notice)))


async def handle_cordon(troubles: Troubles, params: JsonObject, _tell: _Tell) -> JsonObject:
    """Let no more pods come to the node `name`."""
    name = _read_named(params).name
    return {"node": name, "changed": await _do(troubles.cordon(name))}


async def handle_uncordon(troubles: Troubles, params: JsonObject, _tell: _Tell) -> JsonObject:
    """Let pods come to the node `name` again."""
    name = _read_named(params).name
    return {"node": name, "changed": await _do(troubles.uncordon(name))}


async def handle_drain(troubles: Troubles, params: JsonObject, tell: _Tell) -> JsonObject:
    """Move the pods of the node `name` away, telling of each; with `force` all, in `timeout` s."""
    asked = _read_named(params)
    drained = troubles.drain(
        asked.name,
        force=asked.force,
        timeout_s=asked.timeout,
        on_gone=lambda pod: tell({"gone": pod}),
    )
    return _plain(await _do(drained))


async def handle_relabel(troubles: Troubles, params: JsonObject, _tell: _Tell) -> JsonObject:
    """Put the node `name` into the `zone`; "" or "-" for none."""
    asked = _read_named(params)
    zone = "" if asked.zone == "-" else asked.zone
    before, changed = await _do(troubles.relabel(asked.name, zone))
    return {"node": asked.name, "before": before, "zone": zone, "changed": changed}


async def handle_heal(troubles: Troubles, params: JsonObject, tell: _Tell) -> JsonObject:
    """Undo all trouble of the node or zone `name`; "" for all; tell who is waited for."""
    name = _read(params).name
    return _plain(await _do(troubles.heal(name, on_wait=lambda nodes: tell({"waiting": nodes}))))


async def handle_status(troubles: Troubles, _params: JsonObject, _tell: _Tell) -> JsonObject:
    """Tell how all nodes are."""
    states = await _do(troubles.states())
    rows: list[JsonObject] = [_plain(one) | {"words": one.words} for one in states]
    return {"nodes": rows}


HANDLERS: Final[dict[str, TroubleHandler]] = {
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
        raise LabRefusal(f"the API server did not do it: {error}", code=4) from error
    except NetworkError as error:
        raise LabRefusal(str(error), code=1) from error


def _read(params: JsonObject) -> _Asked:
    try:
        return msgspec.convert(params, _Asked)
    except msgspec.ValidationError as error:
        raise LabRefusal(f"this cannot be asked: {error}") from None


def _read_named(params: JsonObject) -> _Asked:
    asked = _read(params)
    if not asked.name:
        raise LabRefusal("say which node is meant; keepclose lab status lists them")
    return asked


def _plain(value: msgspec.Struct) -> JsonObject:
    plain: JsonObject = msgspec.to_builtins(value)
    return plain
