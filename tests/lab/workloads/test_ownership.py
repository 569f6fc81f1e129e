"""Who belongs to a workload."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.lab.workloads.expectations import Claims, sort_claims
from support.lab.labobjects import a_pod, a_replica_set, stamp


def test_claims() -> None:
    """What is selected stays or is adopted; what is not is let go or left alone."""
    mine, strayed = a_pod("mine", owner="rs"), a_pod("strayed", owner="rs", labels={})
    orphan, stranger = a_pod("orphan"), a_pod("stranger", labels={})
    going = a_pod("going", terminating=True)
    found = sort_claims(a_replica_set("rs", 1), [mine, strayed], [orphan, stranger, going])
    assert found == Claims([mine], [orphan], [strayed])


def test_a_workload_on_its_way_out_claims_nothing() -> None:
    """It neither adopts nor lets go."""
    whole = a_replica_set("rs", 1)
    gone = replace(whole, metadata=replace(whole.metadata, deletion_timestamp=stamp()))
    strayed = a_pod("strayed", owner="rs", labels={})
    assert sort_claims(gone, [strayed], [a_pod("orphan")]) == Claims([strayed], [], [])
