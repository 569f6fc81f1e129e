"""What a node says about the hints it has: one small ConfigMap per node, written now and then.

The proxy of a node says up to which version it has programmed the slices of hinted Services, which
hints it goes by at all, and for which Services it does not use the hints all the same. Both sides,
the proxy that renders and the controller that parses, share this module. KEP-4444 leaves open how a
data plane answers; one object per node costs one write per node and change, and never one per
Service.

The form has a number. The first form, a `version` without a number, did not say which hints a node
goes by; controllers that know only that form find no `version` here, and take the node for one that
has not answered. So do we with the first form, with forms that are newer, and with an object that
holds two forms because an older proxy wrote over it.
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
_FORM: Final = "form"
_FORM_NUMBER: Final = "2"
_PROGRAMMED: Final = "programmed"
_HONORS: Final = "honors"
_EXCEPTIONS: Final = "exceptions"
OUTDATED_KEYS: Final = ("version",)
"""What the first form had; a proxy that writes over it takes this away."""
MOST_EXCEPTIONS: Final = 15_000
"""With more than these a node says nothing at all: what it says is kept in memory line by line."""
# A node may write anything; what it gives as a reason stands in conditions of Services.
_LONGEST_REASON: Final = 63
# Versions are numbers of 64 bits.
_MOST_DIGITS: Final = 20


class HintLevel(StrEnum):
    """The kinds of hints on endpoints, by the names of their fields."""

    ZONES = "forZones"
    NODES = "forNodes"


class NodeAcknowledgement(msgspec.Struct, frozen=True):
    """What one node has put into effect.

    `version` is the highest resource version of a slice of a hinted Service up to which everything
    is programmed; 0 says nothing. `exceptions` are Services whose hints the node has and does not
    use, and one word why. `honors` are the hints that the node goes by, as its feature gates are.
    """

    node: str
    version: int = 0
    exceptions: dict[NamespacedName, str] = {}
    honors: frozenset[HintLevel] = frozenset()


def acknowledgement_name(node: str) -> str:
    """Return the name of the ConfigMap in which a node answers."""
    return f"{_PREFIX}{node}"


def parse_acknowledgement(config_map: ConfigMap) -> NodeAcknowledgement | None:
    """Return what a node says; None for an object that is no acknowledgement.

    One that cannot be read counts as if the node had not answered: version 0.
    """
    meta = config_map.metadata
    node = meta.name.removeprefix(_PREFIX)
    if not meta.name.startswith(_PREFIX) or not node:
        return None
    data = config_map.data
    version = parse_version(data.get(_PROGRAMMED, ""))
    exceptions = _parse_exceptions(data.get(_EXCEPTIONS, ""))
    is_readable = data.get(_FORM) == _FORM_NUMBER and not any(key in data for key in OUTDATED_KEYS)
    if not is_readable or version is None or exceptions is None:
        return NodeAcknowledgement(node)
    words = data.get(_HONORS, "").split()
    honors = frozenset(level for level in HintLevel if level.value in words)
    return NodeAcknowledgement(node, version, exceptions, honors)


def render_acknowledgement(
    acknowledgement: NodeAcknowledgement, *, owner: OwnerReference | None = None
) -> ConfigMap:
    """Return the ConfigMap to write; `owner` is the Node, with which it then goes."""
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
    """Return the data alone, for a patch; the same for the same, whatever the order."""
    exceptions = sorted(acknowledgement.exceptions.items())
    return {
        _FORM: _FORM_NUMBER,
        _PROGRAMMED: str(acknowledgement.version),
        _HONORS: " ".join(sorted(acknowledgement.honors)),
        _EXCEPTIONS: "".join([f"{key} {reason}\n" for key, reason in exceptions]),
    }


def parse_version(text: str) -> int | None:
    """Return a resource version as a number; None where it is none and cannot be compared."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else None


def _parse_exceptions(text: str) -> dict[NamespacedName, str] | None:
    """Return the Services and reasons; None when a line is not of the form `a/b reason`.

    There may be MOST_EXCEPTIONS. A reason is cut to what a word needs.
    """
    found: dict[NamespacedName, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        service, _, reason = line.strip().partition(" ")
        namespace, slash, name = service.partition("/")
        plain = plain_line(reason, longest=_LONGEST_REASON)
        if not (namespace and slash and name) or "/" in name or not plain:
            return None
        found[NamespacedName(namespace, name)] = plain
        if len(found) > MOST_EXCEPTIONS:
            return None
    return found
