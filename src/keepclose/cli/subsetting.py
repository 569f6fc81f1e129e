"""Options of subsetting that the controller and resolve share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keepclose.cli.choices import DefaultSubsetting
from keepclose.cli.exit import fail

if TYPE_CHECKING:
    from keepclose.routing.subsets import SubsetOptions

StartingThreshold = Annotated[
    float,
    typer.Option(
        metavar="N",
        help="Endpoints per zone at which a Service that prefers its zones is divided.",
    ),
]
Padding = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="How many endpoints above that number the division begins, and below it ends.",
    ),
]
OverloadThreshold = Annotated[
    float,
    typer.Option(
        metavar="PART",
        help="The overload that no zone may reach when it is divided; 0.5 is one half more.",
    ),
]


def read_subsets(
    default: DefaultSubsetting,
    *,
    starting_threshold: float,
    padding: int,
    overload_threshold: float,
) -> SubsetOptions:
    """Return the options of subsetting; ends the command with 2 where they cannot be."""
    from keepclose.routing.subsets import LEAST_LIMIT, MOST_LIMIT, Approach, SubsetOptions

    for option, number in (
        ("--subsetting-starting-threshold", starting_threshold),
        ("--subsetting-overload-threshold", overload_threshold),
    ):
        if not LEAST_LIMIT <= number <= MOST_LIMIT:
            fail(f"{option}: {number:g} must be a number above 0")
    if not 0 <= padding <= MOST_LIMIT:
        fail(f"--subsetting-padding: {padding} must be a whole number of at least 0")
    return SubsetOptions(
        default=Approach(default.value),
        start_per_zone=starting_threshold,
        padding=padding,
        overload_threshold=overload_threshold,
    )
