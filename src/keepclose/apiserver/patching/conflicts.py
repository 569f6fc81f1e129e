"""Fields that another manager owns with another value, told as a real server tells them."""

from __future__ import annotations

import json

from keepclose.apiserver.patch.field_sets import show_path
from keepclose.apiserver.patch.go_format import quote
from keepclose.apiserver.patch.managed_fields import UPDATE, Owner
from keepclose.apiserver.status_errors import Failure

Conflict = tuple[Owner, tuple[str, ...]]


def spell_owner(owner: Owner) -> str:
    """Return the text by which a server sorts owners."""
    manager, operation, version, subresource = owner
    parts = {"manager": manager, "operation": operation, "apiVersion": version}
    if subresource:
        parts["subresource"] = subresource
    return json.dumps({name: one for name, one in parts.items() if one}, separators=(",", ":"))


def tell_conflicts(conflicts: list[Conflict]) -> Failure:
    """Return the answer to an apply that is not forced; conflicts come sorted by owner."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_present(owner)}",
            "field": show_path(path),
        }
        for owner, path in conflicts
    ]
    if len(conflicts) == 1:
        cause = causes[0]
        message = f"Apply failed with 1 conflict: {cause['message']}: {cause['field']}"
    else:
        lines: list[str] = []
        for owner in dict.fromkeys(owner for owner, _ in conflicts):
            lines.append(f"conflicts with {_present(owner)}:")
            lines += (f"- {show_path(path)}" for other, path in conflicts if other == owner)
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return Failure(409, "Conflict", message, details={"causes": causes})


def _present(owner: Owner) -> str:
    manager, operation, version, subresource = owner
    text = quote(manager)
    if subresource:
        text += f" with subresource {quote(subresource)}"
    return f"{text} using {version}" if operation == UPDATE else text
