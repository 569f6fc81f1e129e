"""keepclose as a plugin of the real kubectl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from keepclose import __version__
from support.real.programs import program


def run_kubectl(*arguments: str) -> str:
    """Run kubectl where it finds our scripts, and return what it prints."""
    done = subprocess.run(
        [program("kubectl"), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/nonexistent"},
    )
    return done.stdout


def test_the_plugin_runs() -> None:
    """`kubectl keepclose` is keepclose, and calls itself so."""
    assert run_kubectl("keepclose", "--version") == f"keepclose {__version__}\n"
    assert run_kubectl("keepclose", "proxy", "-h").startswith("Usage: kubectl keepclose proxy ")


def test_kubectl_lists_it() -> None:
    """The plugin is found by its name."""
    assert "kubectl-keepclose" in run_kubectl("plugin", "list")


def test_kubectl_completes_it() -> None:
    """The words of the plugin are completed by kubectl's own completion."""
    answer = run_kubectl("__complete", "keepclose", "proxy", "--writer", "lib")
    assert answer.splitlines()[:2] == ["libnftables", ":4"]
