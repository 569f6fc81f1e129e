"""The API server in one function, which other tests rely on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.packing import SlicePlan
from keepclose.slices.slice_metadata import new_slice
from support.builders import endpoint, endpoint_slice, service

FRESH = new_slice(service(), address_type="IPv4")


def test_creations_are_named_and_numbered() -> None:
    """Names are unique, start with the prefix, and are the same every time."""
    made = apply_plan((), SlicePlan(create=(FRESH, FRESH)))
    assert [piece.metadata.name for piece in made] == ["web-bbbbb", "web-bbbbc"]
    assert [(m.metadata.uid, m.metadata.generation) for m in made] == [
        ("uid-web-bbbbb", 1),
        ("uid-web-bbbbc", 1),
    ]
    assert made == apply_plan((), SlicePlan(create=(FRESH, FRESH)))


def test_a_name_that_is_taken_is_not_given_again() -> None:
    """The next free one is."""
    taken = endpoint_slice(name="web-bbbbc")
    made = apply_plan([taken], SlicePlan(create=(FRESH,)))
    assert [piece.metadata.name for piece in made] == ["web-bbbbc", "web-bbbbd"]


def test_long_prefixes_are_cut() -> None:
    """No name exceeds 63 characters."""
    (made,) = apply_plan((), SlicePlan(create=(new_slice(service("s" * 63), address_type="IPv4"),)))
    assert made.metadata.name == "s" * 58 + "bbbbb"


@pytest.mark.parametrize(
    ("changes", "want_generation"),
    [
        pytest.param({}, 4, id="nothing changed"),
        pytest.param({"endpoints": (endpoint("10.0.0.9"),)}, 5, id="endpoints changed"),
        pytest.param({"ports": ()}, 5, id="ports changed"),
    ],
)
def test_updates_count_generations(changes: dict[str, object], want_generation: int) -> None:
    """Content counts, and every write gives a new version; the identity stays."""
    old = endpoint_slice(name="a")
    old = replace(old, metadata=replace(old.metadata, generation=4, resource_version="8"))
    new = replace(old, metadata=replace(old.metadata, uid="forged"), **changes)
    (stored,) = apply_plan([old], SlicePlan(update=(new,)))
    meta = stored.metadata
    assert (meta.uid, meta.generation, meta.resource_version) == ("uid-a", want_generation, "9")


def test_labels_count_and_annotations_do_not() -> None:
    """A generation is counted for labels, not for annotations."""
    old = endpoint_slice(name="a")
    (labelled,) = apply_plan(
        [old], SlicePlan(update=(endpoint_slice(name="a", labels={"x": "y"}),))
    )
    (annotated,) = apply_plan(
        [old], SlicePlan(update=(endpoint_slice(name="a", annotations={"x": "y"}),))
    )
    assert (labelled.metadata.generation, annotated.metadata.generation) == (1, 0)


def test_deletions_delete() -> None:
    """And the rest stays as it is."""
    one, two = endpoint_slice(name="a"), endpoint_slice(name="b")
    assert apply_plan([two, one], SlicePlan(delete=(two,))) == [one]


@pytest.mark.parametrize("plan", [SlicePlan(update=(FRESH,)), SlicePlan(delete=(FRESH,))])
def test_writes_of_what_does_not_exist_are_refused(plan: SlicePlan) -> None:
    """A wrong plan does not pass unnoticed."""
    with pytest.raises(LookupError):
        apply_plan((), plan)
