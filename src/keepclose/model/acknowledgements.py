"""Node acknowledgements: one small ConfigMap per node about the hints that the node follows.

The proxy of a node reports up to which resource version it has programmed the slices of hinted
Services, which levels of hints it follows, and the Services whose hints it does not use. The proxy
that renders and the controller that parses share this module. KEP-4444 leaves open how a data plane
answers; one object per node costs one write per node and change, never one per Service.

The format has a number. The first format, a `version` without a number, did not name the levels of
hints; controllers of that format find no `version` here and treat the node as silent. This module
does the same with the first format, with newer formats, and with an object that holds two formats
because an older proxy wrote over it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.core_kinds import ConfigMap
from keepclose.model.meta import NamespacedName, ObjectMeta, OwnerReference
from keepclose.model.metadata_validation import plain_line

ACKNOWLEDGEMENT_NAMESPACE: Final = "kube-system"
ACKNOWLEDGEMENT_LABEL: Final = "keepclose.dev/acknowledgement"
ACKNOWLEDGEMENT_SELECTOR: Final = f"{ACKNOWLEDGEMENT_LABEL}=true"
_PREFIX: Final = "keepclose-ack-"
_FORMAT_KEY: Final = "form"
_FORMAT_NUMBER: Final = "2"
_PROGRAMMED_KEY: Final = "programmed"
_HONORS_KEY: Final = "honors"
_EXCEPTIONS_KEY: Final = "exceptions"
OUTDATED_KEYS: Final = ("version",)
"""Keys of the first format; a proxy that writes over it removes them."""
MAX_EXCEPTIONS: Final = 15_000
"""With more exceptions than these an acknowledgement is void: each one is kept in memory."""
# A node may write anything, and its reason appears in conditions of Services.
_MAX_REASON: Final = 63
# Resource versions are 64-bit numbers.
_MAX_DIGITS: Final = 20


class HintLevel(StrEnum):
    """The levels of hints on endpoints, by the names of their fields, and weights beside them."""

    ZONES = "forZones"
    NODES = "forNodes"
    WEIGHTS = "zoneWeights"


class NodeAcknowledgement(msgspec.Struct, frozen=True):
    """What the proxy of one node has programmed.

    `version` is the resource version up to which all slices of hinted Services are programmed; 0
    means no answer. `exceptions` are Services whose hints the node has but does not use, each with
    a reason in one word. `honors` are the levels of hints that its feature gates let it follow.
    """

    node: str
    version: int = 0
    exceptions: dict[NamespacedName, str] = {}
    honors: frozenset[HintLevel] = frozenset()


def acknowledgement_name(node: str) -> str:
    """Return the name of the ConfigMap of a node."""
    return f"{_PREFIX}{node}"


def parse_acknowledgement(config_map: ConfigMap) -> NodeAcknowledgement | None:
    """Return the acknowledgement of a node; None for any other ConfigMap.

    An invalid acknowledgement counts as no answer of the node: version 0.
    """
    meta = config_map.metadata
    node = meta.name.removeprefix(_PREFIX)
    if not meta.name.startswith(_PREFIX) or not node:
        return None
    data = config_map.data
    version = parse_resource_version(data.get(_PROGRAMMED_KEY, ""))
    exceptions = _parse_exceptions(data.get(_EXCEPTIONS_KEY, ""))
    is_readable = data.get(_FORMAT_KEY) == _FORMAT_NUMBER and not any(
        key in data for key in OUTDATED_KEYS
    )
    if not is_readable or version is None or exceptions is None:
        return NodeAcknowledgement(node)
    levels = data.get(_HONORS_KEY, "").split()
    honors = frozenset(level for level in HintLevel if level.value in levels)
    return NodeAcknowledgement(node, version, exceptions, honors)


def render_acknowledgement(
    acknowledgement: NodeAcknowledgement, *, owner: OwnerReference | None = None
) -> ConfigMap:
    """Return the ConfigMap to write; `owner` is the Node, so that it is deleted with the Node."""
    return ConfigMap(
        metadata=ObjectMeta(
            name=acknowledgement_name(acknowledgement.node),
            namespace=ACKNOWLEDGEMENT_NAMESPACE,
            labels={ACKNOWLEDGEMENT_LABEL: "true"},
            owner_references=() if owner is None else (owner,),
        ),
        data=render_data(acknowledgement),
    )


def render_data(acknowledgement: NodeAcknowledgement) -> dict[str, str]:
    """Return the data for a patch; equal acknowledgements give equal data."""
    exceptions = sorted(acknowledgement.exceptions.items())
    return {
        _FORMAT_KEY: _FORMAT_NUMBER,
        _PROGRAMMED_KEY: str(acknowledgement.version),
        _HONORS_KEY: " ".join(sorted(acknowledgement.honors)),
        _EXCEPTIONS_KEY: "".join([f"{key} {reason}\n" for key, reason in exceptions]),
    }


def parse_resource_version(text: str) -> int | None:
    """Return a resource version as a number; None if it is not numeric and cannot be compared."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def _parse_exceptions(text: str) -> dict[NamespacedName, str] | None:
    """Return the Services and reasons; None if a line is not of the form `a/b reason`.

    More than MAX_EXCEPTIONS also give None. A reason is cut to the length of a word.
    """
    exceptions: dict[NamespacedName, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        service, _, reason = line.strip().partition(" ")
        namespace, slash, name = service.partition("/")
        word = plain_line(reason, longest=_MAX_REASON)
        if not (namespace and slash and name) or "/" in name or not word:
            return None
        exceptions[NamespacedName(namespace, name)] = word
        if len(exceptions) > MAX_EXCEPTIONS:
            return None
    return exceptions
