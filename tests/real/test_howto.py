"""What the pages tell people to type works."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.real.embedded import embedded_server
from support.real.programs import program

ROOT = Path(__file__).parent.parent.parent


def test_the_page_about_the_api_server(tmp_path: Path) -> None:
    """Each command of the first example runs against a server started as the page says."""
    page = (ROOT / "docs" / "howto" / "apiserver.md").read_text()
    start, commands, *_ = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert start.startswith(".venv/bin/keepclose apiserver --data-dir ~/cluster --port")
    script = commands.replace("~/cluster", str(tmp_path / "cluster"))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "kubectl").symlink_to(program("kubectl"))
    with embedded_server(tmp_path / "cluster"):
        done = subprocess.run(
            ["bash", "-euc", script],
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(tmp_path), "PATH": f"{binaries}:/usr/bin:/bin"},
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("PreferSameZone")


def test_the_roles_on_the_page_have_kubeconfigs(tmp_path: Path) -> None:
    """Every file that the page names is there, and readable by its owner alone."""
    page = (ROOT / "docs" / "howto" / "apiserver.md").read_text()
    names = set(re.findall(r"`((?:[a-z]+\.)?kubeconfig|store\.db)`", page))
    assert len(names) == 5
    with embedded_server(tmp_path / "cluster") as server:
        for name in names:
            mode = (server.directory / name).stat().st_mode
            assert mode & 0o077 == 0, name
