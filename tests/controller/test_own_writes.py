"""Own writes are told from those of other clients, and the cache must have all of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.controller.own_writes import OwnWrites
from keepclose.kube.cache import Cache
from keepclose.kube.errors import Conflict, NotFound
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER, ZONE_WEIGHTS_ANNOTATION
from support.builders import endpoint_slice

WEB = NamespacedName("default", "web")


class Controlled:
    """The own writes of a controller with a cache, and the Services that they report."""

    def __init__(self, *written: EndpointSlice) -> None:
        self.cache: Cache[EndpointSlice] = Cache()
        self.reported: set[NamespacedName] = set()
        self.awaited: list[NamespacedName] = []
        self.own_writes = OwnWrites(
            self.cache,
            managed_by=ENDPOINTSLICE_CONTROLLER,
            on_foreign=self.reported.add,
            on_awaited=self.awaited.append,
        )
        for piece in written:
            self.own_writes.record(piece)

    def delete(self, piece: EndpointSlice) -> None:
        """Request the deletion of a slice."""
        with self.own_writes.deleting(piece):
            pass

    def foreign(
        self, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> frozenset[NamespacedName]:
        """Return the Services that an event reports as written by another client."""
        self.reported.clear()
        self.own_writes.on_slice(old, new)
        return frozenset(self.reported)

    def has(self, piece: EndpointSlice) -> bool:
        """Return whether the slice is known, as in the tracker of Kubernetes."""
        return piece.metadata.uid in self.own_writes._generations.get(piece.service_key, {})

    def should_sync(self, piece: EndpointSlice) -> bool:
        """Return whether a slice that appears calls for a sync."""
        return bool(self.foreign(None, piece))

    def handle_deletion(self, piece: EndpointSlice) -> bool:
        """Return False for a known slice whose deletion was not expected.

        NB: the tracker of Kubernetes ignores unknown slices; here their deletion is foreign.
        """
        is_known = self.has(piece)
        is_foreign = bool(self.foreign(piece, None))
        assert is_known or is_foreign
        return not is_known or not is_foreign


def keys(*names: str) -> frozenset[NamespacedName]:
    """Return the keys of Services."""
    return frozenset(NamespacedName("default", name) for name in names)


def known(
    uid: str = "a", generation: int = 1, *, service_name: str = "web", namespace: str = "default"
) -> EndpointSlice:
    """Return a slice of a generation."""
    piece = endpoint_slice(name=uid, service_name=service_name, namespace=namespace)
    return replace(piece, metadata=replace(piece.metadata, uid=uid, generation=generation))


@pytest.mark.parametrize(
    ("written", "asked", "want_has", "want_sync"),
    [
        pytest.param(known(), known(), True, False, id="the same slice"),
        pytest.param(known(generation=2), known(generation=3), True, True, id="a newer generation"),
        pytest.param(known(generation=2), known(generation=1), True, False, id="an older one"),
        pytest.param(known(), known("b"), False, True, id="another slice"),
        pytest.param(
            known(), known(namespace="other"), False, True, id="the same uid in another namespace"
        ),
        pytest.param(
            known(), known(service_name="other"), False, True, id="the same uid of another Service"
        ),
    ],
)
def test_update(
    written: EndpointSlice, asked: EndpointSlice, want_has: bool, want_sync: bool
) -> None:
    """What was written needs no sync when it comes back."""
    controlled = Controlled(written)
    assert (controlled.has(asked), controlled.should_sync(asked)) == (want_has, want_sync)


def test_an_unknown_service_needs_a_sync_for_every_slice() -> None:
    """Nothing was written, so everything is news."""
    assert Controlled().should_sync(known())
    assert not Controlled().has(known())


@pytest.mark.parametrize(
    ("written", "expected_gone", "cached", "want"),
    [
        pytest.param((), (), (), False, id="nothing written, nothing cached"),
        pytest.param((), (), (known(),), False, id="an unknown Service is never stale"),
        pytest.param((known(),), (), (known(),), False, id="the cache has what was written"),
        pytest.param(
            (known(generation=2),), (), (known(generation=1),), True, id="the cache is older"
        ),
        pytest.param(
            (known(generation=2),), (), (known(generation=3),), False, id="the cache is newer"
        ),
        pytest.param((known(),), (), (), True, id="a written slice is missing"),
        pytest.param(
            (known(), known("b")), (), (known(),), True, id="one of two written is missing"
        ),
        pytest.param((known(),), (), (known(), known("b")), False, id="an unknown one is more"),
        pytest.param((), (known(),), (known(),), True, id="a deleted slice is still there"),
        pytest.param((), (known(),), (), False, id="a deleted slice is gone"),
        pytest.param(
            (known("b"),), (known(),), (known("b"),), False, id="one deleted, one as written"
        ),
    ],
)
def test_stale_slices(
    written: tuple[EndpointSlice, ...],
    expected_gone: tuple[EndpointSlice, ...],
    cached: tuple[EndpointSlice, ...],
    want: bool,
) -> None:
    """A cache that lacks a write or still has a deletion is not to be planned from."""
    controlled = Controlled(*written)
    for piece in expected_gone:
        controlled.delete(piece)
    assert controlled.own_writes.is_cache_behind(WEB, cached) is want


@pytest.mark.parametrize(
    ("tracked", "expected", "gone", "want_handled"),
    [
        pytest.param((), (), known(), True, id="nothing is tracked"),
        pytest.param((known("b"),), (), known(), True, id="another slice is tracked"),
        pytest.param((known(),), (), known(), False, id="nobody expected it"),
        pytest.param(
            (known(generation=1),), (), known(generation=5), False, id="whatever its generation"
        ),
        pytest.param((known(),), (known(),), known(), True, id="it was expected"),
        pytest.param((), (known(),), known(), True, id="expected without ever being written"),
        pytest.param((known(),), (known("b"),), known(), False, id="another was expected"),
    ],
)
def test_deletion(
    tracked: tuple[EndpointSlice, ...],
    expected: tuple[EndpointSlice, ...],
    gone: EndpointSlice,
    want_handled: bool,
) -> None:
    """An unexpected deletion calls for a sync, once; afterwards the slice is unknown."""
    controlled = Controlled(*tracked)
    for piece in expected:
        controlled.delete(piece)
    assert controlled.handle_deletion(gone) is want_handled
    assert not controlled.has(gone)
    assert controlled.handle_deletion(gone) is True


@pytest.mark.parametrize(
    ("deleted", "want_has"),
    [
        pytest.param(WEB, False, id="this Service"),
        pytest.param(NamespacedName("default", "other"), True, id="another Service"),
        pytest.param(NamespacedName("other", "web"), True, id="another namespace"),
    ],
)
def test_delete_service(deleted: NamespacedName, want_has: bool) -> None:
    """All slices of the Service are forgotten, and no others."""
    controlled = Controlled(known())
    controlled.own_writes.forget(deleted)
    assert controlled.has(known()) is want_has


def mine(
    service_name: str = "web", *, generation: int = 1, managed_by: str | None = None
) -> EndpointSlice:
    """Return a slice of ours, or of another manager."""
    labels = {} if managed_by is None else {"endpointslice.kubernetes.io/managed-by": managed_by}
    piece = endpoint_slice(service_name=service_name, labels=labels)
    return replace(piece, metadata=replace(piece.metadata, generation=generation))


@pytest.mark.parametrize(
    ("tracked", "piece", "want"),
    [
        pytest.param(None, mine(), ("web",), id="an unknown slice of ours"),
        pytest.param(mine(), mine(), (), id="our own write comes back"),
        pytest.param(mine(), mine(generation=2), ("web",), id="somebody changed it"),
        pytest.param(None, mine(managed_by="other"), (), id="somebody else's slice"),
        pytest.param(None, mine(""), (), id="a slice that names no Service"),
    ],
)
def test_an_added_slice(
    tracked: EndpointSlice | None, piece: EndpointSlice, want: tuple[str, ...]
) -> None:
    """Slices of ours that we did not write are put right."""
    controlled = Controlled(*([] if tracked is None else [tracked]))
    assert controlled.foreign(None, piece) == keys(*want)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(mine(), mine(), (), id="our own write comes back"),
        pytest.param(mine(), mine(generation=2), ("web",), id="somebody changed it"),
        pytest.param(mine(), mine("api"), ("web", "api"), id="it moved to another Service"),
        pytest.param(
            mine(managed_by="other"),
            mine("api", managed_by="other"),
            ("web", "api"),
            id="somebody else's slice moved",
        ),
        pytest.param(mine(), mine(""), ("web",), id="it names no Service any more"),
        pytest.param(mine(), mine(managed_by="other"), ("web",), id="it was taken from us"),
        pytest.param(mine(managed_by="other"), mine(), ("web",), id="it was given to us"),
        pytest.param(
            mine(managed_by="other"),
            mine(managed_by="other", generation=9),
            (),
            id="somebody else's slice changed",
        ),
    ],
)
def test_a_changed_slice(old: EndpointSlice, new: EndpointSlice, want: tuple[str, ...]) -> None:
    """Moves and changes of hands concern somebody; our own writes do not."""
    controlled = Controlled(mine())
    assert controlled.foreign(old, new) == keys(*want)


@pytest.mark.parametrize(
    ("written", "expected", "piece", "want"),
    [
        pytest.param(True, False, mine(), ("web",), id="nobody expected it"),
        pytest.param(True, True, mine(), (), id="we deleted it"),
        pytest.param(False, False, mine(), ("web",), id="a previous controller wrote it"),
        pytest.param(True, False, mine(managed_by="other"), (), id="not ours any more"),
    ],
)
def test_a_deleted_slice(
    written: bool, expected: bool, piece: EndpointSlice, want: tuple[str, ...]
) -> None:
    """A slice that vanishes unasked is missed."""
    controlled = Controlled(*([mine()] if written else []))
    if expected:
        controlled.delete(mine())
    assert controlled.foreign(piece, None) == keys(*want)


def test_a_slice_that_another_client_replaced_is_not_waited_for() -> None:
    """A list may show another slice of the same name, and no event tells of the first one's end."""
    controlled = Controlled(mine())
    other = replace(mine(), metadata=replace(mine().metadata, uid="other"))
    assert controlled.foreign(mine(), other) == keys("web")
    assert not controlled.own_writes.is_cache_behind(WEB, [other])


