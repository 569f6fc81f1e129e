"""Names of the fields in which two versions of an object differ, and the gate that may be off.

An API server keeps what it knows and its feature gates allow, and drops the rest without a word. A
client that compares what it sent with what is stored can name the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from keepclose.model.gates import Gate

SLICE_GATES: Final[dict[str, Gate]] = {
    "endpoints[].hints.forNodes": Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
    "endpoints[].hints.forZones": Gate.TOPOLOGY_AWARE_HINTS,
    "endpoints[].hints": Gate.TOPOLOGY_AWARE_HINTS,
    "endpoints[].conditions.serving": Gate.ENDPOINT_SLICE_TERMINATING_CONDITION,
    "endpoints[].conditions.terminating": Gate.ENDPOINT_SLICE_TERMINATING_CONDITION,
}
"""The gates of API servers without which a field of a slice is dropped."""
MOST_NAMED: Final = 5
"""So many fields are named one by one: a webhook may set any number of labels."""


def differing_fields(sent: object, stored: object) -> tuple[str, ...]:
    """Return the paths at which two values differ, as in "endpoints[].hints.forNodes", sorted.

    Elements of lists have no number, so that the same field of many elements is named once.
    """
    pair = (msgspec.to_builtins(sent), msgspec.to_builtins(stored))
    return tuple(sorted(set(_differences(*pair, ""))))


def describe_fields(fields: tuple[str, ...]) -> str:
    """Return a sentence that names the fields an API server dropped, and the likely gates."""
    gates = sorted({gate.value for field in fields if (gate := SLICE_GATES.get(field))})
    named = ", ".join(fields[:MOST_NAMED])
    others = len(fields) - MOST_NAMED
    text = f"the API server does not keep {named}{f' and {others} more' if others > 0 else ''}"
    text = f"{text} as written"
    if not gates:
        return text
    verb = "is" if len(gates) == 1 else "are"
    return f"{text}; feature gate {', '.join(gates)} {verb} probably off there"


def _differences(sent: Any, stored: Any, path: str) -> Iterator[str]:
    if sent == stored:
        return
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key in sent.keys() | stored.keys():
            yield from _differences(
                sent.get(key), stored.get(key), f"{path}.{key}" if path else str(key)
            )
    elif (
        isinstance(sent, list | tuple)
        and isinstance(stored, list | tuple)
        and (len(sent) == len(stored))
    ):
        for one, other in zip(sent, stored, strict=True):
            yield from _differences(one, other, f"{path}[]")
    else:
        yield path
