"""`keepclose apiserver`: a Kubernetes API server on this machine.

Reads and checks the options and runs `apiserver.assembly`. Options that kube-apiserver has too have
its names and meaning.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.exit import fail
from keepclose.cli.options import Durability, read_gates
from keepclose.cli.render.output import say

if TYPE_CHECKING:
    from keepclose.apiserver.assembly import ServerSettings
    from keepclose.model.gates import FeatureGates


def apiserver(
    *,
    data_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where objects, certificates and kubeconfigs are kept."),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")
    ] = 6443,
    bind_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    advertise_address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address at which nodes reach the server: the endpoint of the Service "
            "default/kubernetes. By default that of --bind-address, if it is not loopback.",
        ),
    ] = "",
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    emulated_version: Annotated[
        str,
        typer.Option(
            metavar="1.NN",
            help="Behave as this release of Kubernetes: its gates, and only its fields.",
        ),
    ] = "",
    service_cluster_ip_range: Annotated[
        str,
        typer.Option(
            metavar="CIDR[,CIDR]", help="Range of cluster IPs; or two ranges, one of each family."
        ),
    ] = "10.96.0.0/16",
    service_node_port_range: Annotated[
        str, typer.Option(metavar="FIRST-LAST", help="Range of node ports.")
    ] = "30000-32767",
    durability: Annotated[
        Durability,
        typer.Option(
            help="Which crash an acknowledged write survives: of the process, or (full, slower) "
            "of the machine too."
        ),
    ] = Durability.NORMAL,
    controllers: Annotated[
        bool,
        typer.Option(
            help="Run the controllers of kube-controller-manager for namespaces and ServiceCIDRs: "
            "the ServiceAccount default, the ConfigMap kube-root-ca.crt, the condition Ready."
        ),
    ] = True,
    recover_store: Annotated[
        bool,
        typer.Option(
            "--recover-store",
            help="Start although the files of the store are damaged: rename them to "
            "FILE.damaged-TIME, and serve the intact objects.",
        ),
    ] = False,
    max_connections: Annotated[
        int,
        typer.Option(
            min=16,
            help="Maximum of connections; clients without valid credentials get at most half. "
            "Fewer where the process may not open so many files.",
        ),
    ] = 4096,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Write a kubeconfig for this node; may be repeated."),
    ] = None,
) -> None:
    """Serve the Kubernetes API on this machine.

    For kubectl and every other client. Writes DIR/kubeconfig for the administrator and a kubeconfig
    for each role beside it, prints one line when it is ready, and runs until it is stopped. Exit
    codes: 0 stopped, 2 bad input or unusable files.
    """
    settings = _read_settings(
        data_dir=data_dir,
        port=port,
        bind_address=bind_address,
        advertise_address=advertise_address,
        gates=read_gates(feature_gates, emulated_version=emulated_version),
        service_cluster_ip_range=service_cluster_ip_range,
        service_node_port_range=service_node_port_range,
        synchronous=durability.value,
        runs_controllers=controllers,
        recovers_store=recover_store,
        nodes=tuple(node or ()),
        max_connections=max_connections,
    )
    _serve(settings)


def _read_settings(
    *,
    data_dir: Path,
    port: int,
    bind_address: str,
    advertise_address: str,
    gates: FeatureGates,
    service_cluster_ip_range: str,
    service_node_port_range: str,
    synchronous: str,
    runs_controllers: bool,
    recovers_store: bool,
    nodes: tuple[str, ...],
    max_connections: int,
) -> ServerSettings:
    try:
        from keepclose.apiserver.assembly import ServerSettings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("keepclose"):
            raise
        fail(f"{error.name} is not installed; the API server needs: pip install {error.name}")
    from keepclose.apiserver.registry.registry import AllocationSettings

    first, dash, last = service_node_port_range.partition("-")
    if not dash or not all(re.fullmatch("[0-9]{1,5}", part) for part in (first, last)):
        fail(f"--service-node-port-range: {service_node_port_range!r} must be like 30000-32767")
    allocation = AllocationSettings(
        service_cidrs=tuple(part.strip() for part in service_cluster_ip_range.split(",")),
        first_node_port=int(first),
        last_node_port=int(last),
    )
    return ServerSettings(
        data_dir=data_dir,
        host=bind_address,
        port=port,
        gates=gates,
        allocation=allocation,
        synchronous="full" if synchronous == "full" else "normal",
        nodes=nodes,
        advertise_address=advertise_address,
        runs_controllers=runs_controllers,
        recovers_store=recovers_store,
        max_connections=max_connections,
    )


def _serve(settings: ServerSettings) -> None:
    from keepclose.apiserver.assembly import StartError, run_apiserver
    from keepclose.cli.startup import log_to_standard_error

    log_to_standard_error()

    try:
        run_apiserver(settings, on_ready=lambda ready: say(ready.text))
    except StartError as error:
        fail(str(error))
