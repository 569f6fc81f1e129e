"""`keepclose lab`: injects faults into a running lab, changes its gates, and enters its network.

Each command sends one request to the lab by its control socket, and renders the answer. The lab
checks names and decides what a fault does. `exec` alone acts itself: it replaces this process by
nsenter in the network namespace that the lab names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ask_lab, complete_hints, fail
from keepclose.cli.lab_slo import slo
from keepclose.cli.options import RoleOption, TopologyMode
from keepclose.cli.render.output import OutputFormat, TableOrJson, echo_json, say, show_passing
from keepclose.model.json_values import JsonObject

_COLUMNS: Final = ("NODE", "ZONE", "STATE", "PODS", "READY")
_Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node.")]

app = typer.Typer(
    name="lab",
    help="Inject faults into the cluster that keepclose up runs.\n\n"
    "keepclose traffic shows their effect on connections.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def gates(
    *,
    change: Annotated[
        str,
        typer.Argument(metavar="A=true,B=false", help="Gates to change; default: show all gates."),
    ] = "",
    emulated_version: Annotated[
        str,
        typer.Option(
            metavar="1.NN",
            help="Use the gates and fields of this release of Kubernetes, then change gates.",
        ),
    ] = "",
    only: Annotated[
        list[RoleOption] | None,
        typer.Option(help="Which programs; may be repeated. Default: all."),
    ] = None,
    node_level_topology_mode: Annotated[
        TopologyMode | None,
        typer.Option(help="Whether the controller detects Services with one endpoint a node."),
    ] = None,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show feature gates, or restart programs with others.

    The gates are those of the running cluster. Objects stay as they are, as with an upgrade or a
    rollback. Exit codes: 0 done, 1 a program did not start, 2 bad input, 4 no cluster runs.
    """
    params = {
        "gates": change,
        "emulated_version": emulated_version,
        "only": [role.value for role in only or ()],
        "node_level": node_level_topology_mode.value if node_level_topology_mode else "",
    }
    answer = ask_lab(data_dir, "gates", params)
    if answer["started"]:
        say(f"✓ restarted: {', '.join(answer['started'])}")
        return
    by_role: dict[str, list[str]] = answer["gates"]
    names = sorted(set().union(*by_role.values()) | _all_gates())
    width = max(map(len, names))
    emulated: dict[str, int] = answer["emulated"]
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


