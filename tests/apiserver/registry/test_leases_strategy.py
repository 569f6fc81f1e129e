"""Writing leases."""

from __future__ import annotations

import pytest

from support.kinds import Kinds, raw


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def test_leases_are_checked(kinds: Kinds) -> None:
    """A lease lasts, and elections that are switched off leave no trace."""
    spec = {"leaseDurationSeconds": 0, "leaseTransitions": -1, "strategy": "x"}
    got = kinds.write(raw("Lease", spec=spec))
    assert got.causes == [
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
    ]
    assert "strategy" not in got.object["spec"]
    assert kinds.write(raw("Lease")).causes == []
    assert kinds.strategies["leases.coordination.k8s.io"].allows_unconditional_update is False
