"""`keepclose lab gates`: which feature gates a running cluster has, and others for it."""

from __future__ import annotations

from typing import Annotated

import typer

from keepclose.cli.choices import Role, TopologyMode
from keepclose.cli.labcalls import DEFAULT_DIR, DataDir, ask
from keepclose.cli.render.output import say


def gates(
    *,
    change: Annotated[
        str,
        typer.Argument(metavar="A=true,B=false", help="What to change; nothing shows all gates."),
    ] = "",
    emulated_version: Annotated[
        str,
        typer.Option(
            metavar="1.NN",
            help="Take the gates and fields of this release of Kubernetes, then what to change.",
        ),
    ] = "",
    only: Annotated[
        list[Role] | None,
        typer.Option(help="Which programs; may be repeated. Default: all."),
    ] = None,
    node_level_topology_mode: Annotated[
        TopologyMode | None,
        typer.Option(help="Whether the controller finds Services with one endpoint a node."),
    ] = None,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show feature gates, or restart programs with others.

    They are those of the running cluster. Objects stay as they are, as with an upgrade or a
    rollback. Exit codes: 0 done, 1 a program did not start, 2 bad input, 4 no cluster runs.
    """
    params = {
        "gates": change,
        "emulated_version": emulated_version,
        "only": [role.value for role in only or ()],
        "node_level": node_level_topology_mode.value if node_level_topology_mode else "",
    }
    done = ask(data_dir, "gates", params)
    if done["started"]:
        say(f"✓ restarted: {', '.join(done['started'])}")
        return
    by_role: dict[str, list[str]] = done["gates"]
    names = sorted(set().union(*by_role.values()) | _all_gates())
    width = max(map(len, names))
    emulated: dict[str, int] = done["emulated"]
    for role, minor in emulated.items():
        say(f"{role} emulates Kubernetes 1.{minor}")
    say("  ".join([" " * width, *by_role]))
    for name in names:
        marks = ["on" if name in on else "off" for on in by_role.values()]
        cells = [f"{mark:<{len(role)}}" for mark, role in zip(marks, by_role, strict=True)]
        say("  ".join([f"{name:<{width}}", *cells]).rstrip())


def _all_gates() -> set[str]:
    from keepclose.model.gates import Gate

    return {gate.value for gate in Gate}
