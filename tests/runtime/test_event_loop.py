"""The event loop of long-running commands."""

from __future__ import annotations

import subprocess
import sys

import uvloop

from keepclose.runtime.program import find_loop_factory


def test_the_quicker_loop_is_taken() -> None:
    """Where uvloop is installed it is used."""
    assert find_loop_factory() is uvloop.new_event_loop


def test_asyncio_will_do() -> None:
    """Without uvloop the loop is asyncio's own."""
    script = (
        "import sys; sys.modules['uvloop'] = None\n"
        "from keepclose.runtime.program import find_loop_factory; print(find_loop_factory())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"
