"""The options of measured demand, in both modes of `keepclose controller`.

Defaults that depend on others are "" or None here, so that --help does not show them. NB: the
other defaults are defined in `routing.demand` and `demand.settings` as well, because loading those
takes longer than --help may.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import fail
from keepclose.cli.options import AGENT_NAMESPACE, read_duration

if TYPE_CHECKING:
    from keepclose.demand.settings import DemandOptions
    from keepclose.model.gates import FeatureGates


class DemandChoice(StrEnum):
    """What measures demand."""

    NONE = "none"
    FLOWS = "flows"
    PROMETHEUS = "prometheus"
    FILE = "file"


class MeasureChoice(StrEnum):
    """What flow agents count."""

    CONNECTIONS = "connections"
    BYTES = "bytes"


class DemandDefaults:
    """The defaults of the options of demand."""

    PERIOD: Final = "30s"
    HALF_LIFE: Final = "60s"
    DEAD_BAND: Final = "0.05"
    INTERVAL: Final = "120s"
    STALE_AFTER: Final = "300s"
    LEAST_RATE: Final[float | None] = None


Demand = Annotated[
    DemandChoice,
    typer.Option(
        help="What measures the traffic of each zone for Balanced and other heuristics; without it "
        "the CPU of nodes counts."
    ),
]
DemandFlows = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="A flow agent, http://HOST:PORT; default: those that the API server knows. May be "
        "repeated.",
    ),
]
DemandAgentNamespace = Annotated[
    str, typer.Option(metavar="NAME", help="The namespace of the flow agents.")
]
DemandMeasureOption = Annotated[
    MeasureChoice, typer.Option(help="What counts of the flows that agents report.")
]
DemandPrometheusUrl = Annotated[
    str, typer.Option(metavar="URL", help="The Prometheus to ask, http://HOST:PORT.")
]
DemandQueryOption = Annotated[
    str,
    typer.Option(
        metavar="QUERY",
        help="flows, proxy, istio, linkerd or hubble, or a query of PromQL for rates.",
    ),
]
DemandLabels = Annotated[
    str,
    typer.Option(
        metavar="FIELD=LABEL,...",
        help="Labels of the answer that are not named namespace, service, zone and node.",
    ),
]
DemandTokenFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="A file with the bearer token for Prometheus, read for each question; needs https.",
    ),
]
DemandCaFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="The authorities, in PEM, that the certificate of Prometheus must come from; default: "
        "those of the system.",
    ),
]
DemandFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="CSV with the columns namespace,service,zone,rate, or JSON; read again when it "
        "changes.",
    ),
]
DemandPeriod = Annotated[
    str, typer.Option(metavar="DURATION", help="How often the source of demand is read.")
]
DemandHalfLife = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="After this time, half of a change of rates is smoothed in."
    ),
]
DemandDeadBand = Annotated[
    str,
    typer.Option(
        metavar="PART",
        help="Shares change only if that of a zone differs by more, as a part of all traffic, "
        "such as 0.05 or 5%.",
    ),
]
DemandInterval = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="The least time between two changes of the shares of a Service."
    ),
]
DemandStaleAfter = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="After this time without a measurement, the CPU of nodes counts."
    ),
]
DemandLeastRate = Annotated[
    float | None,
    typer.Option(
        metavar="RATE",
        help="Below this total rate a second, the CPU of nodes counts; default: 1, 10000 with "
        "bytes, and 0 with a file.",
    ),
]


def read_demand(
    choice: DemandChoice,
    *,
    flows: list[str],
    agent_namespace: str,
    measure: MeasureChoice,
    prometheus_url: str,
    query: str,
    labels: str,
    token_file: str,
    ca_file: str,
    file: str,
    period: str,
    half_life: str,
    dead_band: str,
    interval: str,
    stale_after: str,
    least_rate: float | None,
    gates: FeatureGates,
) -> DemandOptions | None:
    """Return the options; None without --demand. A value that cannot work ends the command."""
    _check_effect(
        choice,
        {
            "--demand-flows": (DemandChoice.FLOWS, bool(flows)),
            "--demand-agent-namespace": (DemandChoice.FLOWS, agent_namespace != AGENT_NAMESPACE),
            "--demand-measure": (DemandChoice.FLOWS, measure is not MeasureChoice.CONNECTIONS),
            "--demand-prometheus-url": (DemandChoice.PROMETHEUS, bool(prometheus_url)),
            "--demand-query": (DemandChoice.PROMETHEUS, query != "flows"),
            "--demand-labels": (DemandChoice.PROMETHEUS, bool(labels)),
            "--demand-token-file": (DemandChoice.PROMETHEUS, bool(token_file)),
            "--demand-ca-file": (DemandChoice.PROMETHEUS, bool(ca_file)),
            "--demand-file": (DemandChoice.FILE, bool(file)),
        },
    )
    if choice is DemandChoice.NONE:
        return None
    from keepclose.demand.settings import (
        DemandMeasure,
        DemandOptions,
        DemandOrigin,
        default_least_rate,
        demand_errors,
    )
    from keepclose.model.gates import Gate
    from keepclose.routing.demand import DemandSettings

    origin, measured = DemandOrigin(choice.value), DemandMeasure(measure.value)
    default_rate = default_least_rate(origin, measured)
    options = DemandOptions(
        origin=origin,
        use=DemandSettings(
            half_life_s=read_duration("--demand-half-life", half_life),
            dead_band=_read_dead_band(dead_band),
            interval_s=read_duration("--demand-interval", interval),
            stale_after_s=read_duration("--demand-stale-after", stale_after),
            least_rate=default_rate if least_rate is None else least_rate,
        ),
        period_s=read_duration("--demand-period", period),
        measure=measured,
        agents=tuple(flows),
        agent_namespace=agent_namespace,
        prometheus_url=prometheus_url.removeprefix("prometheus+"),
        query=query,
        labels=_read_labels(labels),
        token_file=token_file,
        ca_file=ca_file,
        file=file,
    )
    errors = demand_errors(options)
    if errors:
        fail("; ".join(errors))
    if not gates.on(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS):
        gate = Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS.value
        fail(f"--demand has an effect on heuristics alone; add --feature-gates={gate}=true")
    return options


def _read_dead_band(text: str) -> float:
    from keepclose.routing.balanced import parse_part

    part = parse_part(text)
    if part < 0.0:
        fail(f"--demand-dead-band: {text!r} must be a part such as 0.05 or 5%")
    return part


def _check_effect(choice: DemandChoice, given: dict[str, tuple[DemandChoice, bool]]) -> None:
    """End the command for an option that has no effect with the chosen source."""
    for option, (needed, is_given) in given.items():
        if is_given and choice is not needed:
            fail(f"{option} needs --demand={needed.value}")


def _read_labels(text: str) -> dict[str, str]:
    labels = {}
    for part in filter(None, text.split(",")):
        field, equals, label = part.partition("=")
        if not equals:
            fail(f"--demand-labels: {part!r} must be FIELD=LABEL")
        labels[field.strip()] = label.strip()
    return labels
