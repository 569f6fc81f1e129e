"""What becomes of a Namespace when it is written.

A namespace carries its own name as a label, so that selectors can find it. Its contents hold it
through a list of finalizers in its spec, which only the finalize subresource changes.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.metadata import (
    NOT_STANDARD,
    carry_system_metadata,
    is_known_finalizer,
)
from keepclose.apiserver.registry.strategy import Context
from keepclose.apiserver.strategies.plain import PlainStrategy, keep, keep_all_but_status
from keepclose.model.field_errors import Cause, invalid
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import qualified_name

NAME_LABEL: Final = "kubernetes.io/metadata.name"
FINALIZER: Final = "kubernetes"


class NamespaceStrategy(PlainStrategy):
    """Namespaces."""

    has_status = True
    returns_deleted = True

    def prepare_create(self, new: JsonObject, context: Context) -> None:
        """Make the namespace active, held by its contents."""
        del context
        new["status"] = {"phase": "Active"}
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            finalizers = [*finalizers, FINALIZER]
        new["spec"] = {**(new.get("spec") or {}), "finalizers": finalizers}
        self.set_defaults(new)

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: Context, *, subresource: str = ""
    ) -> None:
        """Keep what belongs to the other subresources."""
        del context
        carry_system_metadata(new, old)
        self.set_defaults(new)
        if subresource == "status":
            keep_all_but_status(new, old)
            return
        keep(new, old, "status")
        if subresource == "finalize":
            new["spec"] = new.get("spec") or {}
            if not new["spec"].get("finalizers"):
                new["spec"].pop("finalizers", None)
        else:
            keep(new, old, "spec")

    def set_defaults(self, new: JsonObject) -> None:
        """Set the label that is the name."""
        name = new["metadata"].get("name")
        if name:
            labels = new["metadata"].get("labels") or {}
            new["metadata"]["labels"] = {**labels, NAME_LABEL: name}

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with the finalizers of the spec."""
        del old, context
        causes: list[Cause] = []
        for finalizer in (new.get("spec") or {}).get("finalizers") or ():
            field = "spec.finalizers"
            causes += [invalid(field, finalizer, text) for text in qualified_name(finalizer)]
            if not is_known_finalizer(finalizer):
                causes.append(invalid(field, finalizer, NOT_STANDARD))
        return causes

    def status_causes(self, new: JsonObject, old: JsonObject, context: Context) -> list[Cause]:
        """Return when the phase does not fit."""
        del old, context
        phase = (new.get("status") or {}).get("phase", "")
        leaving = bool(new["metadata"].get("deletionTimestamp"))
        wanted = "Terminating" if leaving else "Active"
        if phase == wanted:
            return []
        state = "not empty" if leaving else "empty"
        detail = f"may only be '{wanted}' if `deletionTimestamp` is {state}"
        # NB: the path is upstream's.
        return [invalid("status.Phase", phase, detail)]
