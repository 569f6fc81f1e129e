"""The controller beside our API server against what the real one decided on recorded clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.apiserver.strategies.registry import AllocationSettings
from keepclose.kube.connection import connect
from keepclose.kube.incluster import load_settings
from keepclose.testing.apiservers import serving
from recordings import CLUSTERS
from replaying import CLOCK, SERVICE_RANGES, replay


@pytest.mark.parametrize(
    "starts_anew",
    [
        pytest.param(False, id="one controller all the time"),
        pytest.param(True, id="a new controller for each step", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("number", range(len(CLUSTERS)))
async def test_live_changes_lead_to_the_recorded_slices(
    number: int, starts_anew: bool, tmp_path: Path
) -> None:
    """Each step, written as changes of pods and Services, gives the slices that were recorded."""
    cluster = CLUSTERS[number]
    allocation = AllocationSettings(service_cidrs=SERVICE_RANGES)
    async with (
        serving(tmp_path, allocation=allocation),
        connect(load_settings(tmp_path / "kubeconfig", env={}), clock=CLOCK) as client,
    ):
        controllers = tmp_path / "controller.kubeconfig"
        agreed = await replay(client, controllers, cluster, starts_anew=starts_anew)
    assert agreed == sum(len(service["steps"]) for service in cluster["services"])