def test_a_slice_that_left_before_the_answer_is_not_waited_for() -> None:
    """The deletion event came first, and the cache rejects the older version of the answer."""
    controlled = Controlled()
    written = replace(mine(), metadata=replace(mine().metadata, resource_version="5"))
    controlled.cache.put(written)
    controlled.cache.delete(written.metadata.key, "6")
    controlled.own_writes.record(written)
    assert not controlled.own_writes.is_cache_behind(WEB, [])


@pytest.mark.parametrize(
    ("error", "is_cached", "want_foreign"),
    [
        pytest.param(Conflict(409), True, True, id="another client wrote first"),
        pytest.param(Conflict(409), False, False, id="it is gone meanwhile"),
        pytest.param(NotFound(404), True, False, id="the server has it no longer"),
    ],
)
def test_a_failed_deletion_is_not_expected(
    error: Exception, is_cached: bool, want_foreign: bool
) -> None:
    """The slice stays, so that a later deletion is another client's."""
    controlled = Controlled()
    if is_cached:
        controlled.cache.put(mine())
    with pytest.raises(type(error)), controlled.own_writes.deleting(mine()):
        raise error
    assert bool(controlled.foreign(mine(), None)) is want_foreign


@pytest.mark.parametrize(
    ("seen", "want"),
    [pytest.param(1, keys(), id="the own write"), pytest.param(2, keys("web"), id="a newer one")],
)
def test_events_during_writes_are_judged_when_the_writes_are_answered(
    seen: int, want: frozenset[NamespacedName]
) -> None:
    """An event can overtake the answer to the write that caused it."""
    controlled = Controlled()
    controlled.cache.subscribe(controlled.own_writes.on_slice)
    with controlled.own_writes.writing(WEB):
        controlled.cache.put(
            replace(
                mine(generation=seen),
                metadata=replace(mine(generation=seen).metadata, resource_version="9"),
            )
        )
        assert not controlled.reported
        controlled.own_writes.record(
            replace(mine(), metadata=replace(mine().metadata, resource_version="8"))
        )
    assert controlled.reported == want


