"""The errors of requests to an API server, as one tree.

    KubeError
      ConfigError             a kubeconfig, certificate or credential that cannot be used
      UsageError              a call that must not reach a server; a bug
      UnreadableObject        an object that violates the types of its kind
      TransportError          no complete answer arrived
        ConnectionRefused       no connection could be opened; nothing was sent
        ConnectionLost          the connection broke; the request may have been served
        TimedOut                a limit passed
        TlsError                the two sides do not trust each other
        BrokenStream            the bytes are not those of the API
      ApiError                the server answered, with a failure
        BadRequest 400   Unauthorized 401   Forbidden 403   NotFound 404   Timeout 504
        AlreadyExists 409   Conflict 409   Expired 410   TooLarge 413   Invalid 422
        TooManyRequests 429   ServerError 5xx

A message says what failed, on what, and what to do about it. Other statuses are plain ApiErrors.
"""

# ruff: noqa: N818 - the names are the API's own: a NotFound is called NotFound everywhere.
from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from keepclose.model.field_errors import FieldError
from keepclose.model.json_values import JsonObject


class KubeError(Exception):
    """Root of all errors of this package."""


class ConfigError(KubeError):
    """Settings that cannot be used: which file, which field, why, and how to fix it."""

    def __init__(self, why: str, *, file: str = "", field: str = "", fix: str = "") -> None:
        self.file, self.field, self.why, self.fix = file, field, why, fix
        where = ": ".join(part for part in (file, field, why) if part)
        super().__init__(f"{where}; {fix}" if fix else where)


class UsageError(KubeError, ValueError):
    """A call that must not reach a server, such as deleting an object without a name."""


class UnreadableObject(KubeError):
    """An object of the server that violates the types of its kind."""

    def __init__(self, name: str, cause: FieldError) -> None:
        self.name, self.cause = name, cause
        super().__init__(f"{name}: {cause}")


class TransportError(KubeError):
    """No complete answer arrived: which server, why, and what to check.

    `sent` is whether the server may have received the request.
    """

    def __init__(self, host: str, reason: str, *, fix: str = "", sent: bool = True) -> None:
        self.host, self.reason, self.fix, self.sent = host, reason, fix, sent
        where = f"{host}: {reason}" if host else reason
        super().__init__(f"{where}; {fix}" if fix else where)


class ConnectionRefused(TransportError):
    """No connection could be opened, so nothing was sent."""

    def __init__(self, host: str, reason: str, *, fix: str = "", sent: bool = False) -> None:
        super().__init__(host, reason, fix=fix, sent=sent)


class ConnectionLost(TransportError):
    """The connection broke before the answer was complete."""


class TimedOut(TransportError):
    """A timeout passed before the answer was complete."""


class TlsError(TransportError):
    """The two sides do not trust each other, or one does not speak TLS."""

    def __init__(self, host: str, reason: str, *, fix: str = "", sent: bool = False) -> None:
        super().__init__(host, reason, fix=fix, sent=sent)


class BrokenStream(TransportError):
    """The received bytes are not those of the Kubernetes API."""


class StatusCause(NamedTuple):
    """One cause of a failure, at one field."""

    reason: str
    field: str
    message: str


class ApiError(KubeError):
    """The server answered with a failure.

    `retry_after` is the delay in seconds that the server asked for. `continue_token` is set only
    when a list expired midway. `request` names the request, when known.
    """

    def __init__(
        self,
        code: int,
        reason: str = "",
        message: str = "",
        *,
        details: JsonObject | None = None,
        retry_after: float | None = None,
        continue_token: str = "",
    ) -> None:
        self.code, self.reason, self.message = code, reason, message
        self.details: JsonObject = details or {}
        self.retry_after = retry_after
        self.continue_token = continue_token
        self.request = ""
        super().__init__(message or reason or f"HTTP status {code}")

    @property
    def causes(self) -> list[StatusCause]:
        """The causes by field; empty when the server named none."""
        listed = self.details.get("causes")
        return [
            StatusCause(
                str(cause.get("reason") or ""),
                str(cause.get("field") or ""),
                str(cause.get("message") or ""),
            )
            for cause in (listed if isinstance(listed, list) else [])
            if isinstance(cause, dict)
        ]


