"""State files are opened, written, removed and signalled from in one place that checks them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "keepclose"
PLACES = sorted(
    [
        *(SOURCE / "lab" / "cluster").glob("*.py"),
        *(SOURCE / "apiserver" / "auth").glob("*.py"),
        SOURCE / "system" / "private_files.py",
        SOURCE / "cli" / "up.py",
    ]
)
# Methods of paths and functions of os that go by a name which another user may have exchanged.
BY_NAME = frozenset(
    [
        "chmod",
        "hardlink_to",
        "mkdir",
        "mkfifo",
        "read_bytes",
        "read_text",
        "rename",
        "rmdir",
        "symlink_to",
        "touch",
        "truncate",
        "unlink",
        "write_bytes",
        "write_text",
    ]
)
# What goes by a name all the same, and why it may.
KEPT = {
    ("lab/cluster/data_dir.py", "read_text"): "/proc of a process",
    ("lab/cluster/data_dir.py", "rmdir"): "removes a directory only when it is empty",
    ("lab/cluster/data_dir.py", "truncate"): "of the open lock",
    ("lab/cluster/handlers.py", "read_text"): "/proc of this process",
    ("system/private_files.py", "mkdir"): "is looked at when it is there",
    ("system/private_files.py", "read_text"): "/proc of this process",
    ("system/private_files.py", "rename"): "relative to the open directory",
    ("system/private_files.py", "unlink"): "relative to the open directory",
    ("cli/up.py", "read_bytes"): "a manifest that the user names",
    ("cli/up.py", "read_text"): "a file of the package",
}


@pytest.mark.parametrize("path", PLACES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_goes_by_name(path: Path) -> None:
    """No module handles a state file by its path, and none signals a process by its number."""
    name = str(path.relative_to(SOURCE))
    calls = [
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert {call for call in calls if call in BY_NAME and (name, call) not in KEPT} == set()
    # These signal children of their own, which have not been waited for.
    if name not in ("lab/cluster/fork_server.py", "lab/cluster/launch.py"):
        assert not {"kill", "killpg"} & set(calls)
