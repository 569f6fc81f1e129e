"""What becomes of a Lease when it is written. It is never updated blindly: that would steal it."""

from __future__ import annotations

from keepclose.apiserver.registry.strategy import Context
from keepclose.apiserver.strategies.plain import PlainStrategy
from keepclose.model.field_errors import Cause, invalid
from keepclose.model.json_values import JsonObject
from keepclose.model.workload import NOT_NEGATIVE


class LeaseStrategy(PlainStrategy):
    """Locks with a time limit."""

    allows_unconditional_update = False
    allows_create_on_update = True

    def set_defaults(self, new: JsonObject) -> None:
        """Drop what belongs to coordinated elections, which are switched off."""
        for key in ("strategy", "preferredHolder"):
            (new.get("spec") or {}).pop(key, None)

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with the numbers."""
        del old, context
        spec = new.get("spec") or {}
        causes: list[Cause] = []
        duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        if duration is not None and duration <= 0:
            causes.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        if transitions is not None and transitions < 0:
            causes.append(invalid("spec.leaseTransitions", transitions, NOT_NEGATIVE))
        return causes
