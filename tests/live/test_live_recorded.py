"""The controller against what the one of Kubernetes decided on recorded clusters, change by change.

It runs beside both makes of API server, so that neither the client nor the server hides anything.
"""

from __future__ import annotations

import pytest

from support.controllers import World
from support.recorded_replay import replay
from support.recordings import CLUSTERS

STARTS = [
    pytest.param(number, marks=[] if number == 0 else [pytest.mark.embedded])
    for number in range(len(CLUSTERS))
]


@pytest.mark.parametrize("number", range(len(CLUSTERS)))
async def test_live_changes_lead_to_the_recorded_slices(number: int, cluster: World) -> None:
    """Each step, written as changes of pods and Services, gives the slices that were recorded."""
    recorded = CLUSTERS[number]
    agreed = await replay(cluster, recorded)
    assert agreed == sum(len(service["steps"]) for service in recorded["services"])


@pytest.mark.slow
@pytest.mark.parametrize("number", STARTS)
async def test_a_new_controller_for_each_step_goes_on_from_what_it_finds(
    number: int, cluster: World
) -> None:
    """A controller that starts after the changes gives the recorded slices too."""
    recorded = CLUSTERS[number]
    agreed = await replay(cluster, recorded, starts_anew=True)
    assert agreed == sum(len(service["steps"]) for service in recorded["services"])
