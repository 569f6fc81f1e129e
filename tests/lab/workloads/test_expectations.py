"""What was written and not yet seen."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.kube.cache import Cache
from keepclose.lab.workloads.expectations import TIMEOUT_S, UNCERTAIN_S, Expectations, Watermarks
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import ReplicaSet
from keepclose.testing.fake_clock import FakeClock
from support.lab.labobjects import a_pod, a_replica_set


def made() -> tuple[FakeClock, Cache[WorkloadPod], Expectations]:
    """Return a clock, a cache of pods, and what follows both."""
    clock, cache = FakeClock(), Cache[WorkloadPod]()
    return clock, cache, Expectations(clock, cache)


def test_a_created_pod_is_waited_for() -> None:
    """The owner waits until the pod is in the cache, and others count it meanwhile."""
    _, cache, expectations = made()
    pod = a_pod("p", "n1")
    expectations.expect_created("rs", pod)
    assert expectations.wait_s("rs") == TIMEOUT_S
    assert expectations.wait_s("other") is None
    assert expectations.assumed() == [pod]
    cache.put(pod)
    assert expectations.wait_s("rs") is None
    assert expectations.assumed() == []


def test_a_deleted_pod_is_waited_for() -> None:
    """The owner waits until the pod is on its way out, or gone."""
    _, cache, expectations = made()
    staying, gone = a_pod("p", "n1"), a_pod("q", "n1")
    cache.put(staying)
    cache.put(gone)
    for pod in (staying, gone):
        expectations.expect_deleted("rs", pod)
    assert expectations.is_being_deleted(staying)
    meta = replace(staying.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
    cache.put(replace(staying, metadata=meta))
    assert not expectations.is_being_deleted(staying)
    assert expectations.wait_s("rs") == TIMEOUT_S
    cache.delete(gone.key)
    assert expectations.wait_s("rs") is None


def test_a_failed_write_is_not_waited_for() -> None:
    """What did not happen is forgotten."""
    _, _, expectations = made()
    pod = a_pod("p", "n1")
    expectations.expect_created("rs", pod)
    expectations.expect_deleted("rs", pod)
    expectations.forget(pod)
    assert expectations.wait_s("rs") is None


async def test_patience_ends() -> None:
    """What never shows up does not hold its owner for ever."""
    clock, _, expectations = made()
    expectations.expect_created("rs", a_pod("p"), for_s=UNCERTAIN_S)
    expectations.expect_deleted("rs", a_pod("q"))
    await clock.advance(UNCERTAIN_S)
    assert expectations.assumed() == []
    assert expectations.wait_s("rs") == TIMEOUT_S - UNCERTAIN_S
    await clock.advance(TIMEOUT_S)
    assert expectations.wait_s("rs") is None


async def test_a_cache_behind_a_write_lags() -> None:
    """Until the cache has the version that was written, or for a while, it is not believed."""
    clock, cache = FakeClock(), Cache[ReplicaSet]()
    marks = Watermarks(clock, cache)
    one = a_replica_set("rs", 1)

    def at(version: str) -> ReplicaSet:
        return replace(one, metadata=replace(one.metadata, resource_version=version))

    cache.put(at("4"))
    marks.record("web", at("5").metadata)
    assert (marks.lags("web"), marks.lags("other")) == (True, False)
    cache.put(at("6"))
    assert not marks.lags("web")
    marks.record("web", at("9").metadata)
    cache.delete(one.metadata.key, "10")
    assert marks.lags("web")
    await clock.advance(UNCERTAIN_S)
    assert not marks.lags("web")
