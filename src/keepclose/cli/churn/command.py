"""The command `keepclose simulate churn`: its options, and its scenarios of pods and nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from keepclose.cli.exit import fail
from keepclose.cli.render.output import TableOrJson, echo_json, say

SimulationSeed = Annotated[int, typer.Option(metavar="S", help="Seed of all random draws.")]
TraceDuration = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Simulated time of a trace; default: 24h for day, the file's own, else 30m.",
    ),
]
TraceStep = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Length of a step; default: 60s for day, else 15s."),
]
TraceHalfLife = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Half-life of measured rates; default: the controller's."),
]
TraceDeadBand = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        help="Differences of shares that change nothing, such as 0.05 or 5%; default: the "
        "controller's.",
    ),
]
TraceInterval = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Least time between changes of shares; default: the controller's."
    ),
]
OscillationWindow = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="An endpoint oscillates that serves zones again within this time; default: 5m.",
    ),
]


def churn(
    *,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What happens to pods and nodes: autoscaling, rolling-updates, zone-outages, "
            "node-outages, mixed or all (default); may be repeated.",
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A mechanism or all (default), such as same-zone, auto and balanced, or with "
            "--trace same-zone, auto, balanced-cpu, balanced-demand, weights and limit; a wrong "
            "name lists them; may be repeated.",
        ),
    ] = None,
    endpoints: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Endpoints at the start; default: the scenario's, or 9 with --trace."
        ),
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE.csv",
            help="Demand over time in place of a scenario: day, flash-crowd, zone-loss, "
            "random-walk, step or all of these, or a file with the columns time,<zone>,...; - is "
            "standard input; may be repeated.",
        ),
    ] = None,
    duration: TraceDuration = None,
    step: TraceStep = None,
    zones: Annotated[
        int | None,
        typer.Option(metavar="N", help="Zones of a trace, 2 to 12; default: 3."),
    ] = None,
    half_life: TraceHalfLife = None,
    dead_band: TraceDeadBand = None,
    interval: TraceInterval = None,
    window: OscillationWindow = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE.html", help="Write a page with charts of the traces."),
    ] = None,
    seed: SimulationSeed = 0,
    output: Annotated[TableOrJson, typer.Option("-o", help="Output format.")] = (TableOrJson.TABLE),
) -> None:
    """Show what mechanisms cost over time.

    Without --trace pods and nodes come and go in scenarios: endpoints re-hinted, slices written,
    time in Random. With --trace demand changes while pods stay: overload, in-zone share,
    oscillation. The controller's planner plans every step. Exit codes: 0 fine, 2 bad input.

    A trace is the demand of each zone over simulated time. Five have names; your own is a CSV file
    with a column time (seconds, or 90s, 2h) and one for each zone, whose cells are requests a
    second, or anything in proportion, as in examples/demand.csv of the repository;
    docs/howto/traces.md plays it.

    \b
    keepclose simulate churn --trace step
    keepclose simulate churn --trace examples/demand.csv --report page.html
    keepclose simulate churn --scenario autoscaling --mechanism balanced
    """  # noqa: D301 - the mark that keeps lines
    if trace is not None:
        from keepclose.cli.churn.traces import TraceChoices, run_traces

        if scenario is not None:
            fail("--scenario and --trace exclude each other")
        choices = TraceChoices(
            traces=trace,
            mechanisms=mechanism,
            duration=duration,
            step=step,
            zones=zones,
            endpoints=endpoints,
            half_life=half_life,
            dead_band=dead_band,
            interval=interval,
            window=window,
            report=report,
            seed=seed,
        )
        run_traces(choices, output)
        return
    for option, value in (
        ("--duration", duration),
        ("--step", step),
        ("--zones", zones),
        ("--half-life", half_life),
        ("--dead-band", dead_band),
        ("--interval", interval),
        ("--window", window),
        ("--report", report),
    ):
        if value is not None:
            fail(f"{option} has an effect on traces only", "name one with --trace, such as day")

    from msgspec.structs import replace

    from keepclose.cli.simulate_options import pick_names
    from keepclose.simulate.churn import compare_churn
    from keepclose.simulate.mechanisms import MECHANISMS, SCENARIOS

    if endpoints is not None and not 0 <= endpoints <= 10_000:
        fail(f"--endpoints: {endpoints} is not between 0 and 10,000")
    mechanisms = [
        MECHANISMS[name] for name in pick_names("mechanism", mechanism, tuple(MECHANISMS))
    ]
    results = []
    for name in pick_names("scenario", scenario, tuple(SCENARIOS)):
        scene = SCENARIOS[name]
        if endpoints is not None:
            scene = replace(scene, endpoints=endpoints)
        results.append((scene, compare_churn(mechanisms, scene, seed)))
    if output is TableOrJson.JSON:
        from keepclose.cli.render.churn import churn_document

        echo_json(churn_document(results, seed))
        return
    from keepclose.cli.render.churn import explain_churn, print_churn
    from keepclose.cli.render.screen import Screen

    console = Screen()
    for number, (scene, churns) in enumerate(results):
        if number:
            console.print()
        print_churn(console, scene, churns)
    say("", *explain_churn(results[0][1]))
