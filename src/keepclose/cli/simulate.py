"""`keepclose simulate`: scores allocators of endpoints to zones, over many inputs or over time.

Declares the options of all commands but `churn`. Other modules parse them, run the algorithms,
write files and render the results.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from keepclose.cli.churn.command import SimulationSeed, churn
from keepclose.cli.exit import fail
from keepclose.cli.render.output import TableOrJson, echo_json, say

app = typer.Typer(
    name="simulate",
    # Plain help: drawing boxes costs half of the time that --help may take.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class SimulationOutput(StrEnum):
    """Output formats of a simulation."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


class SliceModel(StrEnum):
    """How slices are counted: with slices of their own for each zone, or with hints."""

    KEP = "kep"
    HINTS = "hints"


Dataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Inputs by name: kep2004-small (default), kep2004-large, kep2004-4zones, "
        "kep2004-5zones, random, random-skewed, random-many-zones, random-empty-zones.",
    ),
]
InputFile = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="FILE.csv",
        help='Inputs from a file: name,<zone>,... and cells "<nodes> <endpoints>"; - is standard '
        "input.",
    ),
]
SimulatedStartingThreshold = Annotated[
    float | None,
    typer.Option(metavar="N", help="Endpoints per zone at which local begins to divide."),
]
SimulatedOverloadThreshold = Annotated[
    float | None, typer.Option(metavar="X", help="Overload to keep below; 0.5 is 50 %.")
]
WeightList = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="IN,MAX,MEAN,SLICES",
        help="Weights of in-zone traffic, overload of the busiest, mean deviation and slices in "
        "the total; default: 0.45,0.20,0.20,0.15 as in KEP-2004.",
    ),
]
SliceModelChoice = Annotated[
    SliceModel | None,
    typer.Option(
        help="Count slices for each zone (kep) or hints on ordinary slices (hints); default: the "
        "model of each algorithm.",
    ),
]
SampleSize = Annotated[
    int | None, typer.Option("--sample", metavar="N", help="Use only N inputs, drawn evenly.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip bad rows of the file.")]


