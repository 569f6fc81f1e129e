"""`keepclose cost`: what traffic between zones costs, by Service, namespace, zones or client.

Multiplies the bytes of flows with a price table, which the user edits; presets of providers are a
start. It says which period was observed, what was extrapolated from it and what has no price.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.flow_sources import NO_CLUSTER, FlowSources, read_flow_tables
from keepclose.cli.options import (
    AGENT_NAMESPACE,
    AgentNamespace,
    ChosenCluster,
    Kubeconfig,
    KubeContext,
    choose_cluster,
    read_duration,
)
from keepclose.cli.render.output import echo_document, echo_json, say

if TYPE_CHECKING:
    from keepclose.accounting.flow_table import FlowTable
    from keepclose.accounting.prices import PriceTable


class CostBy(StrEnum):
    """What costs are summed by."""

    SERVICE = "service"
    NAMESPACE = "namespace"
    ZONES = "zones"
    CLIENT = "client"


class CostFormat(StrEnum):
    """Output formats of costs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def cost(
    *,
    flows: FlowSources = [],  # noqa: B006 - typer copies it
    prices: Annotated[
        str,
        typer.Option(
            metavar="FILE|aws|gcp|azure",
            help="The price table: a YAML or JSON file, or the preset of a provider.",
        ),
    ] = "",
    by: Annotated[CostBy, typer.Option(help="What costs are summed by.")] = CostBy.SERVICE,
    period: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="The period of the flows, if they do not say it: 24h."
        ),
    ] = "",
    print_prices: Annotated[
        str,
        typer.Option(
            metavar="aws|gcp|azure", help="Print the price table of a provider, to edit it."
        ),
    ] = "",
    output: Annotated[
        CostFormat, typer.Option("-o", "--output", help="Output format.")
    ] = CostFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    agent_namespace: AgentNamespace = AGENT_NAMESPACE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Show what traffic between zones costs.

    The flows are those that --flows names, else those of all agents of the cluster. Bytes of each
    direction times a price table that you edit; an hour, a month and a year are extrapolated from
    the period of the flows. Exit codes: 0 fine, 2 bad input, 3 no flows, 4 a source does not
    answer.
    """
    from keepclose.accounting.cost import CostError, CostGrouping, price_flows
    from keepclose.cli.render.flow_reports import cost_document, print_costs, write_cost_csv

    if print_prices:
        echo_document(_preset(print_prices))
        return
    if not prices:
        fail(
            "no prices are named",
            "--prices aws, gcp or azure, or a file: "
            "keepclose cost --print-prices aws > prices.yaml",
        )
    price_table = read_price_table(prices)
    if flows and (kubeconfig or context):
        fail("--flows: name sources or a cluster, not both")
    if flows:
        tables = read_flow_tables(flows)
    else:
        cluster = choose_cluster(kubeconfig, context, data_dir, other=NO_CLUSTER)
        tables = _read_agents(cluster, agent_namespace)
    if period:
        set_flow_period(tables, read_duration("--period", period))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    try:
        report = price_flows(tables, price_table, by=CostGrouping(by.value))
    except CostError as error:
        fail(
            str(error),
            *notes,
            "switch byte counting on (keepclose flows --enable-accounting), or name flows with "
            "bytes",
        )
    if not any(table.rows for table in tables):
        fail("the flows are empty", *notes, code=ExitCode.NOTHING)
    match output:
        case CostFormat.TABLE:
            print_costs(report, price_table, name=prices)
        case CostFormat.JSON:
            echo_json(cost_document(report, price_table, name=prices))
        case CostFormat.CSV:
            echo_document(write_cost_csv(report))


def _read_agents(cluster: ChosenCluster, namespace: str) -> list[FlowTable]:
    from keepclose.cli.flows_top import fail_unread, read_agents

    readings = read_agents(cluster, namespace)
    if not readings.tables:
        fail_unread(readings)
    agents = "agent" if len(readings.tables) == 1 else "agents"
    say(
        f"flows: {len(readings.tables):,} {agents} of {cluster.name}",
        *(f"note: {note}" for note in readings.notes),
        *(
            f"warning: {name}: {why}, so its flows are missing"
            for name, why in readings.errors.items()
        ),
        err=True,
    )
    return [*readings.tables.values()]


def _preset(name: str) -> str:
    from keepclose.accounting.prices import PRESETS

    text = PRESETS.get(name.lower())
    if text is None:
        fail(f"--print-prices: {name!r} is none of {', '.join(PRESETS)}")
    return text


def read_price_table(name: str) -> PriceTable:
    """Return a preset or the table of a file; YAML includes JSON."""
    from keepclose.accounting.prices import PRESETS, PriceError, read_prices
    from keepclose.cli.manifests.yaml_tree import Unreadable, build_value, compose_tree
    from keepclose.system.files import MAX_SETTINGS_BYTES, InputError, read_input

    text = PRESETS.get(name.lower())
    if text is None:
        try:
            text = read_input(name, most=MAX_SETTINGS_BYTES).decode()
        except InputError as error:
            known = f"presets: {', '.join(PRESETS)}"
            fail(f"--prices {name} cannot be read: {error}", error.fix or known)
        except UnicodeError:
            fail(f"{name} is no text in UTF-8")
    tree = compose_tree(text)
    value = build_value(tree) if tree is not None and not isinstance(tree, Unreadable) else tree
    if isinstance(value, Unreadable):
        fail(f"{name}, line {value.line + 1}: {value.message}", value.fix)
    try:
        return read_prices(value, name=name)
    except PriceError as error:
        fail(str(error), "see a complete one with: keepclose cost --print-prices aws")


def set_flow_period(tables: list[FlowTable], seconds: float) -> None:
    """Let all tables be of the same period, of this length."""
    if seconds <= 0:
        fail("--period: it must be longer than 0")
    known = [table for table in tables if table.seconds]
    if known:
        known[0].notes.append("--period replaces the period that the flows name")
    end = max((table.end for table in tables), default=0.0) or seconds
    for table in tables:
        table.start, table.end = end - seconds, end
