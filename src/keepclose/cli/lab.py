"""`keepclose lab`: trouble for the nodes of a running cluster, and a way into its namespaces."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ask_lab, complete_hints, fail
from keepclose.cli.lab_slo import slo
from keepclose.cli.options import RoleOption, TopologyMode
from keepclose.cli.render.output import AnswerForm, TableOrJson, echo_json, say, show_passing
from keepclose.model.json_values import JsonObject

_COLUMNS: Final = ("NODE", "ZONE", "STATE", "PODS", "READY")
_Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node.")]


app = typer.Typer(
    name="lab",
    help="Make trouble in the cluster that keepclose up runs.\n\n"
    "keepclose traffic shows what becomes of connections.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
        list[RoleOption] | None,
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
    done = ask_lab(data_dir, "gates", params)
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


@app.command("fail")
def fail_nodes(
    name: Annotated[str, typer.Argument(metavar="ZONE|NODE", help="What is to fail.")],
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Let a node die, or all nodes of a zone.

    Link and kubelet are silent, and the cluster notices at once. Exit codes: 0 done, 3 no such
    node or zone, 4 no cluster runs.
    """
    done = ask_lab(data_dir, "fail", {"name": name})
    nodes = ", ".join(done["nodes"])
    what = name if done["nodes"] == [name] else f"{name} ({nodes})"
    if not done["changed"]:
        say(f"{what} has failed already")
        return
    say(f"✓ {what} failed; {_count(done['unready'], 'pod')} no longer ready")
    _say(
        "pods of a lost node stay for five minutes in Kubernetes, and here until you heal it",
        data_dir,
    )
    _offer("keepclose traffic SERVICE", data_dir, undo=f"keepclose lab heal {name}")


