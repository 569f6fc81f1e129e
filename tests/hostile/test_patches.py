"""Patches of a few bytes that ask for much work, or for a document that could not be held."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.patch.json_patch import (
    MAX_COPIED_BYTES,
    MAX_COPIED_VALUES,
    MAX_OPERATIONS,
    apply_json_patch,
    apply_merge_patch,
)
from keepclose.apiserver.patch.strategic_merge import apply_strategic_patch
from keepclose.apiserver.schema.types import load_types
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.gates import FeatureGates

JsonObject = dict[str, Any]

POD = load_types(FeatureGates())["io.k8s.api.core.v1.Pod"]
# Far more than a patch within the limits takes, far less than the attacks took.
CPU_SECONDS = 3.0


def patched(document: JsonObject, *operations: JsonObject) -> JsonObject:
    """Return the document after a JSON patch."""
    return apply_json_patch(document, msgspec.json.encode(operations))


def refused(call: Callable[[], object]) -> StatusError:
    """Return the Failure of a call that must be refused, and within a bound of CPU."""
    begun = time.process_time()
    with pytest.raises(StatusError) as caught:
        call()
    assert time.process_time() - begun < CPU_SECONDS
    return caught.value


def nested(depth: int) -> JsonObject:
    """Return an object of so many levels."""
    value: JsonObject = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("copies", [22, 40, MAX_OPERATIONS - 1])
def test_copies_of_a_list_into_itself_are_refused(copies: int) -> None:
    """A list that is doubled by each operation is refused before it fills the memory."""
    operations = [{"op": "copy", "from": "/x", "path": "/x/-"}] * copies
    assert refused(lambda: patched({"x": [1]}, *operations)).code == 422


def test_copies_within_the_limit_are_followed() -> None:
    """Copies may add up to the limit of bytes, and to not one byte more."""
    text = "x" * 1022
    copy = {"op": "copy", "from": "/x", "path": "/y"}
    fitting = MAX_COPIED_BYTES // 1024
    assert patched({"x": text}, *[copy] * fitting) == {"x": text, "y": text}
    failure = refused(lambda: patched({"x": text}, *[copy] * (fitting + 1)))
    assert failure.code == 422


def test_copies_of_many_small_values_are_bounded() -> None:
    """A list of numbers is copied as long as all copies hold a hundred thousand values."""
    document = {"x": list(range(999))}
    copy = {"op": "copy", "from": "/x", "path": "/y"}
    fitting = MAX_COPIED_VALUES // 1_000
    assert patched(document, *[copy] * fitting)["y"] == document["x"]
    assert refused(lambda: patched(document, *[copy] * (fitting + 1))).code == 422


def test_shifts_of_a_long_list_are_bounded() -> None:
    """Thousands of insertions at the front of a list of a million items are refused."""
    insertion = {"op": "add", "path": "/x/0", "value": 1}
    document = {"x": [1] * 1_000_000}
    assert refused(lambda: patched(document, *[insertion] * 9_000)).code == 422


def test_usual_removals_from_a_long_list_are_followed() -> None:
    """A thousand items are removed one by one from the front of a long list."""
    removal = {"op": "remove", "path": "/x/0"}
    assert patched({"x": list(range(20_000))}, *[removal] * 1_000) == {
        "x": list(range(1_000, 20_000))
    }


def test_moves_cannot_nest_a_document_without_end() -> None:
    """A document that moves nest into itself, one level each, is refused as too deep."""
    steps: list[JsonObject] = [
        {"op": "add", "path": "/y", "value": {}},
        {"op": "move", "from": "/x", "path": "/y/x"},
        {"op": "move", "from": "/y", "path": "/x"},
    ]
    assert refused(lambda: patched({"x": {}}, *steps * 3_000)).code == 422
    copies: list[JsonObject] = [*steps * 2_000, {"op": "copy", "from": "/x", "path": "/z"}]
    assert refused(lambda: patched({"x": {}}, *copies)).code == 422


@pytest.mark.parametrize("depth", [250, 480, 900, 3_000, 100_000])
def test_deep_patches_of_every_type_are_bad_requests(depth: int) -> None:
    """A patch that nests too deep is refused as such, not as a fault of the server."""
    text = b'{"a":' * depth + b"1" + b"}" * depth
    body = b'[{"op":"add","path":"/x","value":' + text + b"}]"
    assert refused(lambda: apply_json_patch({}, body)).code == 400
    patch = nested(depth)
    assert refused(lambda: apply_merge_patch({}, patch)).code == 400
    assert refused(lambda: apply_strategic_patch({}, patch, POD)).code == 400


@pytest.mark.parametrize(
    "index",
    ["9" * 5_000, "-" + "9" * 5_000, "99", "-9", "\u0661", "1_0", "0x1", "", " 1", "1e0", "a", "~"],
)
@pytest.mark.parametrize("kind", ["add", "remove", "replace", "test", "copy", "move"])
def test_an_index_that_is_none_is_refused(kind: str, index: str) -> None:
    """An index beyond the list, or that is no number, is refused with 422 for each operation."""
    path = f"/x/{index}"
    operation = {"op": kind, "path": path, "from": path, "value": 1}
    assert refused(lambda: patched({"x": [1, 2]}, operation)).code == 422


@pytest.mark.parametrize("member", ["op", "path", "from"])
def test_members_that_are_no_text_are_bad_requests(member: str) -> None:
    """An operation whose name or path is a number cannot be read, in the words of Go's decoder."""
    failure = refused(lambda: patched({}, {"op": "add", "path": "/x", member: 5}))
    assert failure.code == 400
    assert f"struct field jsonPatchOp.{member} of type string" in failure.message


