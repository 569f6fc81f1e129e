"""Why a request failed, as the Status object that Kubernetes clients understand.

Every refusal in this package is raised as a `Failure`; the outermost layer turns it into an HTTP
answer. Status code, reason, message and causes are those of a real kube-apiserver, because
clients and people act on them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from keepclose.model.field_errors import FieldError

# What an answer names of all that is wrong with an object. A cause may repeat the list that it
# stands in, so that without a bound the answer has the square of the body's size.
MOST_CAUSES: Final = 1000
MOST_CAUSE_CHARACTERS: Final = 256 * 1024


class StatusError(Exception):
    """A request that cannot be followed."""

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
        # What goes into the metadata of the Status, such as a token to go on with.
        self.metadata: dict[str, Any] = {}
        # What the client is told besides; also a refused write may have odd fields.
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
    """Return a resource's name with its group, as messages show it."""
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> StatusError:
    """Return the answer to a name that nothing has."""
    return StatusError(
        404,
        "NotFound",
        f"{qualified(plural, group)} {_quoted(name)} not found",
        details=_details(plural, group, name),
    )


def no_such_path() -> StatusError:
    """Return the answer to a path that no resource is behind."""
    return StatusError(
        404, "NotFound", "the server could not find the requested resource", details={}
    )


def already_exists(plural: str, group: str, name: str) -> StatusError:
    """Return the answer to a create whose name is taken."""
    return StatusError(
        409,
        "AlreadyExists",
        f"{qualified(plural, group)} {_quoted(name)} already exists",
        details=_details(plural, group, name),
    )


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    """Return the answer to a write that another one overtook."""
    return StatusError(
        409,
        "Conflict",
        f"Operation cannot be fulfilled on {qualified(plural, group)} {_quoted(name)}: {why}",
        details=_details(plural, group, name),
    )


def stale(plural: str, group: str, name: str) -> StatusError:
    """Return the answer to an update made from an old version of the object."""
    why = (
        "the object has been modified; please apply your changes to the latest version and try"
        " again"
    )
    return conflict(plural, group, name, why)


def invalid_object(kind: str, group: str, name: str, causes: Sequence[FieldError]) -> StatusError:
    """Return the answer to an object that breaks the rules of its kind; it names the first ones."""
    named = _shown(causes)
    texts = list(dict.fromkeys(f"{cause.field}: {body}" for cause, body in named))
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
    if named:
        details["causes"] = [
            {"reason": cause.type, "message": body, "field": cause.field} for cause, body in named
        ]
    return StatusError(422, "Invalid", message, details=details)


def _shown(causes: Sequence[FieldError]) -> list[tuple[FieldError, str]]:
    """Return causes with what they say, as many as an answer may name."""
    named: list[tuple[FieldError, str]] = []
    left = MOST_CAUSE_CHARACTERS
    for cause in causes[:MOST_CAUSES]:
        body = cause.body
        named.append((cause, body))
        left -= len(body) + len(cause.field)
        if left < 0:
            break
    return named


def bad_request(message: str) -> StatusError:
    """Return the answer to a request that cannot be read."""
    return StatusError(400, "BadRequest", message)


def forbidden(plural: str, group: str, name: str, why: str) -> StatusError:
    """Return the answer to a request that the caller may not make."""
    quoted = f" {_quoted(name)}" if name else ""
    return StatusError(
        403,
        "Forbidden",
        f"{qualified(plural, group)}{quoted} is forbidden: {why}",
        details=_details(plural, group, name),
    )


def unauthorized() -> StatusError:
    """Return the answer to credentials that nobody has."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed(method: str = "") -> StatusError:
    """Return the answer to a verb that the resource does not have."""
    del method
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """Return the answer to a request for a content type that is not served."""
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return StatusError(406, "NotAcceptable", message)


def unsupported_patch_type() -> StatusError:
    """Return the answer to a patch of a type that does not exist."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """Return the answer to a body of a type that is not read."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return StatusError(415, "UnsupportedMediaType", message)


def internal_error(why: str) -> StatusError:
    """Return the answer to a request that the server itself could not follow."""
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {why}",
        details={"causes": [{"message": why}]},
    )


def too_large(limit: int) -> StatusError:
    """Return the answer to a body over the limit."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def too_many_requests() -> StatusError:
    """Return the answer to an identity that has too much under way already."""
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, retry_after=1)


def too_many_connections() -> StatusError:
    """Return the answer to a watch of a user who has too many connections in use."""
    message = "too many connections of this user are in use, please try again later"
    return StatusError(429, "TooManyRequests", message, retry_after=1)


def expired(message: str = "The provided continue parameter is too old") -> StatusError:
    """Return the answer to a version that is no longer kept."""
    return StatusError(410, "Expired", message)


def too_old(asked: int, oldest: int) -> StatusError:
    """Return the answer to a watch from a version that is no longer kept."""
    return expired(f"too old resource version: {asked} ({oldest})")


def _quoted(name: str) -> str:
    """Return a name as messages show it: a quote within it is escaped."""
    return json.dumps(name, ensure_ascii=False)


def _details(plural: str, group: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = plural
    return details
