"""Raw objects read as the structs that the rules of the model work on."""

from __future__ import annotations

from typing import Any, TypeVar

from keepclose.apiserver.status_errors import bad_request, invalid_object
from keepclose.model.decoding import KnownObject, Rejected, convert

Known = TypeVar("Known", bound=KnownObject)


def read_as(kind: type[Known], raw: dict[str, Any]) -> Known:
    """Return the raw object as the struct of its kind; raises a Failure when it is not one."""
    found = convert(raw)
    if isinstance(found, kind):
        return found
    if isinstance(found, Rejected):
        name = (raw.get("metadata") or {}).get("name", "")
        raise invalid_object(kind.__name__, "", name, [found.cause])
    raise bad_request(f"the object provided is unrecognized (must be of type {kind.__name__})")
