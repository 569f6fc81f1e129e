"""The errors of requests, as the Status object that Kubernetes clients understand.

Every rejection in this package is raised as a `StatusError`; the outermost layer turns it into an
HTTP response. Code, reason, message and causes are those of kube-apiserver, word by word, because
clients and operators act on them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from keepclose.model.field_errors import FieldError

# How many validation errors of an object a response lists. A cause may repeat the list in which its
# field is, so that without a bound the response would have the square of the size of the body.
MAX_CAUSES: Final = 1000
MAX_CAUSE_CHARACTERS: Final = 256 * 1024


class StatusError(Exception):
    """A request that fails, with the Status that the client gets."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Hold the parts of the Status."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after
        # The metadata of the Status, such as a continue token.
        self.metadata: dict[str, Any] = {}
        # The warnings for the client; a rejected write may have unknown fields too.
        self.warnings: list[str] = []

    def status(self) -> dict[str, Any]:
        """Return the Status object."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        details = None if self.details is None else dict(self.details)
        if self.retry_after is not None:
            details = {**(details or {}), "retryAfterSeconds": self.retry_after}
        if details is not None:
            body["details"] = details
        body["code"] = self.code
        return body


def qualified(plural: str, group: str) -> str:
    """Return the name of a resource with its group, as in messages."""
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> StatusError:
    """Return the error for an object that does not exist."""
    return StatusError(
        404,
        "NotFound",
        f"{qualified(plural, group)} {_quoted(name)} not found",
        details=_details(plural, group, name),
    )


def path_not_found() -> StatusError:
    """Return the error for a path without a resource."""
    return StatusError(
        404, "NotFound", "the server could not find the requested resource", details={}
    )


def already_exists(plural: str, group: str, name: str) -> StatusError:
    """Return the error for a create of an object that exists."""
    return StatusError(
        409,
        "AlreadyExists",
        f"{qualified(plural, group)} {_quoted(name)} already exists",
        details=_details(plural, group, name),
    )


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    """Return the error for a write that conflicts with the state of the object."""
    return StatusError(
        409,
        "Conflict",
        f"Operation cannot be fulfilled on {qualified(plural, group)} {_quoted(name)}: {why}",
        details=_details(plural, group, name),
    )


def stale(plural: str, group: str, name: str) -> StatusError:
    """Return the error for an update based on an old version of the object."""
    why = (
        "the object has been modified; please apply your changes to the latest version and try"
        " again"
    )
    return conflict(plural, group, name, why)


def invalid_object(kind: str, group: str, name: str, causes: Sequence[FieldError]) -> StatusError:
    """Return the error for an invalid object; it lists the first validation errors."""
    listed = _first_causes(causes)
    texts = list(dict.fromkeys(f"{cause.field}: {body}" for cause, body in listed))
    message = f"{qualified(kind, group)} {_quoted(name)} is invalid"
    if len(texts) == 1:
        message += f": {texts[0]}"
    elif texts:
        message += f": [{', '.join(texts)}]"
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    if listed:
        details["causes"] = [
            {"reason": cause.type, "message": body, "field": cause.field} for cause, body in listed
        ]
    return StatusError(422, "Invalid", message, details=details)


def _first_causes(causes: Sequence[FieldError]) -> list[tuple[FieldError, str]]:
    """Return causes with their messages, as many as a response may list."""
    listed: list[tuple[FieldError, str]] = []
    left = MAX_CAUSE_CHARACTERS
    for cause in causes[:MAX_CAUSES]:
        body = cause.body
        listed.append((cause, body))
        left -= len(body) + len(cause.field)
        if left < 0:
            break
    return listed


def bad_request(message: str) -> StatusError:
    """Return the error for a malformed request."""
    return StatusError(400, "BadRequest", message)


def forbidden(plural: str, group: str, name: str, why: str) -> StatusError:
    """Return the error for a request that the user may not make."""
    quoted = f" {_quoted(name)}" if name else ""
    return StatusError(
        403,
        "Forbidden",
        f"{qualified(plural, group)}{quoted} is forbidden: {why}",
        details=_details(plural, group, name),
    )


def unauthorized() -> StatusError:
    """Return the error for unknown credentials."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed(method: str = "") -> StatusError:
    """Return the error for a verb that the resource does not support."""
    del method
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """Return the error for a request that accepts no media type that the server can produce."""
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return StatusError(406, "NotAcceptable", message)


def unsupported_patch_type() -> StatusError:
    """Return the error for an unknown type of patch."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """Return the error for a body of an unknown media type."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return StatusError(415, "UnsupportedMediaType", message)


def internal_error(why: str) -> StatusError:
    """Return the error for a fault of the server."""
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {why}",
        details={"causes": [{"message": why}]},
    )


def too_large(limit: int) -> StatusError:
    """Return the error for a body over the limit."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def too_many_requests() -> StatusError:
    """Return the error for a user with too many requests in flight."""
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, retry_after=1)


def too_many_connections() -> StatusError:
    """Return the error for a watch of a user with too many connections in use."""
    message = "too many connections of this user are in use, please try again later"
    return StatusError(429, "TooManyRequests", message, retry_after=1)


def expired(message: str = "The provided continue parameter is too old") -> StatusError:
    """Return the error for a version that was compacted."""
    return StatusError(410, "Expired", message)


def too_old(asked: int, oldest: int) -> StatusError:
    """Return the error for a watch from a version that was compacted."""
    return expired(f"too old resource version: {asked} ({oldest})")


def _quoted(name: str) -> str:
    """Return a name in quotes, as in messages; quotes within it are escaped."""
    return json.dumps(name, ensure_ascii=False)


def _details(plural: str, group: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = plural
    return details