@app.callback(invoke_without_command=True)
def simulate(
    ctx: typer.Context,
    *,
    dataset: Dataset = None,
    input_file: InputFile = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An algorithm, all (default) or published, the seven of KEP-2004; may be "
            "repeated.",
        ),
    ] = None,
    starting_threshold: SimulatedStartingThreshold = None,
    overload_threshold: SimulatedOverloadThreshold = None,
    weights: WeightList = None,
    slice_model: SliceModelChoice = None,
    sample: SampleSize = None,
    seed: SimulationSeed = 0,
    output_file: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE.csv",
            help="Write the results of every input; with several algorithms a file for each, "
            "FILE-<algorithm>.csv.",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on the workers of a Dask scheduler, tcp://HOST:8786, or tls://HOST:8786 with "
            "the certificates that Dask's configuration names; default: in this process.",
        ),
    ] = None,
    scheduler_timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Give up when no scheduler answers, or none of its workers is there, for so "
            "long; a first connection is tried for 10s at most.",
        ),
    ] = "60s",
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE.html", help="Write a page with charts, and churn too."),
    ] = None,
    output: Annotated[
        SimulationOutput, typer.Option("-o", help="Output format.")
    ] = SimulationOutput.TABLE,
) -> None:
    """Show what allocators do to traffic.

    In-zone share, overload, slices and a score. Exit codes: 0 fine, 2 bad input, 3 no inputs,
    4 no scheduler or workers.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_misplaced(ctx)
        return
    import time

    from keepclose.cli.simulate_options import (
        choose_algorithms,
        choose_scheduler,
        open_data,
        parse_weights,
    )
    from keepclose.cli.simulate_runs import (
        make_report,
        name_outputs,
        refuse_overwriting,
        run_algorithms,
        write_report,
    )

    if output_file is not None and output_file == input_file:
        fail("--output would overwrite the file of --input")
    cluster = choose_scheduler(
        scheduler, scheduler_timeout, input_file=input_file, output_file=output_file
    )
    scored = parse_weights(weights)
    choices = choose_algorithms(
        algorithm or ["all"],
        start=starting_threshold,
        threshold=overload_threshold,
        slice_model=slice_model and slice_model.value,
    )
    outputs = name_outputs(output_file, choices)
    refuse_overwriting(input_file, outputs, report)
    began = time.perf_counter()
    data = open_data(dataset, input_file, sample=sample, seed=seed, skip_bad=skip_bad)
    summaries = run_algorithms(data, choices, scored, outputs=outputs, scheduler=cluster)
    seconds = time.perf_counter() - began
    if report is not None or output is SimulationOutput.HTML:
        page = make_report(data, choices, summaries, scored, seconds=seconds, seed=seed)
        write_report(page, report, to_stdout=output is SimulationOutput.HTML)
    if output is SimulationOutput.JSON:
        from keepclose.cli.render.simulate import simulated_document

        echo_json(simulated_document(choices, summaries, data, seconds))
    elif output is SimulationOutput.TABLE:
        from keepclose.cli.render.screen import Screen
        from keepclose.cli.render.simulate import print_summaries

        console = Screen()
        print_summaries(console, choices, summaries, dataset=data, seconds=seconds)


@app.command()
def compare(
    *,
    first: Annotated[str, typer.Argument(metavar="A", help="An algorithm.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    dataset: Dataset = None,
    input_file: InputFile = None,
    starting_threshold: SimulatedStartingThreshold = None,
    overload_threshold: SimulatedOverloadThreshold = None,
    weights: WeightList = None,
    slice_model: SliceModelChoice = None,
    sample: SampleSize = None,
    seed: SimulationSeed = 0,
    skip_bad: SkipBad = False,
    examples: Annotated[
        int, typer.Option(metavar="N", help="How many inputs to show for each side.")
    ] = 5,
    write: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the examples as manifests for keepclose resolve."),
    ] = None,
    output: Annotated[TableOrJson, typer.Option("-o", help="Output format.")] = (TableOrJson.TABLE),
) -> None:
    """Show where two algorithms differ and why.

    Shows the clearest inputs for either side. Exit codes: 0 fine, 2 bad input, 3 no inputs.
    """
    from keepclose.cli.render.progress import shown_progress
    from keepclose.cli.simulate_options import choose_algorithms, open_data, parse_weights
    from keepclose.simulate.comparison import compare as compare_algorithms

    if examples < 1:
        fail(f"--examples: {examples} is no number of examples")
    scored = parse_weights(weights)
    pair = [
        choose_algorithms(
            [name],
            start=starting_threshold,
            threshold=overload_threshold,
            slice_model=slice_model and slice_model.value,
        )[0].algorithm
        for name in (first, second)
    ]
    data = open_data(dataset, input_file, sample=sample, seed=seed, skip_bad=skip_bad)
    with shown_progress(data.rows, "inputs") as advance:
        answer = compare_algorithms(
            data, *pair, weights=scored, examples=examples, progress=advance
        )
    commands: list[str] = []
    if write is not None:
        from pathlib import Path

        from keepclose.cli.simulate_runs import write_examples

        try:
            commands = write_examples(Path(write), answer)
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(f"{error.filename or write} cannot be written: {error.strerror}")
    if output is TableOrJson.JSON:
        from keepclose.cli.render.simulate import compared_document

        echo_json(compared_document(answer, pair))
        return
    from keepclose.cli.render.screen import Screen
    from keepclose.cli.render.simulate import print_comparison

    print_comparison(Screen(), answer, pair)
    if commands:
        say("", *commands)


app.command()(churn)


@app.command()
def few(
    *,
    endpoints: Annotated[
        int, typer.Option(metavar="N", help="Numbers of endpoints from 2 to this one, at most 12.")
    ] = 8,
    output: Annotated[TableOrJson, typer.Option("-o", help="Output format.")] = (TableOrJson.TABLE),
) -> None:
    """Show the scores with few endpoints.

    Every placement of 2, 3, ... endpoints in three zones, with six divisions of the traffic. Exit
    codes: 0 fine, 2 bad input.
    """
    from keepclose.simulate.few_endpoints import MOST_ENDPOINTS, compare_few

    if not 2 <= endpoints <= MOST_ENDPOINTS:
        fail(f"--endpoints: {endpoints} is not between 2 and {MOST_ENDPOINTS}")
    rows = tuple(compare_few(2, endpoints))
    if output is TableOrJson.JSON:
        echo_json(rows)
        return
    from keepclose.cli.render.churn import print_few
    from keepclose.cli.render.screen import Screen

    print_few(Screen(), rows)


def _refuse_misplaced(ctx: typer.Context) -> None:
    """End the command when options of simulate itself precede a subcommand."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option, command = parameter.opts[0], ctx.invoked_subcommand
            fail(
                f"{option} precedes {command}, where it has no effect",
                f"keepclose simulate {command} ... {option} ...",
            )
