"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Random examples find new mistakes on a developer's machine. Where a change is judged, the same
# change must get the same verdict every time, so the examples there follow from the test alone.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
