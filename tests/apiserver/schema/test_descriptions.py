"""Descriptions of types and fields."""

from __future__ import annotations

from keepclose.apiserver.schema.openapi_types import (
    _OWN_DESCRIPTIONS,
    describe_field,
    read_docstring,
)
from keepclose.apiserver.schema.types import load_definitions


def test_docstrings_are_read_field_by_field() -> None:
    """Continuation lines belong to the field before, and a field may have no text."""
    text = """Thing is a thing
      of two lines.

      **parameters**

      * **first** ``List[str]`` - first is `one`
        and more - of it.
      * **second** ``Optional[int]``
      * **third** ``dict`` - third.
    """
    assert read_docstring(text) == {
        "": "Thing is a thing of two lines.",
        "first": "first is `one` and more - of it.",
        "third": "third.",
    }


def test_a_docstring_of_another_form_says_nothing() -> None:
    """A dataclass without a docstring gets its signature for one."""
    assert read_docstring("Thing(first: List[str])") == {}


def test_our_own_words_go_before_borrowed_ones() -> None:
    """The fields that this project is about are described by it, all others by lightkube-models."""
    spec = describe_field("core.v1.ServiceSpec")
    assert spec["trafficDistribution"].startswith("How traffic is kept close to clients")
    assert spec["clusterIP"].startswith("clusterIP is the IP address of the service")
    assert spec[""] == "The desired state of a Service."


def test_types_that_nobody_describes_have_the_usual_texts() -> None:
    """Without the optional package every object still has a kind and a version."""
    assert describe_field("nowhere.v1.Thing") == {
        "apiVersion": "Group and version of this object's kind.",
        "kind": "The kind of this object.",
        "metadata": "Name, namespace, labels and the like.",
    }


def test_everything_described_exists() -> None:
    """A description of a field that is not there would never be seen."""
    definitions = load_definitions()
    for short, texts in _OWN_DESCRIPTIONS.items():
        known = {"", "topologyKeys", *definitions[short].fields}
        assert set(texts) <= known, short
