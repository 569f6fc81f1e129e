"""What a running cluster can be asked to do, by name."""

from __future__ import annotations

from keepclose.cluster.components import ROLES, Components
from keepclose.lab.cluster.control import Handler, Tell
from keepclose.lab.cluster.programs import ProgramError
from keepclose.lab.faults.handlers import HANDLERS, TroubleHandler
from keepclose.lab.faults.injector import Troubles
from keepclose.lab.places import handle_places
from keepclose.lab.refusals import LabRefusal
from keepclose.lab.slo.measurement import handle_slo
from keepclose.lab.traffic.run import handle_traffic
from keepclose.lab.view import LabView
from keepclose.model.gates import (
    GateError,
    VersionError,
    gates_at,
    parse_emulated_version,
    parse_gates,
)
from keepclose.model.json_values import JsonObject
from keepclose.routing.node_level import NodeLevelMode


def make_handlers(lab: LabView, components: Components) -> dict[str, Handler]:
    """Return the handlers for a lab and its programs."""
    troubles = Troubles(lab)

    async def traffic(params: JsonObject, tell: Tell) -> JsonObject:
        return await handle_traffic(lab._replace(gates=components.gates["proxy"]), params, tell)

    async def gates(params: JsonObject, _tell: Tell) -> JsonObject:
        return await _change_gates(components, params)

    async def places(params: JsonObject, tell: Tell) -> JsonObject:
        return await handle_places(lab, params, tell)

    async def slo(params: JsonObject, tell: Tell) -> JsonObject:
        return await handle_slo(lab._replace(gates=components.gates["proxy"]), params, tell)

    def bind(handle: TroubleHandler) -> Handler:
        return lambda params, tell: handle(troubles, params, tell)

    handlers: dict[str, Handler] = {
        "traffic": traffic,
        "gates": gates,
        "slo": slo,
        "places": places,
    }
    return handlers | {name: bind(handle) for name, handle in HANDLERS.items()}


async def _change_gates(components: Components, params: JsonObject) -> JsonObject:
    """Start programs anew with other gates, and return which gates all have now."""
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
        wanted = {
            role: parse_gates(text, defaults=emulated or components.gates[role]) for role in roles
        }
        if text or mode or version:
            started = await components.change(wanted, node_level)
    except VersionError as error:
        raise LabRefusal(f"--emulated-version: {error}") from error
    except GateError as error:
        raise LabRefusal(f"feature gates: {error}") from error
    except ValueError:
        known = ", ".join(one.value for one in NodeLevelMode)
        raise LabRefusal(f"--node-level-topology-mode: {mode!r} must be one of {known}") from None
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
