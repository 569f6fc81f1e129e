"""Label and field selectors: what is read can be written, and reads as the same again."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzbounds import require

from keepclose.model.selectors import (
    SelectorRejected,
    parse_field_selector,
    parse_label_selector,
)

_LABELS = {"a": "b", "example.com/tier": "front", "n": "12", "empty": ""}


def seeds() -> Iterator[bytes]:
    """Yield selectors of both kinds."""
    for text in (
        "a=b,c!=d,e in (f,g),h notin (i),j,!k,n>3,n<9",
        "example.com/tier in (front,)",
        "a==b , c",
        "a in ()",
        ",",
        "metadata.name=a,metadata.namespace!=b",
        r"reason=a\,b\=c\\d",
        "spec.nodeName==",
        "n>9223372036854775808",
        "=",
        "a," * 5000 + "a",
        "a in (" + "b," * 5000 + "b)",
        "metadata.name=" + "\\," * 5000,
        "n>" + "9" * 5000,
        "!" * 5000,
    ):
        yield text.encode()


def check(data: bytes) -> None:
    """Read the text as both kinds, and what was read again from its own text."""
    text = data.decode(errors="surrogateescape")
    labels = parse_label_selector(text)
    if not isinstance(labels, SelectorRejected):
        labels.matches(_LABELS)
        require(parse_label_selector(str(labels)) == labels, "a label selector reads differently")
    fields = parse_field_selector(text)
    if not isinstance(fields, SelectorRejected):
        fields.matches({"metadata.name": "a"})
        require(parse_field_selector(str(fields)) == fields, "a field selector reads differently")
