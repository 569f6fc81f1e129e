"""A cluster for the time of one command."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest

from keepclose.lab.cluster.launch import TemporaryError, temporary_cluster


def test_what_keeps_a_cluster_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's own words are the reason, its code is passed on, and nothing is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(TemporaryError) as caught,
        temporary_cluster("--zones", "0", on_line=lambda _line: None),
    ):
        pytest.fail("there is no cluster without zones")
    assert str(caught.value) == "no cluster could be started: --zones must be at least 1"
    assert caught.value.code == 2
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before
