"""Everything that can go wrong between keepclose and an API server, as one tree.

    KubeError
      ConfigError             a kubeconfig, certificate or credential that cannot be used
      UsageError              a call that no server should see; a mistake of the program
      UnreadableObject        an object that breaks the types of its kind
      TransportError          no whole answer came
        ConnectionRefused       no connection could be made; nothing was sent
        ConnectionLost          the connection broke; the request may have been served
        TimedOut                a limit passed
        TlsError                the two sides do not trust each other
        BrokenStream            bytes came that are not the API's
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
    """Settings that cannot be used: which file, which field, why, and how to mend it."""

    def __init__(self, why: str, *, file: str = "", field: str = "", fix: str = "") -> None:
        self.file, self.field, self.why, self.fix = file, field, why, fix
        where = ": ".join(part for part in (file, field, why) if part)
        super().__init__(f"{where}; {fix}" if fix else where)


class UsageError(KubeError, ValueError):
    """A call that no server should see, such as deleting an object without a name."""


class UnreadableObject(KubeError):
    """An object of the server that breaks the types of its kind."""

    def __init__(self, name: str, cause: FieldError) -> None:
        self.name, self.cause = name, cause
        super().__init__(f"{name}: {cause}")


class TransportError(KubeError):
    """No whole answer came: which server, why, and what to look at.

    `sent` tells whether the server may have got the request.
    """

    def __init__(self, host: str, reason: str, *, fix: str = "", sent: bool = True) -> None:
        self.host, self.reason, self.fix, self.sent = host, reason, fix, sent
        where = f"{host}: {reason}" if host else reason
        super().__init__(f"{where}; {fix}" if fix else where)


class ConnectionRefused(TransportError):
    """No connection could be made, so nothing was sent."""

    def __init__(self, host: str, reason: str, *, fix: str = "", sent: bool = False) -> None:
        super().__init__(host, reason, fix=fix, sent=sent)


class ConnectionLost(TransportError):
    """The connection broke before the whole answer came."""


class TimedOut(TransportError):
    """A limit passed before the whole answer came."""


class TlsError(TransportError):
    """The two sides do not trust each other, or one does not speak TLS."""

    def __init__(self, host: str, reason: str, *, fix: str = "", sent: bool = False) -> None:
        super().__init__(host, reason, fix=fix, sent=sent)


class BrokenStream(TransportError):
    """Bytes came that are not those of the Kubernetes API."""


class StatusCause(NamedTuple):
    """One thing that the server found wrong, at one field."""

    reason: str
    field: str
    message: str


class ApiError(KubeError):
    """The server answered with a failure.

    `retry_after` holds seconds when the server named a time to come back. `continue_token` is
    only there when a list expired midway. `request` names what was asked, when known.
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
        """What the server found wrong, field by field; empty when it did not say."""
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
    """The server does not know who asks."""


class Forbidden(ApiError):
    """The server knows who asks and says no."""


class NotFound(ApiError):
    """Nothing has that name or path."""


class AlreadyExists(ApiError):
    """The name of a new object is taken."""


class Conflict(ApiError):
    """Another write came first, or another manager owns a field."""


class Expired(ApiError):
    """A resource version or continue token is older than what the server keeps."""


class TooLarge(ApiError):
    """The body is over the server's limit."""


class Invalid(ApiError):
    """The object breaks rules of its kind; see `causes`."""


class TooManyRequests(ApiError):
    """The server asks for patience; see `retry_after`."""


class ServerError(ApiError):
    """The server failed."""


class Timeout(ServerError):
    """The server, or a gateway before it, gave up waiting."""


# NB: reasons come first, because one status stands for several of them: 409 is AlreadyExists or
# Conflict. Older servers say Gone where newer ones say Expired.
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
"""What to do about an answer that no API server gives."""
LONGEST_WAIT_S: Final = 3600
"""How long a server may ask to be left alone; one that says more is asked again after this."""
# Digits of a time to wait; a longer row of them is no time.
_LONGEST_NUMBER: Final = 20
# How much of an answer that is no Status is worth showing.
_SHOWN_CHARACTERS: Final = 300


def error_from(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error that an answer amounts to; a body that is no Status becomes the message."""
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
    """Return the error that a Status object amounts to; a code of HTTP is believed before its own.

    Parts of the wrong type count as absent.
    """
    found = status.get("code")
    code = code or (found if isinstance(found, int) else 0) or 500
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
    """Return a time to wait; 0 and dates, which only proxies send, count as absent.

    NB: neither Python's int nor its float takes any number of digits.
    """
    if isinstance(value, str):
        is_number = value.isascii() and value.isdecimal() and len(value) <= _LONGEST_NUMBER
        value = int(value) if is_number else None
    return float(min(value, LONGEST_WAIT_S)) if isinstance(value, int) and value > 0 else None
