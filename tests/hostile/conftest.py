"""Settings for the tests of hostile input."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """Let no garbage collection count as the cost of an input.

    A full collection visits what all other tests of this process have left.
    """
    gc.disable()
    yield
    gc.enable()