def test_an_awaited_event_is_reported_once() -> None:
    """Any event of the Service's slices ends the wait, also that of an own write."""
    controlled = Controlled(mine())
    controlled.own_writes.await_event(WEB)
    controlled.own_writes.on_slice(mine("api"), mine("api"))
    assert controlled.awaited == []
    controlled.own_writes.on_slice(mine(), mine())
    controlled.own_writes.on_slice(mine(), mine())
    assert controlled.awaited == [WEB]


def test_a_forgotten_service_awaits_nothing() -> None:
    """Another Service of the same name starts without writes."""
    controlled = Controlled(mine())
    controlled.own_writes.await_event(WEB)
    controlled.own_writes.forget(WEB)
    assert not controlled.own_writes.is_cache_behind(WEB, [])
    controlled.own_writes.on_slice(None, mine())
    assert controlled.awaited == []


def test_other_owner_references_are_a_foreign_write() -> None:
    """The API server does not raise the generation for them."""
    controlled = Controlled(mine())
    bare = replace(mine(), metadata=replace(mine().metadata, owner_references=()))
    assert controlled.foreign(mine(), bare) == keys("web")


def weighted(text: str | None) -> EndpointSlice:
    """Return a slice with weights as they are written, and without any for None."""
    annotations = {} if text is None else {ZONE_WEIGHTS_ANNOTATION: text}
    return replace(mine(), metadata=replace(mine().metadata, annotations=annotations))


@pytest.mark.parametrize("text", [None, "garbage"])
def test_other_weights_are_a_foreign_write(text: str | None) -> None:
    """Weights that a person removes or changes are restored; the generation does not tell."""
    controlled = Controlled(weighted("good"))
    assert controlled.foreign(weighted("good"), weighted(text)) == keys("web")
    assert controlled.foreign(weighted("good"), weighted("good")) == keys()
    with controlled.own_writes.writing(WEB):
        controlled.own_writes.on_slice(weighted("good"), weighted(text))
        assert controlled.reported == set()
    assert controlled.reported == keys("web")


def test_own_weights_are_an_own_write() -> None:
    """An event before or after the answer, during the write, reports nothing."""
    for is_early in (True, False):
        controlled = Controlled(weighted("old"))
        with controlled.own_writes.writing(WEB):
            if is_early:
                controlled.own_writes.on_slice(weighted("old"), weighted("new"))
                controlled.own_writes.record(weighted("new"))
            else:
                controlled.cache.subscribe(controlled.own_writes.on_slice)
                controlled.own_writes.record(weighted("new"))
        assert controlled.reported == set()
