"""`keepclose controller`: the EndpointSlice controller, or the webhook beside a built-in one.

Reads and checks the options of both modes, connects to the cluster by kubeconfig or by the pod's
ServiceAccount, and runs `controller.process` or `webhook.process`. Options of one mode are refused
in the other, because they would have no effect there.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.controller.demand_options import (
    Demand,
    DemandAgentNamespace,
    DemandCaFile,
    DemandChoice,
    DemandDeadBand,
    DemandDefaults,
    DemandFile,
    DemandFlows,
    DemandHalfLife,
    DemandInterval,
    DemandLabels,
    DemandLeastRate,
    DemandMeasureOption,
    DemandPeriod,
    DemandPrometheusUrl,
    DemandQueryOption,
    DemandStaleAfter,
    DemandTokenFile,
    MeasureChoice,
    read_demand,
)
from keepclose.cli.exit import fail
from keepclose.cli.options import (
    AGENT_NAMESPACE,
    DefaultSubsetting,
    OverloadThreshold,
    Padding,
    StartingThreshold,
    SubsettingDefaults,
    TopologyMode,
    read_address,
    read_address_or_none,
    read_duration,
    read_gates,
    read_subsets,
)
from keepclose.cli.render.output import say
from keepclose.cli.startup import import_lean

if TYPE_CHECKING:
    from keepclose.demand.settings import DemandOptions
    from keepclose.reconcile.settings import ControllerSettings
    from keepclose.routing.subsets import SubsetOptions
    from keepclose.webhook.settings import WebhookSettings


class ControllerMode(StrEnum):
    """Whether keepclose replaces the built-in EndpointSlice controller or runs beside it."""

    REPLACE = "replace"
    WEBHOOK = "webhook"


def controller(
    *,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How to reach the cluster; default as kubectl has it."),
    ] = None,
    mode: Annotated[
        ControllerMode,
        typer.Option(
            help="replace: write all slices, in place of the built-in controller. webhook: beside "
            "it, set only the hints of Services with the annotation."
        ),
    ] = ControllerMode.REPLACE,
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    concurrent_service_endpoint_syncs: Annotated[
        int, typer.Option(metavar="N", help="Services synced concurrently, 1 to 50.")
    ] = 5,
    max_endpoints_per_slice: Annotated[
        int, typer.Option(metavar="N", help="The most endpoints in one slice, 1 to 1000.")
    ] = 100,
    endpointslice_updates_batch_period: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long changes of pods are batched, such as 500ms or 1s."
        ),
    ] = "0s",
    mirroring_concurrent_service_endpoint_syncs: Annotated[
        int, typer.Option(metavar="N", help="Endpoints objects mirrored concurrently, 1 to 50.")
    ] = 5,
    mirroring_max_endpoints_per_subset: Annotated[
        int, typer.Option(metavar="N", help="The most addresses mirrored of a subset, 1 to 1000.")
    ] = 1000,
    mirroring_endpointslice_updates_batch_period: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long changes of Endpoints are batched."),
    ] = "0s",
    leader_elect: Annotated[
        bool, typer.Option(help="Work only while holding the lease of the controller.")
    ] = True,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Start although another controller writes the slices of the cluster."
        ),
    ] = False,
    default_subsetting: Annotated[
        DefaultSubsetting,
        typer.Option(help="Division among zones of Services without the annotation."),
    ] = DefaultSubsetting.RANDOM,
    subsetting_starting_threshold: StartingThreshold = SubsettingDefaults.STARTING_THRESHOLD,
    subsetting_padding: Padding = SubsettingDefaults.PADDING,
    subsetting_overload_threshold: OverloadThreshold = SubsettingDefaults.OVERLOAD_THRESHOLD,
    node_level_topology_mode: Annotated[
        TopologyMode,
        typer.Option(help="Whether the controller detects Services with one endpoint a node."),
    ] = TopologyMode.MANUAL,
    demand: Demand = DemandChoice.NONE,
    demand_flows: DemandFlows = None,
    demand_agent_namespace: DemandAgentNamespace = AGENT_NAMESPACE,
    demand_measure: DemandMeasureOption = MeasureChoice.CONNECTIONS,
    demand_prometheus_url: DemandPrometheusUrl = "",
    demand_query: DemandQueryOption = "flows",
    demand_labels: DemandLabels = "",
    demand_token_file: DemandTokenFile = "",
    demand_ca_file: DemandCaFile = "",
    demand_file: DemandFile = "",
    demand_period: DemandPeriod = DemandDefaults.PERIOD,
    demand_half_life: DemandHalfLife = DemandDefaults.HALF_LIFE,
    demand_dead_band: DemandDeadBand = DemandDefaults.DEAD_BAND,
    demand_interval: DemandInterval = DemandDefaults.INTERVAL,
    demand_stale_after: DemandStaleAfter = DemandDefaults.STALE_AFTER,
    demand_least_rate: DemandLeastRate = DemandDefaults.LEAST_RATE,
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics, /healthz, /readyz and /debug/services/NAMESPACE/NAME are served; "
            "port 0 takes any free one, none serves nothing.",
        ),
    ] = "127.0.0.1:10260",
    webhook_address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where the webhook answers API servers."),
    ] = "0.0.0.0:9443",
    webhook_service: Annotated[
        str,
        typer.Option(
            metavar="NAMESPACE/NAME[:PORT]", help="The Service of the webhook, for API servers."
        ),
    ] = "",
    webhook_url: Annotated[
        str,
        typer.Option(metavar="URL", help="The URL of the webhook where it has no Service."),
    ] = "",
    webhook_tls_cert_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The webhook's certificate; default: a generated one, kept in the Secret "
            "keepclose-webhook-tls.",
        ),
    ] = "",
    webhook_tls_private_key_file: Annotated[
        str, typer.Option(metavar="FILE", help="The key of the certificate.")
    ] = "",
    webhook_ca_file: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="The CA of the certificate; default: the certificate itself."
        ),
    ] = "",
    webhook_namespace_selector: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="API servers call the webhook only for namespaces with these labels.",
        ),
    ] = "",
    webhook_register: Annotated[
        bool,
        typer.Option(help="Keep the MutatingWebhookConfiguration keepclose-hints up to date."),
    ] = True,
) -> None:
    """Write EndpointSlices, with hints that keep traffic close.

    Runs until it is stopped. Exit codes: 0 stopped, 1 the lease was lost, 2 bad input, or another
    controller writes the slices.
    """
    import_lean("keepclose.controller.process", "keepclose.kube.auth.kubeconfig")
    webhook = None
    if mode is ControllerMode.WEBHOOK:
        if default_subsetting is not DefaultSubsetting.RANDOM:
            fail("--default-subsetting needs --mode=replace: a webhook cannot create slices")
        webhook = _read_webhook_settings(
            address=webhook_address,
            service=webhook_service,
            url=webhook_url,
            certificate_file=webhook_tls_cert_file,
            key_file=webhook_tls_private_key_file,
            ca_file=webhook_ca_file,
            namespace_selector=webhook_namespace_selector,
            registers=webhook_register,
        )
    elif webhook_service or webhook_url or webhook_tls_cert_file:
        fail("the options --webhook-* need --mode=webhook")
    settings = _read_settings(
        feature_gates=feature_gates,
        workers=concurrent_service_endpoint_syncs,
        max_endpoints=max_endpoints_per_slice,
        batch_period=endpointslice_updates_batch_period,
        mirroring_workers=mirroring_concurrent_service_endpoint_syncs,
        mirroring_max=mirroring_max_endpoints_per_subset,
        mirroring_batch_period=mirroring_endpointslice_updates_batch_period,
        subsets=read_subsets(
            default_subsetting,
            starting_threshold=subsetting_starting_threshold,
            padding=subsetting_padding,
            overload_threshold=subsetting_overload_threshold,
        ),
        node_level_mode=node_level_topology_mode.value,
    )
    measured = read_demand(
        demand,
        flows=demand_flows or [],
        agent_namespace=demand_agent_namespace,
        measure=demand_measure,
        prometheus_url=demand_prometheus_url,
        query=demand_query,
        labels=demand_labels,
        token_file=demand_token_file,
        ca_file=demand_ca_file,
        file=demand_file,
        period=demand_period,
        half_life=demand_half_life,
        dead_band=demand_dead_band,
        interval=demand_interval,
        stale_after=demand_stale_after,
        least_rate=demand_least_rate,
        gates=settings.plan.gates,
    )
    _run(
        settings,
        kubeconfig=kubeconfig,
        leader_elect=leader_elect,
        is_forced=force,
        address=read_address_or_none("--metrics-address", metrics_address),
        webhook=webhook,
        demand=measured,
    )


def _read_settings(
    *,
    feature_gates: str,
    workers: int,
    max_endpoints: int,
    batch_period: str,
    mirroring_workers: int,
    mirroring_max: int,
    mirroring_batch_period: str,
    subsets: SubsetOptions,
    node_level_mode: str,
) -> ControllerSettings:
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.reconcile.settings import ControllerSettings, controller_settings_errors
    from keepclose.routing.node_level import NodeLevelMode
    from keepclose.slices.settings import PlannerSettings

    gates = read_gates(feature_gates)
    plan = PlannerSettings(
        gates=gates,
        max_endpoints=max_endpoints,
        subsets=subsets,
        node_level_mode=NodeLevelMode(node_level_mode),
        heuristics=find_heuristics(gates),
    )
    settings = ControllerSettings(
        plan=plan,
        workers=workers,
        batch_s=read_duration("--endpointslice-updates-batch-period", batch_period),
        mirroring_workers=mirroring_workers,
        mirroring_max=mirroring_max,
        mirroring_batch_s=read_duration(
            "--mirroring-endpointslice-updates-batch-period", mirroring_batch_period
        ),
    )
    errors = controller_settings_errors(settings)
    if errors:
        fail("; ".join(errors))
    return settings


def _read_webhook_settings(
    *,
    address: str,
    service: str,
    url: str,
    certificate_file: str,
    key_file: str,
    ca_file: str,
    namespace_selector: str,
    registers: bool,
) -> WebhookSettings:
    from keepclose.webhook.settings import (
        WebhookSettings,
        parse_labels,
        parse_service,
        webhook_settings_errors,
    )

    host, port = read_address("--webhook-address", address)
    target = parse_service(service) if service else None
    if service and target is None:
        fail(f"--webhook-service: {service!r} must be NAMESPACE/NAME or NAMESPACE/NAME:PORT")
    labels = parse_labels(namespace_selector)
    if labels is None:
        fail(f"--webhook-namespace-selector: {namespace_selector!r} must be KEY=VALUE,...")
    settings = WebhookSettings(
        host=host,
        port=port,
        url=url,
        service=target,
        certificate_file=certificate_file,
        key_file=key_file,
        ca_file=ca_file,
        registers=registers,
        namespace_labels=labels,
    )
    errors = webhook_settings_errors(settings)
    if errors:
        fail("; ".join(errors))
    return settings


def _run(
    settings: ControllerSettings,
    *,
    kubeconfig: Path | None,
    leader_elect: bool,
    is_forced: bool,
    address: tuple[str, int] | None,
    webhook: WebhookSettings | None,
    demand: DemandOptions | None,
) -> None:
    from keepclose.cli.startup import log_to_standard_error
    from keepclose.controller.process import run_controller
    from keepclose.kube.auth.kubeconfig import load_connection_settings
    from keepclose.kube.errors import ConfigError
    from keepclose.kube.leader_election import LeadershipLost
    from keepclose.runtime.pages import ListenAddress, ListenError

    log_to_standard_error()
    try:
        connection = load_connection_settings(kubeconfig)
        if webhook is not None:
            from keepclose.webhook.process import run_webhook

            run_webhook(
                settings,
                webhook,
                connection,
                leader_elect=leader_elect,
                listening=None if address is None else ListenAddress(*address),
                demand=demand,
                on_ready=lambda ready: say(ready.text),
            )
            return
        run_controller(
            settings,
            connection,
            leader_elect=leader_elect,
            is_forced=is_forced,
            listening=None if address is None else ListenAddress(*address),
            demand=demand,
            on_ready=lambda ready: say(ready.text),
        )
    except ConfigError as error:
        fail(str(error))
    except ListenError as error:
        if webhook is not None and error.address == (webhook.host, webhook.port):
            fail(f"--webhook-address: {error}; choose another address")
        fail(f"--metrics-address: {error}; choose another address, or none to serve no pages")
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(str(error))
    except LeadershipLost as error:
        fail(str(error), code=1)
