"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# So that their assertions say what differs, as those in tests do.
pytest.register_assert_rewrite("packetflows", "recordings", "replaying", "sights", "traffic")

# Random examples find new mistakes on a developer's machine. Where a change is judged, the same
# change must get the same verdict every time, so the examples there follow from the test alone.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests beside real Kubernetes components, which not every machine can run."""
    real = Path(__file__).parent / "real"
    for item in items:
        if real in item.path.parents:
            item.add_marker(pytest.mark.real)
