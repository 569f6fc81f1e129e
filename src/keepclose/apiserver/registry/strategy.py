"""What every kind does with a write unless it says otherwise.

The write path calls, in this order: `prepare_create` or `prepare_update`, `metadata_causes` (which
is the same for all kinds), `validate` for the rest, `warnings`, the store, and last `settle` with
the very object that was prepared and whether it was stored, so that allocations are kept or given
back. Objects are plain JSON values and are changed in place: a typed subset is never encoded over
a user's object, because that would lose the fields it does not know.
"""

from __future__ import annotations

import msgspec

from keepclose.model.field_errors import Cause
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject


class Context(msgspec.Struct, frozen=True):
    """What a strategy may know besides the objects."""

    gates: FeatureGates
    # RFC 3339, to the second.
    now: str
    dry_run: bool = False


class Strategy:
    """Plain storage: spec and status apart, generation counted, names and labels checked."""

    # Whether an update may come without a resourceVersion.
    allows_unconditional_update = True
    # Whether a PUT to a free name creates the object.
    allows_create_on_update = False
    # Whether metadata.generation is kept: 1 at creation, one more with every change of the spec.
    counts_generations = False
    # Whether status is written by its own subresource only.
    has_status = False
    # Whether `restore` has anything to take note of; most kinds need no look at start.
    restores = False
    # Whether a delete that takes effect at once is answered with the object, not with a Status.
    returns_deleted = False

    def set_defaults(self, new: JsonObject) -> None:
        """Set what a client may leave out; the write path does so before owners are recorded."""

    def prepare_create(self, new: JsonObject, context: Context) -> None:
        """Set defaults, drop what may not be set by a create."""

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: Context, *, subresource: str = ""
    ) -> None:
        """Set defaults, carry over from the stored object what this write may not change."""

    def validate(
        self,
        new: JsonObject,
        old: JsonObject | None,
        context: Context,
        *,
        subresource: str = "",
    ) -> list[Cause]:
        """Return what is wrong apart from metadata; with the stored object when it is an update."""
        del new, old, context, subresource
        return []

    def warnings(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[str]:
        """Return what to tell the client although the write is followed."""
        del new, old, context
        return []

    def status_warnings(self, new: JsonObject) -> list[str]:
        """Return what to tell the client although its update of the status is followed."""
        del new
        return []

    def settle(self, new: JsonObject, old: JsonObject | None, *, stored: bool) -> None:
        """Keep what was allocated for this write, or give it back."""

    def restore(self, stored: JsonObject) -> None:
        """Take note of an object that was found in the store at start."""

    def remove(self, old: JsonObject) -> None:
        """Give back what a deleted object held."""

    def on_read(self, stored: JsonObject) -> None:
        """Change a stored object, in place, to what readers see of it."""

    def grace_period(self, stored: JsonObject, asked: int | None) -> int | None:
        """Return how many seconds the object may live on once its deletion was asked for.

        `asked` is what the client wants, or None. The answer is None for kinds that have no grace
        period; of the others the object goes at once with 0.
        """
        del stored, asked
        return None