class BadRequest(ApiError):
    """The server could not read the request."""


class Unauthorized(ApiError):
    """The server could not authenticate the client."""


class Forbidden(ApiError):
    """The client is authenticated but not authorized."""


class NotFound(ApiError):
    """Nothing has that name or path."""


class AlreadyExists(ApiError):
    """An object of that name already exists."""


class Conflict(ApiError):
    """Another client wrote first, or another manager owns a field."""


class Expired(ApiError):
    """A resource version or continue token is older than what the server keeps."""


class TooLarge(ApiError):
    """The body is over the server's limit."""


class Invalid(ApiError):
    """The object violates the validation rules of its kind; see `causes`."""


class TooManyRequests(ApiError):
    """The server limits the rate of requests; see `retry_after`."""


class ServerError(ApiError):
    """The server failed."""


class Timeout(ServerError):
    """The server, or a gateway before it, gave up waiting."""


# NB: the reason decides before the code, because one code has several reasons: 409 is AlreadyExists
# or Conflict. Older servers send Gone where newer ones send Expired.
_BY_REASON: Final[dict[str, type[ApiError]]] = {
    "BadRequest": BadRequest,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Expired": Expired,
    "Gone": Expired,
    "RequestEntityTooLarge": TooLarge,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "InternalError": ServerError,
    "ServerTimeout": ServerError,
    "ServiceUnavailable": ServerError,
    "Timeout": Timeout,
}
_BY_CODE: Final[dict[int, type[ApiError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    413: TooLarge,
    422: Invalid,
    429: TooManyRequests,
    504: Timeout,
}
CHECK_SERVER: Final = "check that the server is a Kubernetes API server"
"""The fix for an answer that no API server gives."""
MAX_WAIT_S: Final = 3600
"""The longest Retry-After that is obeyed; a longer one is cut to this."""
# The most digits of a Retry-After; a longer number is ignored.
_MAX_NUMBER: Final = 20
# How much of an answer that is no Status is shown.
_SHOWN_CHARACTERS: Final = 300


def error_from(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error of an answer; a body that is no Status becomes the message."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        text = " ".join(body.decode(errors="replace").split())
        if len(text) > _SHOWN_CHARACTERS:
            text = text[:_SHOWN_CHARACTERS] + "..."
        decoded = {"message": text}
    return error_of(decoded, code=status, retry_after=_seconds(headers.get("Retry-After")))


def error_of(status: JsonObject, *, code: int = 0, retry_after: float | None = None) -> ApiError:
    """Return the error of a Status object; the HTTP status `code` wins over its own code.

    Fields of the wrong type count as absent.
    """
    status_code = status.get("code")
    code = code or (status_code if isinstance(status_code, int) else 0) or 500
    reason = _text(status.get("reason"))
    details = status.get("details")
    details = details if isinstance(details, dict) else {}
    metadata = status.get("metadata")
    if retry_after is None:
        retry_after = _seconds(details.get("retryAfterSeconds"))
    default = ServerError if code >= 500 else ApiError
    return _BY_REASON.get(reason, _BY_CODE.get(code, default))(
        code,
        reason,
        _text(status.get("message")),
        details=details,
        retry_after=retry_after,
        continue_token=_text(metadata.get("continue")) if isinstance(metadata, dict) else "",
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: object) -> float | None:
    """Return a delay in seconds; 0 and dates, which only proxies send, count as absent.

    NB: int and float of Python reject very long numbers.
    """
    if isinstance(value, str):
        is_number = value.isascii() and value.isdecimal() and len(value) <= _MAX_NUMBER
        value = int(value) if is_number else None
    return float(min(value, MAX_WAIT_S)) if isinstance(value, int) and value > 0 else None