@app.command()
def partition(
    node: _Node,
    *,
    notice: Annotated[
        bool, typer.Option("--notice", help="Let the cluster notice, as it does after 40 s.")
    ] = False,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Cut a node off from all others and from the API server.

    What runs on it goes on. Exit codes: 0 done, 3 no such node, 4 no cluster runs, 5 no packets.
    """
    done = ask_lab(data_dir, "partition", {"name": node, "notice": notice})
    cut = "" if done["changed"] else " already"
    noticed = done["is_noticed"]
    knows = "and the cluster knows it" if noticed else "and the cluster has not noticed"
    say(f"✓ {node} is{cut} cut off from all others and from the API server, {knows}")
    if noticed:
        _say(f"{_count(done['unready'], 'pod')} no longer ready by this", data_dir)
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
        bool, typer.Option("--force", help="Delete pods too that nothing would replace.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for pods to end.")
    ] = 60.0,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Move all pods away from a node, and let no more come.

    Those of DaemonSets stay. Exit codes: 0 done, 1 pods are still there, 3 no such node, 4 no
    cluster runs.
    """
    done = ask_lab(data_dir, "drain", {"name": node, "force": force, "timeout": timeout})
    gone, kept = done["evicted"], done["kept"]
    stay = f"; {len(kept)} of DaemonSets stay" if kept else ""
    say(f"✓ {node} is drained: {_count(gone, 'pod')} left it{stay}")
    _offer("kubectl get pods -A -o wide", data_dir, undo=f"keepclose lab heal {node}")


@app.command()
def cordon(node: _Node, *, data_dir: DataDir = DEFAULT_DIR) -> None:
    """Let no more pods come to a node.

    Exit codes: 0 done, 3 no such node, 4 no cluster runs.
    """
    done = ask_lab(data_dir, "cordon", {"name": node})
    say(f"✓ {node} takes no more pods" if done["changed"] else f"{node} takes none already")
    _offer("kubectl get nodes", data_dir, undo=f"keepclose lab uncordon {node}")


@app.command()
def uncordon(node: _Node, *, data_dir: DataDir = DEFAULT_DIR) -> None:
    """Let pods come to a node again.

    Exit codes: 0 done, 3 no such node, 4 no cluster runs.
    """
    done = ask_lab(data_dir, "uncordon", {"name": node})
    say(f"✓ {node} takes pods again" if done["changed"] else f"{node} takes pods already")


@app.command()
def relabel(
    node: _Node,
    zone: Annotated[str, typer.Argument(metavar="ZONE", help="Its new zone; - for none.")],
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Put a node into another zone, or into none.

    Exit codes: 0 done, 2 no name for a zone, 3 no such node, 4 no cluster runs.
    """
    done = ask_lab(data_dir, "relabel", {"name": node, "zone": zone})
    now, before = done["zone"] or "no zone", done["before"] or "no zone"
    if not done["changed"]:
        say(f"{node} is in {now} already")
        return
    say(f"✓ {node} moved from {before} to {now}")
    _offer("keepclose traffic SERVICE", data_dir, undo=f"keepclose lab heal {node}")


@app.command()
def heal(
    name: Annotated[
        str, typer.Argument(metavar="[ZONE|NODE]", help="What is to heal; default everything.")
    ] = "",
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Undo failures, partitions, cordons and moves.

    Those of one node, of a zone, or all. Waits until the proxies of nodes that were cut off are
    back at the API server. Exit codes: 0 done, 3 no such node or zone, 4 no cluster runs.
    """

    def wait(news: JsonObject) -> None:
        nodes = ", ".join(news["waiting"])
        show_passing(f"waiting for the proxies of {nodes} to come back")

    done = ask_lab(data_dir, "heal", {"name": name}, on_tell=wait)
    show_passing("")
    healed: dict[str, list[str]] = done["healed"]
    if not healed:
        say("there was nothing to heal")
        return
    told = ", ".join(f"{node} ({', '.join(undone)})" for node, undone in healed.items())
    say(f"✓ healed {told}")
    if done["away"]:
        _say(f"the proxies of {', '.join(done['away'])} come back within half a minute", data_dir)
    _offer("keepclose lab status", data_dir)


@app.command()
def status(
    *,
    output: AnswerForm = TableOrJson.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show how all nodes are, and the pods that run on them.

    Exit codes: 0 shown, 4 no cluster runs.
    """
    nodes: list[JsonObject] = ask_lab(data_dir, "status")["nodes"]
    if output is TableOrJson.JSON:
        echo_json({"nodes": nodes})
    else:
        rows = [
            (one["node"], one["zone"] or "-", one["words"], str(one["pods"]), str(one["readyPods"]))
            for one in nodes
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
            metavar="NODE|POD|outside", help="Where; client/NODE is where clients of a node are."
        ),
    ],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="What; default a shell.")
    ] = None,
    *,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Run a command in the network of a node, pod or outside.

    Outside is a host that is no node. Files and processes are those of this machine. Exit codes:
    those of the command, 3 no such place, 4 no cluster runs, 5 no packets or no rights.
    """
    from keepclose.lab.access import LabRefusal
    from keepclose.lab.cluster.handlers import enter_command, find_place
    from keepclose.system.namespaces import search_path

    places = ask_lab(data_dir, "places")
    try:
        fd = find_place(places["fds"], place)
    except LabRefusal as refusal:
        fail(str(refusal), code=refusal.code)
    # NB: everything after the place is the command's, so the sign of that comes along.
    wanted = command[1:] if command and command[0] == "--" else command
    line = enter_command(
        wanted or [os.environ.get("SHELL") or "/bin/sh"],
        pid=places["pid"],
        fd=fd,
        # Root may enter what others made without becoming one of them.
        user_namespace=places["user_namespace"] and _is_ours(places["pid"]),
    )
    sys.stdout.flush()
    try:
        # Tools of the network often lie where only administrators look.
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


def _count(things: list[str], noun: str) -> str:
    return f"{len(things)} {noun}" if len(things) == 1 else f"{len(things)} {noun}s"


def _say(text: str, data_dir: Path) -> None:
    say(f"  {complete_hints(text, data_dir)}")


def _offer(command: str, data_dir: Path, *, undo: str = "") -> None:
    text = f"try   {command}" + (f"      undo  {undo}" if undo else "")
    _say(text, data_dir)
