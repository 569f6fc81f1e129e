"""The answer of `keepclose resolve` as plain data, for programs: JSON or YAML."""

from __future__ import annotations

from typing import Any

import msgspec

from keepclose.advise.resolution import ResolvedPort, ResolvedService
from keepclose.routing.reasons import Reason
from keepclose.routing.selection import Outcome


def resolved_document(services: tuple[ResolvedService, ...]) -> dict[str, Any]:
    """Return the whole answer; endpoints are sorted, everything else keeps its order."""
    return {"services": [_service(one) for one in services]}


def _service(one: ResolvedService) -> dict[str, Any]:
    strategy = one.strategy
    return {
        "namespace": one.service.metadata.namespace,
        "name": one.service.metadata.name,
        "strategy": {
            "name": strategy.label,
            "source": strategy.source,
            "value": strategy.value,
            "reasons": [_reason(reason) for reason in (*strategy.reasons, *one.reasons)],
        },
        "slices": [msgspec.to_builtins(piece) for piece in one.slices],
        "events": [msgspec.to_builtins(event) for event in one.events],
        "conditions": [msgspec.to_builtins(condition) for condition in one.conditions],
        "errors": list(one.errors),
        "nodes": {
            node: {port.title: _port(port) for port in ports} for node, ports in one.nodes.items()
        },
    }


def _port(resolved: ResolvedPort) -> dict[str, Any]:
    port, selection = resolved.port, resolved.selection
    answer: dict[str, Any] = {
        "mode": selection.mode.value,
        "reasons": [_reason(reason) for reason in selection.reasons],
        "internal": _outcome(selection.internal),
    }
    if port.has_node_port:
        answer["nodePort"] = _outcome(selection.external)
    if port.load_balancer_ips:
        answer["loadBalancer"] = _outcome(selection.external)
    if port.external_ips:
        answer["externalIP"] = _outcome(selection.external)
    return answer


def _outcome(outcome: Outcome) -> dict[str, Any]:
    if outcome.verdict:
        return {"verdict": outcome.verdict.value}
    answer: dict[str, Any] = {"endpoints": sorted(one.shown for one in outcome.endpoints)}
    if any(one.weight != 1 for one in outcome.endpoints):
        answer["weights"] = {one.shown: one.weight for one in outcome.endpoints}
    return answer


def _reason(reason: Reason) -> dict[str, str]:
    return {
        "code": reason.code.value,
        "message": reason.message,
        "subject": reason.subject,
        "fix": reason.fix,
    }