@pytest.mark.parametrize("item", [True, 1, "text"])
def test_items_without_a_merge_key_cannot_be_ordered(item: object) -> None:
    """Items that should be objects and are none are refused, in the words of a kube-apiserver."""
    body = {"spec": {"containers": [item], "$setElementOrder/containers": []}}
    failure = refused(lambda: apply_strategic_patch({"spec": {}}, body, POD))
    assert (failure.code, failure.reason) == (500, "")
    assert failure.message.startswith("expected a map[string]interface {}, but received a ")


def test_a_patch_that_is_null_changes_nothing() -> None:
    """The document stays as it is where the patch is null, as with a kube-apiserver."""
    assert apply_json_patch({"x": 1}, b"null") == {"x": 1}


def test_a_move_finds_its_target_after_the_removal() -> None:
    """The last place of a list is that of the list without the item that moves."""
    move = {"op": "move", "from": "/x/0", "path": "/x/-1"}
    assert patched({"x": [1, 2, 3]}, move) == {"x": [2, 3, 1]}


@pytest.mark.parametrize(
    ("field", "patch"),
    [
        ("order", lambda items: {"$setElementOrder/containers": items}),
        ("merge", lambda items: {"containers": items}),
        (
            "delete",
            lambda items: {"containers": [{**item, "$patch": "delete"} for item in items]},
        ),
        (
            "order and delete",
            lambda items: {
                "containers": [{**item, "$patch": "delete"} for item in items],
                "$setElementOrder/containers": [],
            },
        ),
        ("reverse", lambda items: {"$setElementOrder/containers": items[::-1]}),
    ],
)
def test_strategic_patches_of_long_lists_of_objects_grow_with_their_length(
    field: str, patch: Callable[[list[JsonObject]], JsonObject]
) -> None:
    """Four times as many items cost about four times as much, whichever directive names them."""
    del field

    def cost(count: int) -> float:
        items = [{"name": f"c{number}"} for number in range(count)]
        document = {"spec": {"containers": [{**item, "image": "i"} for item in items]}}
        body = {"spec": patch(items)}
        return cpu_of(lambda: apply_strategic_patch(document, body, POD))

    assert_linear(cost, 2_000)


@pytest.mark.parametrize(
    "directive",
    ["finalizers", "$setElementOrder/finalizers", "$deleteFromPrimitiveList/finalizers"],
)
@pytest.mark.parametrize("distinct", [True, False])
def test_strategic_patches_of_long_lists_of_strings_grow_with_their_length(
    directive: str, *, distinct: bool
) -> None:
    """Sets of strings merge, order and lose items in linear time, also where all are the same."""

    def cost(count: int) -> float:
        values = [f"a/{number if distinct else 0}" for number in range(count)]
        document = {"metadata": {"finalizers": values}}
        body = {"metadata": {directive: values}}
        return cpu_of(lambda: apply_strategic_patch(document, body, POD))

    assert_linear(cost, 2_000)


def test_retained_keys_grow_with_their_number() -> None:
    """A list of fields to keep is looked up, not walked for each field."""

    def cost(count: int) -> float:
        names = [f"k{number}" for number in range(count)]
        document = {"metadata": {"annotations": dict.fromkeys(names, "")}}
        body = {"metadata": {"annotations": {"$retainKeys": names, **dict.fromkeys(names, "x")}}}
        return cpu_of(lambda: apply_strategic_patch(document, body, POD))

    assert_linear(cost, 3_000)


def cpu_of(call: Callable[[], object]) -> float:
    """Return the least CPU time of three calls, which noise can only raise."""
    times: list[float] = []
    for _ in range(3):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)


def assert_linear(cost: Callable[[int], float], count: int) -> None:
    """Check that four times the items cost less than nine times the CPU, beyond noise."""
    small, large = cost(count), cost(4 * count)
    assert large < 9 * small + 0.02, f"{small:.3f} s for {count}, {large:.3f} s for {4 * count}"
