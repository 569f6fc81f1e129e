"""`keepclose controller` as a process, as a user starts it, for tests that must see it end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from keepclose.testing.api_server import PATIENCE


@asynccontextmanager
async def controller_process(
    kubeconfig: Path, *flags: str, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a controller for the time of the block; whatever runs then is killed."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "keepclose", "controller", "--kubeconfig", str(kubeconfig)),
            *("--metrics-address", "none", *flags),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
