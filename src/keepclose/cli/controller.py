"""`keepclose controller`: the EndpointSlice controller, for any cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from keepclose.controller.settings import ControllerSettings


class DefaultSubsetting(StrEnum):
    """How Services that say nothing have their endpoints divided among zones."""

    RANDOM = "Random"
    PREFER = "Prefer"
    REQUIRE = "Require"


class TopologyMode(StrEnum):
    """How much is found out about node-level Services."""

    MANUAL = "Manual"
    SEMI_AUTO = "SemiAuto"
    AUTO = "Auto"


def controller(
    *,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How to reach the cluster; default as kubectl has it."),
    ] = None,
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    concurrent_service_endpoint_syncs: Annotated[
        int, typer.Option(metavar="N", help="Services worked on at once, 1 to 50.")
    ] = 5,
    max_endpoints_per_slice: Annotated[
        int, typer.Option(metavar="N", help="The most endpoints in one slice, 1 to 1000.")
    ] = 100,
    endpointslice_updates_batch_period: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long changes of pods are gathered, such as 500ms or 1s."
        ),
    ] = "0s",
    leader_elect: Annotated[
        bool, typer.Option(help="Work only while holding the lease of the controller.")
    ] = True,
    default_subsetting: Annotated[
        DefaultSubsetting,
        typer.Option(help="Division among zones of Services that say nothing about it."),
    ] = DefaultSubsetting.RANDOM,
    node_level_topology_mode: Annotated[
        TopologyMode,
        typer.Option(help="Whether Services with one endpoint a node are found by themselves."),
    ] = TopologyMode.MANUAL,
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics, /healthz, /readyz and /debug/services/NAMESPACE/NAME are served; "
            "port 0 takes any free one, none serves nothing.",
        ),
    ] = "127.0.0.1:10260",
) -> None:
    """Keep the EndpointSlices of a cluster, with hints that keep traffic close.

    Runs until it is stopped. Exit codes: 0 stopped, 1 the lease was lost, 2 bad input.
    """
    settings = _read_settings(
        feature_gates=feature_gates,
        workers=concurrent_service_endpoint_syncs,
        max_endpoints=max_endpoints_per_slice,
        batch_period=endpointslice_updates_batch_period,
        default_subsetting=default_subsetting.value,
        node_level_mode=node_level_topology_mode.value,
    )
    _run(
        settings,
        kubeconfig=kubeconfig,
        leader_elect=leader_elect,
        address=None if metrics_address == "none" else _read_address(metrics_address),
    )


def _read_settings(
    *,
    feature_gates: str,
    workers: int,
    max_endpoints: int,
    batch_period: str,
    default_subsetting: str,
    node_level_mode: str,
) -> ControllerSettings:
    from keepclose.controller.settings import ControllerSettings, parse_duration, settings_flaws
    from keepclose.extensions import ExtensionError, find_heuristics
    from keepclose.model.gates import GateError, parse_gates
    from keepclose.routing.nodelevel import NodeLevelMode
    from keepclose.routing.subsets import Approach, SubsetOptions
    from keepclose.slices.settings import Settings

    batch_s = parse_duration(batch_period)
    if batch_s is None:
        _fail(
            f"--endpointslice-updates-batch-period: {batch_period!r} must be a duration such as 1s"
        )
    try:
        plan = Settings(
            gates=parse_gates(feature_gates),
            max_endpoints=max_endpoints,
            subsets=SubsetOptions(default=Approach(default_subsetting)),
            node_level_mode=NodeLevelMode(node_level_mode),
            heuristics=find_heuristics(),
        )
    except GateError as error:
        _fail(f"--feature-gates: {error}")
    except ExtensionError as error:
        _fail(str(error))
    settings = ControllerSettings(plan=plan, workers=workers, batch_s=batch_s)
    flaws = settings_flaws(settings)
    if flaws:
        _fail("; ".join(flaws))
    return settings


def _read_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        _fail(f"--metrics-address: {text!r} must be HOST:PORT, or none")
    return host.strip("[]") or "127.0.0.1", int(port)


def _run(
    settings: ControllerSettings,
    *,
    kubeconfig: Path | None,
    leader_elect: bool,
    address: tuple[str, int] | None,
) -> None:
    from keepclose.cli.logs import log_to_standard_error
    from keepclose.controller.process import Listening, run_controller
    from keepclose.kube.errors import ConfigError
    from keepclose.kube.incluster import load_settings
    from keepclose.kube.leases import LeadershipLost

    log_to_standard_error()
    try:
        connection = load_settings(kubeconfig)
        run_controller(
            settings,
            connection,
            leader_elect=leader_elect,
            listening=None if address is None else Listening(*address),
            on_ready=typer.echo,
        )
    except ConfigError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"--metrics-address: {error}; choose another, or none")
    except LeadershipLost as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


def _fail(text: str) -> NoReturn:
    typer.echo(f"error: {text}", err=True)
    sys.exit(2)
