"""A server of its own for every test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.testing.api_server import Served, serving


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory, with the defaults."""
    async with serving(tmp_path / "data") as served:
        yield served
