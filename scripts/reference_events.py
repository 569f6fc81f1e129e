"""What the reference says about Events: who writes which, on what object, and when.

Types and reasons are those of the code: of the functions that make an event, or of the calls that
write one. A reason that no text here explains is an error, and so is a text without its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keepclose
from keepclose.model.endpointslice.types import EndpointAddress, Endpoints, EndpointSubset
from keepclose.proxy.health import FAILED_REASON
from keepclose.proxy.settings import PROXY_COMPONENT as PROXY
from keepclose.reconcile.settings import CONTROLLER_COMPONENT as CONTROLLER
from keepclose.reconcile.settings import MIRRORING_COMPONENT
from keepclose.routing.auto import (
    Infeasible,
    allocate_proportionally,
    disabled_event,
    enabled_event,
    zone_bounds,
)
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import WARNING_CODES
from keepclose.slices.mirroring import plan_mirroring
from keepclose.webhook.process import WEBHOOK_COMPONENT as WEBHOOK

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import builders

_SOURCES = Path(keepclose.__file__).parent
_FOLDERS = ("controller", "proxy", "webhook")
_WARNERS = ("publish_failure", "publish_warning")


class _Event(NamedTuple):
    component: str
    type: str
    reason: str


_WHEN: dict[tuple[str, str], tuple[str, str]] = {
    (CONTROLLER, "TopologyAwareHintsEnabled"): (
        "Service",
        "The topology mode `Auto` has found an allocation, and the hints are new.",
    ),
    (CONTROLLER, "TopologyAwareHintsDisabled"): (
        "Service",
        "The mode `Auto` finds no allocation, or it has ended; the message says why.",
    ),
    (CONTROLLER, "FailedToUpdateEndpointSlices"): (
        "Service",
        "The controller could not write slices or conditions; it retries with backoff.",
    ),
    (CONTROLLER, "HeuristicFailed"): (
        "Service",
        "The custom heuristic that governs failed; endpoints have no hints until it succeeds.",
    ),
    (CONTROLLER, "StartingThresholdInvalid"): (
        "Service",
        "The starting threshold of subsetting in an annotation is invalid; the default is used.",
    ),
    (CONTROLLER, "PaddingInvalid"): ("Service", "Likewise the padding of subsetting."),
    (CONTROLLER, "OverloadThresholdInvalid"): (
        "Service",
        "Likewise the overload threshold of subsetting.",
    ),
    (CONTROLLER, "MaxOverloadInvalid"): ("Service", "Likewise the overload bound of Balanced."),
    (CONTROLLER, "ObjectiveInvalid"): ("Service", "Likewise the objective of Balanced."),
    (CONTROLLER, "MinInZoneInvalid"): ("Service", "Likewise the least in-zone share of Balanced."),
    (CONTROLLER, "WeightsInvalid"): ("Service", "Likewise whether weights are written."),
    (CONTROLLER, "DemandInvalid"): ("Service", "Likewise whether measured demand counts."),
    (CONTROLLER, "EndpointSlicesContended"): (
        "Service",
        "Another controller keeps undoing the writes; the message names it, and the fix.",
    ),
    (MIRRORING_COMPONENT, "FailedToUpdateEndpointSlices"): (
        "Endpoints",
        "The controller could not write mirrored slices; it retries with backoff.",
    ),
    (MIRRORING_COMPONENT, "InvalidIPAddress"): (
        "Endpoints",
        "Invalid addresses are skipped.",
    ),
    (MIRRORING_COMPONENT, "TooManyAddressesToMirror"): (
        "Endpoints",
        "A subset has more addresses than are mirrored.",
    ),
    (WEBHOOK, "HintsNotSet"): (
        "Service",
        "The Service requests something that hints alone cannot provide, or that is unknown.",
    ),
    (WEBHOOK, "FailedToSetHints"): (
        "Service",
        "The webhook could not write hints on a slice; it retries with backoff.",
    ),
    (WEBHOOK, "HeuristicFailed"): (
        "Service",
        "The custom heuristic that governs failed, as above.",
    ),
    (PROXY, FAILED_REASON): (
        "Service",
        "The proxy could not open the health-check node port; it retries with every sync.",
    ),
}


def describe_events() -> str:
    """Return a table of all events, and the messages of the mode Auto."""
    found = list(dict.fromkeys(_events()))
    keys = {(one.component, one.reason) for one in found}
    if keys != set(_WHEN):
        raise ValueError(f"events and their texts differ: {sorted(keys ^ set(_WHEN))}")
    order = {key: place for place, key in enumerate(_WHEN)}
    rows = []
    for one in sorted(found, key=lambda event: order[event.component, event.reason]):
        kind, when = _WHEN[one.component, one.reason]
        rows.append(f"| `{one.component}` | {kind} | {one.type} | `{one.reason}` | {when} |")
    lines = "\n".join(rows)
    messages = "\n".join(f"- {message}" for message in _auto_messages())
    return (
        "A state is reported once, when it changes. A failed write is reported each time: repeats"
        " raise the count of the Event, and too many Events about one object are dropped.\n\n"
        f"| source | object | type | reason | when |\n|---|---|---|---|---|\n{lines}\n\n"
        f"## Why the mode Auto finds no allocation\n\n"
        "The message begins with one of these; numbers are examples.\n\n"
        f"{messages}\n"
    )


def _events() -> Iterator[_Event]:
    for event in (enabled_event("IPv4"), disabled_event("IPv4")):
        yield _Event(CONTROLLER, event.type, event.reason)
    for code in sorted(WARNING_CODES):
        yield _Event(CONTROLLER, "Warning", code.value)
    yield from (_Event(_component(path), *pair) for path, pair in _calls())
    addresses = tuple(EndpointAddress(ip=ip) for ip in ("", "10.0.0.1", "10.0.0.2"))
    mirrored = plan_mirroring(
        Endpoints(subsets=(EndpointSubset(addresses=addresses),)),
        builders.service(selector=None),
        existing=(),
        max_per_subset=1,
    )
    for mirror_event in mirrored.events:
        yield _Event(MIRRORING_COMPONENT, "Warning", mirror_event.reason)


def _calls() -> Iterator[tuple[Path, tuple[str, str]]]:
    """Return the type and reason of each call in the code that names its reason."""
    known = {"FAILED_REASON": FAILED_REASON}
    for folder in _FOLDERS:
        for path in sorted((_SOURCES / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                words = [_text(argument, known) for argument in call.args]
                if call.func.attr == "record" and len(words) == 4 and words[1] and words[2]:
                    yield path, (words[1], words[2])
                elif call.func.attr in _WARNERS and len(words) == 3 and words[1]:
                    yield path, ("Warning", words[1])


def _text(argument: ast.expr, known: dict[str, str]) -> str:
    """Return the text of a literal or of a constant that is known; "" for anything else."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return known.get(argument.id, "") if isinstance(argument, ast.Name) else ""


def _component(path: Path) -> str:
    """Return the component that writes the events of a module."""
    folder = path.relative_to(_SOURCES).parts[0]
    if folder == "proxy":
        return PROXY
    if folder == "webhook":
        return WEBHOOK
    return MIRRORING_COMPONENT if path.stem == "mirroring" else CONTROLLER


def _auto_messages() -> Iterator[str]:
    equal = dict.fromkeys(("zone-a", "zone-b", "zone-c"), 1 / 3)
    for ratios, ready in ((None, 3), ({"zone-a": 1.0}, 3), (equal, 2), (equal, 4)):
        bounds = zone_bounds(ratios, ready)
        if isinstance(bounds, Infeasible):
            yield bounds.message
    homeless = SliceSet(create=(builders.endpoint_slice(*(builders.endpoint(),) * 3),))
    result = allocate_proportionally(homeless, ratios=equal, address_type="", populated=False)
    for event in result.events:
        yield event.text
