"""The part of the schema of SARIF 2.1.0 that a log of lint uses, and a check against it.

Written from the standard (OASIS, sections 3.13 to 3.35): required members, types, closed sets. A
member that is not listed is a mistake, because the objects of SARIF take no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

Check = Callable[[Any, str], Iterator[str]]
_LEVELS: Final = ("none", "note", "warning", "error")
_URI_REFERENCE: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")
_FILE_SCHEMES: Final = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*:)|file:///")


def find_mistakes(log: object) -> list[str]:
    """Return what of a log does not follow the schema, each with its path."""
    return [*_LOG(log, "$"), *_rule_indexes(log)]


def _text(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str) or not value:
        yield f"{path}: a text is required"


def _one_of(*values: str) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if value not in values:
            yield f"{path}: {value!r} is none of {values}"

    return check


def _natural(least: int) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            yield f"{path}: {value!r} is not a whole number of at least {least}"

    return check


def _uri(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str) or not _URI_REFERENCE.fullmatch(value):
        yield f"{path}: {value!r} is no URI reference"
    elif not _FILE_SCHEMES.match(value):
        yield f"{path}: {value!r} has a scheme that is no file"


def _list_of(check_item: Check, *, least: int = 0) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, list) or len(value) < least:
            yield f"{path}: a list of at least {least} is required"
            return
        for index, item in enumerate(value):
            yield from check_item(item, f"{path}[{index}]")

    return check


def _texts_by_key(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        yield f"{path}: a map of texts is required"


def _object(required: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    members = {**required, **(optional or {})}

    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path}: an object is required"
            return
        yield from (f"{path}.{name}: missing" for name in required if name not in value)
        for name, member in value.items():
            if name not in members:
                yield f"{path}.{name}: not in the schema"
            else:
                yield from members[name](member, f"{path}.{name}")

    return check


_MESSAGE: Final = _object({"text": _text})
_RULE: Final = _object(
    {"id": _text},
    {
        "name": _text,
        "shortDescription": _MESSAGE,
        "fullDescription": _MESSAGE,
        "help": _MESSAGE,
        "defaultConfiguration": _object({}, {"level": _one_of(*_LEVELS)}),
    },
)
_DRIVER: Final = _object(
    {"name": _text}, {"version": _text, "semanticVersion": _text, "rules": _list_of(_RULE)}
)
_LOCATION: Final = _object(
    {},
    {
        "physicalLocation": _object(
            {"artifactLocation": _object({"uri": _uri})},
            {"region": _object({"startLine": _natural(1)})},
        ),
        "logicalLocations": _list_of(
            _object({}, {"name": _text, "fullyQualifiedName": _text, "kind": _text})
        ),
    },
)
_RESULT: Final = _object(
    {"message": _MESSAGE},
    {
        "ruleId": _text,
        "ruleIndex": _natural(0),
        "level": _one_of(*_LEVELS),
        "locations": _list_of(_LOCATION),
        "partialFingerprints": _texts_by_key,
        "suppressions": _list_of(
            _object({"kind": _one_of("inSource", "external")}, {"justification": _text})
        ),
    },
)
_RUN: Final = _object(
    {"tool": _object({"driver": _DRIVER})},
    {
        "results": _list_of(_RESULT),
        "columnKind": _one_of("utf16CodeUnits", "unicodeCodePoints"),
    },
)
_LOG: Final = _object({"version": _one_of("2.1.0"), "runs": _list_of(_RUN)}, {"$schema": _text})


def _rule_indexes(log: Any) -> Iterator[str]:
    """Yield the results whose ruleIndex is not that of their ruleId."""
    for run in log["runs"]:
        ids = [rule["id"] for rule in run["tool"]["driver"].get("rules", [])]
        for index, result in enumerate(run.get("results", [])):
            at = result.get("ruleIndex", -1)
            if not 0 <= at < len(ids) or ids[at] != result.get("ruleId"):
                yield f"results[{index}].ruleIndex: {at} is not the index of {result.get('ruleId')}"
