"""Mutation of JSON inputs by their structure, so that most of them get past the decoder.

An input is a line that names what it is for, and a JSON text. Bytes that are mutated blindly nearly
always stop being JSON; here values are replaced, copied, dropped, renamed and nested instead.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any, Final

SCALARS: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 80, 65536, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.5,
    -0.0, 1e308, "", " ", "a", "A", "a/b", "a.b/c", "-", "0", "1", "80", "tcp", "TCP", "None",
    "\u0000", "\ud7ff", "é", "x" * 64, "x" * 254, "10.0.0.1", "::1", "fd00::1/64", "300.1.1.1",
    "1e9", "1e-9", "1.5Gi", "0x10", "9" * 30, "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456Z",
    "9999-99-99T99:99:99Z", "PreferSameZone", "example.com/x", "ClusterIP", "LoadBalancer", "Local",
    "$patch", "replace", "delete", "*", ",", "=", "\n", "/", "~1", "-1", [], {}, [None], [[]],
)  # fmt: skip
NAMES: Final = (
    "", "a", "name", "namespace", "metadata", "spec", "status", "labels", "annotations", "items",
    "kind", "apiVersion", "$patch", "$retainKeys", "$setElementOrder/ports", "value", "path", "op",
    "from", "key", "port", "f:spec", ".", "k:{}", "\u0000", "finalizers", "ownerReferences",
    "managedFields", "generateName", "resourceVersion", "uid", "deletionTimestamp",
)  # fmt: skip
_DEEPEST: Final = 60


def mutate_json(text: bytes, seed: int, *, largest: int) -> bytes | None:
    """Return a JSON text near the given one; None where that is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    chance = random.Random(seed)
    for _ in range(1 + chance.randrange(3)):
        value = _change(value, chance)
    try:
        mutated = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode(
            errors="surrogatepass"
        )
    except (ValueError, RecursionError):
        return None
    return mutated if len(mutated) <= largest else None


def _change(root: Any, chance: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    _collect(root, places, 0)
    if not places:
        return _new_value(root, chance)
    holder, key = places[chance.randrange(len(places))]
    other, other_key = places[chance.randrange(len(places))]
    roll = chance.randrange(9)
    if roll == 0:
        del holder[key]
    elif roll == 1:
        holder[key] = json.loads(json.dumps(other[other_key]))
    elif roll == 2:
        holder[key] = [holder[key]] if chance.random() < 0.5 else {"a": holder[key]}
    elif roll == 3 and isinstance(holder, list):
        holder.insert(chance.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
    elif roll == 3:
        holder[chance.choice(NAMES)] = holder.pop(key)
    elif roll == 4 and isinstance(holder, dict):
        holder[chance.choice(NAMES)] = _pick_scalar(chance)
    elif roll == 5 and isinstance(holder[key], str):
        holder[key] = _change_text(holder[key], chance)
    elif roll == 6 and isinstance(holder[key], int):
        holder[key] = holder[key] + chance.choice((-1, 1, 1000, -(10**6), 2**31))
    elif roll == 7 and isinstance(holder, list) and len(holder) > 1:
        chance.shuffle(holder)
    else:
        holder[key] = _pick_scalar(chance)
    return root


def _pick_scalar(chance: random.Random) -> Any:
    # NB: a copy, because later changes are made in place: a list that many inputs share would grow
    # with each of them, until the fuzzer itself has no memory left.
    return copy.deepcopy(chance.choice(SCALARS))


def _collect(value: Any, places: list[tuple[Any, Any]], depth: int) -> None:
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        keys: Any = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    else:
        return
    for key in keys:
        places.append((value, key))
        _collect(value[key], places, depth + 1)


def _change_text(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    roll = chance.randrange(4)
    if roll == 0:
        return text[:at] + text[at + 1 :]
    if roll == 1:
        return text + text
    if roll == 2:
        return text[:at]
    return text[:at] + chance.choice("a0-._/:,= \\\"'\u0000é\u2028") + text[at:]


def _new_value(value: Any, chance: random.Random) -> Any:
    return chance.choice(({}, [], value, {"a": value}, [value], _pick_scalar(chance)))