@app.command("fail")
def fail_nodes(
    name: Annotated[str, typer.Argument(metavar="ZONE|NODE", help="A zone or a node to fail.")],
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Fail a node, or all nodes of a zone.

    Link and kubelet go down, and the cluster marks the nodes NotReady at once. Exit codes: 0 done,
    3 no such node or zone, 4 no cluster runs.
    """
    answer = ask_lab(data_dir, "fail", {"name": name})
    nodes = ", ".join(answer["nodes"])
    target = name if answer["nodes"] == [name] else f"{name} ({nodes})"
    if not answer["changed"]:
        say(f"{target} has failed already")
        return
    say(f"✓ {target} failed; {_count(answer['unready'], 'pod')} no longer ready")
    _say(
        "pods of a failed node stay for five minutes in Kubernetes, and here until you heal it",
        data_dir,
    )
    _offer("keepclose traffic SERVICE", data_dir, undo=f"keepclose lab heal {name}")


@app.command()
def partition(
    node: _Node,
    *,
    notice: Annotated[
        bool,
        typer.Option("--notice", help="Mark the node NotReady, as Kubernetes does after 40 s."),
    ] = False,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Cut a node off from all others and from the API server.

    Pods on the node keep running. Exit codes: 0 done, 3 no such node, 4 no cluster runs, 5 no
    packets.
    """
    answer = ask_lab(data_dir, "partition", {"name": node, "notice": notice})
    already = "" if answer["changed"] else " already"
    is_noticed = answer["is_noticed"]
    state = "and the cluster has noticed" if is_noticed else "and the cluster has not noticed"
    say(f"✓ {node} is{already} cut off from all others and from the API server, {state}")
    if is_noticed:
        _say(f"{_count(answer['unready'], 'pod')} no longer ready", data_dir)
    else:
        _say(
            f"its pods still count as ready; after 40 s: keepclose lab partition {node} --notice",
            data_dir,
        )
    _offer("keepclose traffic SERVICE", data_dir, undo=f"keepclose lab heal {node}")


@app.command()
def drain(
    node: _Node,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Delete pods without a controller too.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for pods to stop.")
    ] = 60.0,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Cordon a node and evict its pods.

    Pods of DaemonSets stay. Exit codes: 0 done, 1 pods are still there, 3 no such node, 4 no
    cluster runs.
    """
    answer = ask_lab(data_dir, "drain", {"name": node, "force": force, "timeout": timeout})
    evicted, kept = answer["evicted"], answer["kept"]
    stay = f"; {len(kept)} of DaemonSets stay" if kept else ""
    say(f"✓ {node} is drained: {_count(evicted, 'pod')} evicted{stay}")
    _offer("kubectl get pods -A -o wide", data_dir, undo=f"keepclose lab heal {node}")


@app.command()
def cordon(node: _Node, *, data_dir: DataDir = DEFAULT_DIR) -> None:
    """Mark a node unschedulable.

    Exit codes: 0 done, 3 no such node, 4 no cluster runs.
    """
    answer = ask_lab(data_dir, "cordon", {"name": node})
    say(f"✓ {node} is cordoned" if answer["changed"] else f"{node} is cordoned already")
    _offer("kubectl get nodes", data_dir, undo=f"keepclose lab uncordon {node}")


@app.command()
def uncordon(node: _Node, *, data_dir: DataDir = DEFAULT_DIR) -> None:
    """Mark a node schedulable again.

    Exit codes: 0 done, 3 no such node, 4 no cluster runs.
    """
    answer = ask_lab(data_dir, "uncordon", {"name": node})
    say(f"✓ {node} is uncordoned" if answer["changed"] else f"{node} is not cordoned")


@app.command()
def relabel(
    node: _Node,
    zone: Annotated[str, typer.Argument(metavar="ZONE", help="Its new zone; - for none.")],
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Move a node to another zone, or to none, by its zone label.

    Exit codes: 0 done, 2 invalid name of a zone, 3 no such node, 4 no cluster runs.
    """
    answer = ask_lab(data_dir, "relabel", {"name": node, "zone": zone})
    now, before = answer["zone"] or "no zone", answer["before"] or "no zone"
    if not answer["changed"]:
        say(f"{node} is in {now} already")
        return
    say(f"✓ {node} moved from {before} to {now}")
    _offer("keepclose traffic SERVICE", data_dir, undo=f"keepclose lab heal {node}")


@app.command()
def heal(
    name: Annotated[
        str, typer.Argument(metavar="[ZONE|NODE]", help="A zone or a node; default: all nodes.")
    ] = "",
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Undo failures, partitions, cordons and moves.

    On one node, in a zone, or on all nodes. Waits until the proxies of partitioned nodes have
    reconnected to the API server. Exit codes: 0 done, 3 no such node or zone, 4 no cluster runs.
    """

    def show_waiting(progress: JsonObject) -> None:
        nodes = ", ".join(progress["waiting"])
        show_passing(f"waiting for the proxies of {nodes} to reconnect")

    answer = ask_lab(data_dir, "heal", {"name": name}, on_progress=show_waiting)
    show_passing("")
    healed: dict[str, list[str]] = answer["healed"]
    if not healed:
        say("there was nothing to heal")
        return
    nodes = ", ".join(f"{node} ({', '.join(faults)})" for node, faults in healed.items())
    say(f"✓ healed {nodes}")
    if answer["away"]:
        _say(f"the proxies of {', '.join(answer['away'])} reconnect within half a minute", data_dir)
    _offer("keepclose lab status", data_dir)


@app.command("status")
def lab_status(
    *,
    output: OutputFormat = TableOrJson.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show the state of all nodes, and how many pods run on them.

    Exit codes: 0 shown, 4 no cluster runs.
    """
    nodes: list[JsonObject] = ask_lab(data_dir, "status")["nodes"]
    if output is TableOrJson.JSON:
        echo_json({"nodes": nodes})
    else:
        rows = [
            (
                node["node"],
                node["zone"] or "-",
                node["words"],
                str(node["pods"]),
                str(node["readyPods"]),
            )
            for node in nodes
        ]
        widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
        for row in (_COLUMNS, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            say("  ".join(cells).rstrip())


@app.command(
    "exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def execute(
    place: Annotated[
        str,
        typer.Argument(
            metavar="NODE|POD|outside",
            help="The network to enter; client/NODE is that of a node's clients. A pod is NAME, "
            "pod/NAME or NAMESPACE/NAME.",
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="The command to run; default a shell."),
    ] = None,
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Run a command in the network of a node, pod or outside.

    Outside is a host that is no node. Files and processes are those of this machine. Exit codes:
    those of the command, 3 no such node or pod, 4 no cluster runs, 5 no packets or no permission.
    """
    from keepclose.lab.access import LabRefusal
    from keepclose.lab.cluster.handlers import find_place
    from keepclose.system.namespaces import enter_command, search_path

    places = ask_lab(data_dir, "places")
    try:
        fd = find_place(places["fds"], place)
    except LabRefusal as refusal:
        fail(str(refusal), code=refusal.code)
    # NB: typer passes on everything after the place, a leading -- included.
    arguments = command[1:] if command and command[0] == "--" else command
    line = enter_command(
        arguments or [os.environ.get("SHELL") or "/bin/sh"],
        pid=places["pid"],
        fd=fd,
        # Root may enter a network namespace without its owner's user namespace.
        user_namespace=places["user_namespace"] and _is_ours(places["pid"]),
    )
    sys.stdout.flush()
    try:
        # Network tools are often in directories that only root has in its PATH.
        os.execvpe(line[0], line, {**os.environ, "PATH": search_path()})  # noqa: S606
    except FileNotFoundError:
        fail("nsenter is not installed (package util-linux)")


app.command("gates")(gates)
app.command("slo")(slo)


def _is_ours(pid: int) -> bool:
    try:
        return Path("/proc", str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return True


def _count(names: list[str], noun: str) -> str:
    return f"{len(names)} {noun}" if len(names) == 1 else f"{len(names)} {noun}s"


def _say(text: str, data_dir: Path) -> None:
    say(f"  {complete_hints(text, data_dir)}")


def _offer(command: str, data_dir: Path, *, undo: str = "") -> None:
    text = f"try   {command}" + (f"      undo  {undo}" if undo else "")
    _say(text, data_dir)
