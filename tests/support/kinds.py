"""A write path over the strategies of the API server, without HTTP and without a store.

It prepares, judges and settles as the server does, and hands back what would be stored.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

import msgspec

from keepclose.apiserver.registry.metadata import metadata_causes
from keepclose.apiserver.registry.registry import AllocationSettings, strategies
from keepclose.apiserver.registry.strategy import KindStrategy, ObjectWrite
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

NOW: Final = "2026-01-02T03:04:05Z"


class Outcome(msgspec.Struct, frozen=True):
    """What a write led to: the object, or why not."""

    object: JsonObject = {}
    causes: list[str] = []
    warnings: list[str] = []
    failure: str = ""


class Kinds:
    """Writes objects by their kind, and remembers nothing but what strategies do."""

    def __init__(self, *cidrs: str, first_port: int = 30000, last_port: int = 32767) -> None:
        """Start with everything free; without ranges there is one small one."""
        settings = AllocationSettings(cidrs or ("10.96.0.0/24",), first_port, last_port, seed=7)
        self.strategies = strategies(settings)

    def of(self, obj: JsonObject) -> KindStrategy:
        """Return the strategy of an object."""
        return self.strategies[BY_KIND[obj["apiVersion"], obj["kind"]].store]

    def write(
        self,
        new: JsonObject,
        old: JsonObject | None = None,
        *,
        gates: FeatureGates | None = None,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Outcome:
        """Write the object, over the stored one when it is an update."""
        new, strategy = deepcopy(new), self.of(new)
        write = ObjectWrite(
            new,
            deepcopy(old),
            gates=gates or FeatureGates(),
            now=NOW,
            dry_run=dry_run,
            subresource=subresource,
        )
        try:
            strategy.set_defaults(write)
            if old is None:
                strategy.prepare_create(write)
            else:
                write.keep_system_metadata()
                strategy.prepare_update(write)
        except StatusError as failure:
            return Outcome(failure=f"{failure.code} {failure.message}")
        causes = metadata_causes(
            BY_KIND[new["apiVersion"], new["kind"]], new, old, gates=write.gates
        )
        causes += strategy.validate(write)
        warnings = [] if causes else strategy.warnings(write)
        strategy.settle(write, stored=not causes and not dry_run)
        return Outcome(new, [str(cause) for cause in causes], warnings)


def raw(kind: str, name: str = "one", **members: Any) -> JsonObject:
    """Return a raw object of the kind with the given members, in the default namespace."""
    resource = next(one for (_, found), one in BY_KIND.items() if found == kind)
    metadata: JsonObject = {"name": name, **members.pop("metadata", {})}
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    return {"apiVersion": resource.api_version, "kind": kind, "metadata": metadata, **members}
