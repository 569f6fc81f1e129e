"""The controller beside a real kube-apiserver against what the real one decided when recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import real_control_plane

from keepclose.kube.connection import connect
from keepclose.kube.incluster import load_settings
from recordings import CLUSTERS
from replaying import CLOCK, SERVICE_RANGES, replay


@pytest.mark.parametrize("number", range(len(CLUSTERS)))
async def test_live_changes_lead_to_the_recorded_slices(number: int, tmp_path: Path) -> None:
    """Each step, written as changes of pods and Services, gives the slices that were recorded."""
    cluster = CLUSTERS[number]
    ranges = f"--service-cluster-ip-range={','.join(SERVICE_RANGES)}"
    with real_control_plane(tmp_path, ranges) as plane:
        async with connect(load_settings(plane.kubeconfig, env={}), clock=CLOCK) as client:
            agreed = await replay(client, plane.kubeconfig, cluster)
    assert agreed == sum(len(service["steps"]) for service in cluster["services"])
