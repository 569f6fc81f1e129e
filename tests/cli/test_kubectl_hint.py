"""What `keepclose up` says where there is no kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.cli.up import _kubectl_hint


def test_how_to_get_kubectl_is_told_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is a comment behind the command, and is gone once kubectl is there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _kubectl_hint() == (
        "  # kubectl: apt-get install kubernetes-client, or https://kubernetes.io/docs/tasks/tools"
    )
    kubectl = tmp_path / "kubectl"
    kubectl.touch(mode=0o755)
    assert _kubectl_hint() == ""
