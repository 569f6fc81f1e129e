"""Settings for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

# So that their assertions say what differs, as those in tests do.
pytest.register_assert_rewrite("support")

# Random examples find new mistakes on a developer's machine. Where a change is judged, the same
# change must get the same verdict every time, so the examples there follow from the test alone.
#
# NB: how long examples take to make says more about who else uses the machine than about a test.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", _PATIENT)
settings.register_profile("ci", _PATIENT, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests beside real Kubernetes components, which not every machine can run."""
    real = Path(__file__).parent / "real"
    for item in items:
        if real in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """Leave logs and traces to the next test as they were; commands in this process set them."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        # NB: a logger that was used meanwhile keeps what was set, unless it forgets it.
        for name, module in list(sys.modules.items()):
            if name.startswith("keepclose.") and hasattr(module, "_log"):
                vars(module._log).pop("bind", None)
    if hasattr(sys, "tracebacklimit"):
        del sys.tracebacklimit
