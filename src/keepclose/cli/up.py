"""`keepclose up`, `down` and `demo`: a multi-zone cluster on this machine.

`up` reads options and manifests, starts the cluster in `lab.cluster`, prints each step of the start
and then the commands to try. `down` stops the cluster, also one whose process was killed. Without
--data-dir nothing outlives the cluster.

The tour in `lab.cluster` changes the cluster and judges each step; this command only paces the
steps and prints them. The cluster never outlives the command.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import fail, name_program, shell_quote
from keepclose.cli.options import read_gates
from keepclose.cli.render.output import say
from keepclose.model.json_values import JsonObject

if TYPE_CHECKING:
    from keepclose.cli.manifests.documents import DocumentError, RawObject
    from keepclose.cli.render.screen import Screen
    from keepclose.lab.cluster.data_dir import ClusterDirectory, ClusterState
    from keepclose.lab.cluster.programs import ClusterLayout
    from keepclose.lab.cluster.supervisor import ClusterSettings, StartStep
    from keepclose.model.gates import FeatureGates

_INTERRUPTED: Final = 130


def up(
    *,
    zones: Annotated[int, typer.Option(metavar="N", help="How many zones.")] = 3,
    nodes_per_zone: Annotated[int, typer.Option(metavar="N", help="How many nodes in each.")] = 2,
    feature_gates: Annotated[
        str,
        typer.Option(
            metavar="A=true,B=false",
            help="Feature gates of all programs; all but ServiceTopology are on.",
        ),
    ] = "",
    emulated_version: Annotated[
        str,
        typer.Option(
            metavar="1.NN",
            help="Run all programs with the gates and fields of this release of Kubernetes.",
        ),
    ] = "",
    manifest: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Apply this manifest, not the demo; may be repeated."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the API server; 0 takes any free one.")
    ] = 6443,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="KEEPCLOSE_DATA_DIR",
            help="Keep the cluster's objects here, so that the next up continues with them. "
            "Default: ~/.keepclose, removed when the cluster ends.",
        ),
    ] = None,
    flows: Annotated[
        bool,
        typer.Option("--flows", help="Count all traffic on every node, for keepclose flows top."),
    ] = False,
    demand: Annotated[
        bool,
        typer.Option(
            "--demand",
            help="Balance by the demand that flow agents count, not by CPU; implies --flows.",
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return as soon as the cluster is ready.")
    ] = False,
) -> None:
    """Run a multi-zone Kubernetes cluster on this machine, with real packets.

    Starts an API server, the EndpointSlice controller, a network namespace with a proxy for every
    node, and one with a listener for every pod. Without root it uses a user namespace. Runs until
    Ctrl-C or keepclose down, and leaves nothing behind. Exit codes: 0 stopped, 1 failed, 2 bad
    input.
    """
    from msgspec.structs import replace

    from keepclose.lab.cluster.programs import LAB_GATES, ClusterLayout

    layout = ClusterLayout(zones, nodes_per_zone)
    errors = layout.flaws()
    if errors:
        fail("; ".join(errors))
    gates = read_gates(feature_gates, emulated_version=emulated_version, defaults=LAB_GATES)
    raw_objects = _read_raw_objects(manifest)
    objects = tuple(raw_object.value for _, raw_object in raw_objects)
    settings = _make_settings(_home(data_dir), layout, gates, port, objects)  # type: ignore[arg-type]
    settings = replace(
        settings,
        locate=lambda index, field: _place(*raw_objects[index], field),
        counts_flows=flows or demand,
        measures_demand=demand,
    )
    if not manifest:
        # The demo goes into an empty store only: the user may have changed or deleted its objects.
        settings = replace(settings, only_into_empty=True)
    if not detach:
        sys.exit(_run(settings))
    from keepclose.lab.cluster.launch import detach as run_detached

    sys.exit(run_detached(lambda say_ready: _run(settings, say_ready)))


def down(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="KEEPCLOSE_DATA_DIR",
            help="The directory that the cluster was started with. Default: ~/.keepclose.",
        ),
    ] = None,
) -> None:
    """Stop the cluster that keepclose up started, and clean up after one that was killed.

    Exit codes: 0 nothing runs any more, 1 it could not be stopped.
    """
    from keepclose.lab.cluster.data_dir import ClusterDirectoryError
    from keepclose.lab.cluster.launch import StillRunningError, end_cluster

    home = _home(data_dir)
    began = time.monotonic()
    try:
        ran = end_cluster(home)
    except (ClusterDirectoryError, StillRunningError) as error:
        fail(str(error), code=1)
    if ran:
        objects = f"its objects stay in {shell_quote(home.directory)}"
        left = objects if home.is_kept else "nothing is left behind"
        say(f"✓ stopped, {left}  {time.monotonic() - began:.1f} s")
    else:
        say(f"no cluster runs in {home.directory}")


def _home(data_dir: Path | None) -> ClusterDirectory:
    from keepclose.lab.cluster.data_dir import DEFAULT_DATA_DIR, ClusterDirectory

    return ClusterDirectory(
        (data_dir or DEFAULT_DATA_DIR).expanduser().absolute(), data_dir is not None
    )


def _make_settings(
    home: ClusterDirectory,
    layout: ClusterLayout,
    gates: FeatureGates,
    port: int,
    objects: tuple[JsonObject, ...],
) -> ClusterSettings:
    try:
        from keepclose.lab.cluster.supervisor import ClusterSettings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("keepclose"):
            raise
        fail(
            f"{error.name} is not installed, and keepclose needs it",
            "install it again from its wheel or its source",
        )
    return ClusterSettings(home=home, layout=layout, gates=gates, port=port, objects=objects)


def _run(settings: ClusterSettings, say_ready: Callable[[], None] | None = None) -> int:
    """Run the cluster to its end and return the exit code."""
    from keepclose.cli.startup import log_to_standard_error
    from keepclose.lab.cluster.launch import LaunchError, StartCallbacks, run_cluster

    def ready(state: ClusterState) -> None:
        _show_ready(state, settings, detached=say_ready is not None)
        # Later messages go to a file: the user's shell has the terminal again.
        _redirect_errors(settings.home.logs / "up.log", output_too=say_ready is not None)
        if say_ready is not None:
            say_ready()

    def no_packets(why: str) -> None:
        say(f"! no packets here: {why}; the cluster runs without them", err=True)

    log_to_standard_error(logging.ERROR)
    try:
        run_cluster(settings, StartCallbacks(_show_step, no_packets, ready, log_to_standard_error))
    except LaunchError as error:
        say(f"error: {error}", *([f"       {error.place}"] if error.place else []), err=True)
        return 2
    return 0


def _show_step(step: StartStep) -> None:
    mark = {True: "✓", False: "!", None: "…"}[step.is_well]
    if step.text:
        _say(f"{mark} {step.what:<14} {step.text:<41} {step.seconds:4.1f} s")
    else:
        _say(f"{mark} {step.what:<56} {step.seconds:4.1f} s")


def _show_ready(state: ClusterState, settings: ClusterSettings, *, detached: bool) -> None:
    program, home = name_program(), settings.home
    where = f" --data-dir {shell_quote(home.directory)}" if home.is_kept else ""
    service = _first_service(settings.objects)
    left = "keeps its objects" if home.is_kept else "leaves nothing behind"
    commands = {
        f"{program} traffic{where} {service}": "where do connections really go?",
        f"{program} lab fail{where} zone-a": "and when a zone is gone? (lab heal brings it back)",
    }
    if settings.counts_flows and state.packets:
        commands[f"{program} flows top{where}"] = "how much crosses zones?"
    width = max(map(len, commands))
    lines = [
        "",
        *(f"{command:<{width}}  # {what}" for command, what in commands.items()),
        f"export KUBECONFIG={shell_quote(Path(state.kubeconfig))}",
        f"kubectl get nodes -L topology.kubernetes.io/zone{_kubectl_hint()}",
        "",
        f"{f'{program} down{where}' if detached else 'Ctrl-C'} stops it and {left}.",
    ]
    _say(*lines)


def _say(*lines: str) -> None:
    """Print lines; a closed standard output does not end the cluster."""
    with suppress(BrokenPipeError):
        say(*lines)


def _first_service(objects: tuple[JsonObject, ...]) -> str:
    """Return the name of the first Service among objects, or a placeholder."""
    for obj in objects:
        if obj["kind"] == "Service":
            meta = obj["metadata"]
            return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
    return "SERVICE"


def _kubectl_hint() -> str:
    """Return a comment that says how to get kubectl, or "" where it is installed."""
    from shutil import which

    if which("kubectl"):
        return ""
    return (
        "  # kubectl: apt-get install kubernetes-client, or https://kubernetes.io/docs/tasks/tools"
    )


def _redirect_errors(log: Path, *, output_too: bool) -> None:
    """Send standard error to a log from now on, and with `output_too` standard output as well."""
    from keepclose.system.private_files import open_append

    with suppress(BrokenPipeError):
        sys.stdout.flush()
    file = open_append(log)
    os.dup2(file, 2)
    if output_too:
        os.dup2(file, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    os.close(file)


def _read_raw_objects(paths: list[str] | None) -> list[tuple[str, RawObject]]:
    """Return the objects of manifests with their files, or those of the demo.

    Ends the command at the first error.
    """
    from keepclose.cli.manifests.documents import RawObject, read_documents
    from keepclose.lab.cluster.readiness import find_manifest_error

    if not paths:
        texts = {"demo": files("keepclose.lab.cluster").joinpath("demo.yaml").read_text("utf-8")}
    else:
        texts = {path: _read_text(path) for path in paths}
    raw_objects: list[tuple[str, RawObject]] = []
    for path, text in texts.items():
        for entry in read_documents(text, is_json=path.endswith(".json")):
            error = (
                find_manifest_error(entry.value) if isinstance(entry, RawObject) else entry.message
            )
            if error or not isinstance(entry, RawObject):
                fail(error, _place(path, entry))
            raw_objects.append((path, entry))
    return raw_objects


def _place(path: str, entry: RawObject | DocumentError, field: str = "") -> str:
    """Return the place of an object in its file, or of the given field of it."""
    from keepclose.cli.manifests.documents import RawObject, line_of

    line = entry.line
    if isinstance(entry, RawObject) and entry.source is not None and field:
        line = line_of(entry.source, field)
    where = f"in {path}, document {entry.document}"
    return where if line is None else f"{where}, line {line}"


def _read_text(path: str) -> str:
    from keepclose.system.files import (
        MAX_MANIFEST_BYTES,
        InputError,
        read_input,
        read_standard_input,
    )

    name = "standard input" if path == "-" else path
    most = MAX_MANIFEST_BYTES
    try:
        data = read_standard_input(most=most) if path == "-" else read_input(path, most=most)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        fail(f"--manifest {name}: not UTF-8 text", "save the file as UTF-8")
    except InputError as error:
        fail(f"--manifest {name}: {error}", error.fix)


def demo(
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not wait for Enter between the steps.")
    ] = False,
) -> None:
    """Show in two minutes what keeps traffic close: six steps with real connections.

    Default routing, PreferSameZone, PreferSameNode, a zone without pods, Balanced, and the rollback
    of a feature gate, in a temporary cluster. Exit codes: 0 all steps as expected, 1 traffic was
    not as expected, 2 no cluster could be started, 130 interrupted.
    """
    from keepclose.cli.render.screen import Screen
    from keepclose.lab.cluster.launch import TemporaryError
    from keepclose.lab.cluster.tour import TourError

    console = Screen()
    try:
        is_fine = _guide(console, is_asking=not yes)
    except KeyboardInterrupt:
        say("", "stopped, nothing is left behind", err=True)
        sys.exit(_INTERRUPTED)
    except (TemporaryError, TourError) as error:
        say(f"error: {error}", err=True)
        sys.exit(error.code)
    sys.exit(0 if is_fine else 1)


def _guide(console: Screen, *, is_asking: bool) -> bool:
    """Run all steps and return whether traffic was as expected in each."""
    from keepclose.cli.render import demo as screen
    from keepclose.lab.cluster.launch import temporary_cluster
    from keepclose.lab.cluster.tour import Tour
    from keepclose.lab.cluster.tour_steps import TOUR_STEPS

    screen.print_intro(console)
    is_fine, steps_done = True, 0
    with temporary_cluster(on_line=lambda line: screen.print_started(console, line)) as cluster:
        directory, state = cluster
        if is_asking:
            screen.print_way_in(console, directory)
        tour = Tour(directory, has_packets=state.packets)
        for number, step in enumerate(TOUR_STEPS, 1):
            if is_asking and not screen.ask_to_go_on(console, step):
                break
            screen.print_head(console, step, number=number, total=len(TOUR_STEPS))
            with console.status("waiting for hints and traffic"):
                sight = tour.take(step)
            screen.print_sight(console, sight)
            is_fine, steps_done = is_fine and sight.is_fine, number
        screen.print_end(console, done=steps_done, total=len(TOUR_STEPS))
    return is_fine
