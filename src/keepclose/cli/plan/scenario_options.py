"""The options of `keepclose plan` that ask "what if": another mechanism, more pods, fewer nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from keepclose.cli.exit import ExitCode, fail

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory
    from keepclose.model.meta import NamespacedName
    from keepclose.slices.settings import PlannerSettings

SetMechanisms = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="[NS/]NAME=MECHANISM",
        help="What if a Service had this mechanism: none, PreferSameZone, PreferSameNode, Auto, "
        "Balanced or subsetting. May be repeated.",
    ),
]
SetReplicas = Annotated[
    list[str],
    typer.Option(
        "--replicas",
        metavar="[NS/]NAME=N",
        help="What if a Service had so many pods, spread over zones. May be repeated.",
    ),
]
DrainedNodes = Annotated[
    list[str],
    typer.Option(
        "--drain",
        metavar="NODE",
        help="What if a node were drained and its pods ran elsewhere. May be repeated.",
    ),
]
LostZones = Annotated[
    list[str],
    typer.Option(
        "--lose",
        metavar="ZONE",
        help="What if a zone failed, before its pods run elsewhere. May be repeated.",
    ),
]
AddedZones = Annotated[
    list[str],
    typer.Option(
        "--add-zone",
        metavar="NAME[=NODES]",
        help="What if there were another zone, with as many nodes as others have. May be repeated.",
    ),
]


class ScenarioRequest(NamedTuple):
    """All questions of a call, in the order in which they are applied."""

    drained: list[str]
    lost: list[str]
    added: list[str]
    replicas: list[str]
    mechanisms: list[str]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked."""
        return not any(self)


def apply_scenario(
    request: ScenarioRequest,
    inventory: Inventory,
    settings: PlannerSettings,
    *,
    namespace: str,
) -> tuple[Inventory, PlannerSettings, list[str]]:
    """Return the cluster and settings after all changes, and the changes in words.

    A bare name of a Service is in `namespace`. Nodes change first, then pods, then mechanisms. What
    does not fit the cluster ends the command.
    """
    from keepclose.advise.planning.scenarios import (
        ScenarioError,
        ScenarioNameError,
        add_zone,
        drain_node,
        lose_zone,
        parse_mechanism,
        scale_service,
        set_mechanism,
    )

    words: list[str] = []
    option = ""
    try:
        for name in request.drained:
            option = f"--drain {name}"
            inventory = drain_node(inventory, name)
            words.append(f"node {name} is drained")
        for zone in request.lost:
            option = f"--lose {zone}"
            inventory = lose_zone(inventory, zone)
            words.append(f"zone {zone} fails")
        for text in request.added:
            option = f"--add-zone {text}"
            zone, _, count = text.partition("=")
            before = len(inventory.nodes)
            inventory = add_zone(inventory, zone, _read_number(option, count) if count else None)
            added = len(inventory.nodes) - before
            words.append(f"zone {zone} with {added:,} node{'' if added == 1 else 's'} is added")
        for text in request.replicas:
            option = f"--replicas {text}"
            key, value = _read_pair(option, text, namespace)
            inventory = scale_service(inventory, key, _read_number(option, value))
            words.append(f"{key} has {int(value):,} pods, spread over zones")
        for text in request.mechanisms:
            option = f"--set {text}"
            key, value = _read_pair(option, text, namespace)
            mechanism = parse_mechanism(value)
            before_gates = settings.gates.enabled
            inventory, settings = set_mechanism(inventory, key, mechanism, settings)
            gates = sorted(f"{gate}=true" for gate in settings.gates.enabled - before_gates)
            needs = f" with --feature-gates {','.join(gates)}" if gates else ""
            words.append(f"{key} has {mechanism}{needs}")
    except ScenarioError as error:
        is_missing = isinstance(error, ScenarioNameError)
        code = ExitCode.NOTHING if is_missing else ExitCode.BAD_INPUT
        fail(f"{option}: {error}", error.fix, code=code)
    return inventory, settings, words


def _read_pair(option: str, text: str, namespace: str) -> tuple[NamespacedName, str]:
    from keepclose.cli.inputs.service_choice import service_key

    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        fail(f"{option}: it must be [NAMESPACE/]NAME=VALUE")
    key = service_key(name, "", default=namespace)
    assert key is not None  # noqa: S101 - a name was given
    return key, value


def _read_number(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        fail(f"{option}: {text!r} is no number")
    return int(text)
