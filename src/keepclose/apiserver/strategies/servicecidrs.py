"""What becomes of a ServiceCIDR when it is written.

The ranges of a cluster may be told apart but not changed: a second family may be added, nothing
more. The first one, `kubernetes`, is what the server hands out cluster IPs from.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.strategy import Context
from keepclose.apiserver.strategies.plain import PlainStrategy
from keepclose.model.addresses import cidr_causes, family_of
from keepclose.model.field_errors import Cause, invalid, required
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import IMMUTABLE

DEFAULT_NAME: Final = "kubernetes"
_FIELD = "spec.cidrs"


class ServiceCIDRStrategy(PlainStrategy):
    """Ranges of cluster IPs."""

    has_status = True
    kept_by_status_updates = ("labels", "annotations", "finalizers", "ownerReferences")

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with the ranges, or what an update changed of them."""
        del context
        ranges: list[str] = (new.get("spec") or {}).get("cidrs") or []
        if old is None:
            return _range_causes(ranges)
        before: list[str] = (old.get("spec") or {}).get("cidrs") or []
        if len(ranges) == len(before):
            return [
                invalid(f"{_FIELD}[{place}]", one, IMMUTABLE)
                for place, (one, other) in enumerate(zip(ranges, before, strict=True))
                if one != other
            ]
        if len(before) == 1 and len(ranges) == 2:
            causes = _range_causes(ranges)
            if ranges[0] != before[0]:
                causes.insert(0, invalid(f"{_FIELD}[0]", ranges[0], IMMUTABLE))
            return causes
        return [invalid(_FIELD, ranges, IMMUTABLE)]


def default_service_cidr(ranges: tuple[str, ...], *, now: str) -> JsonObject:
    """Return the object that names the ranges of the cluster, ready from the start."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": DEFAULT_NAME},
        "spec": {"cidrs": list(ranges)},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "",
                    "message": "Kubernetes default Service CIDR is ready",
                }
            ]
        },
    }


def _range_causes(ranges: list[str]) -> list[Cause]:
    if not ranges:
        return [required(_FIELD, "at least one CIDR required")]
    if len(ranges) > 2:
        return [invalid(_FIELD, {"CIDRs": ranges}, "may only hold up to 2 values")]
    causes: list[Cause] = []
    for place, one in enumerate(ranges):
        causes += cidr_causes(f"{_FIELD}[{place}]", one, strict=True)
    families = [] if causes else [family_of(one.partition("/")[0]) for one in ranges]
    if len(families) == 2 and families[0] == families[1] is not None:
        detail = (
            "may specify no more than one IP for each IP family, "
            "i.e 192.168.0.0/24 and 2001:db8::/64"
        )
        causes.append(invalid(_FIELD, ranges, detail))
    return causes
