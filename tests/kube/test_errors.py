"""Tests of the errors that answers of a server amount to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.kube import errors
from keepclose.kube.errors import (
    ApiError,
    ConfigError,
    ConnectionRefused,
    KubeError,
    StatusCause,
    TimedOut,
    TransportError,
    UnreadableObject,
    error_from,
    error_of,
)
from keepclose.model.field_errors import required


def status(code: int, reason: str = "", message: str = "", **more: Any) -> bytes:
    """Return the body of a failure."""
    found = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return msgspec.json.encode({**found, "reason": reason, "message": message, **more})


@pytest.mark.parametrize(
    ("code", "reason", "want_class"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Expired),
        (410, "Gone", errors.Expired),
        (413, "RequestEntityTooLarge", errors.TooLarge),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (500, "ServerTimeout", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.Timeout),
        (405, "MethodNotAllowed", ApiError),
        (406, "NotAcceptable", ApiError),
        (415, "UnsupportedMediaType", ApiError),
    ],
)
def test_every_reason_has_its_class(code: int, reason: str, want_class: type[ApiError]) -> None:
    """The reason of a Status decides the class, and its code and message are kept."""
    error = error_from(code, {}, status(code, reason, "because"))
    assert type(error) is want_class
    assert (error.code, error.reason, error.message) == (code, reason, "because")
    assert str(error) == "because"


@pytest.mark.parametrize("code", range(300, 600))
def test_every_status_is_mapped_without_a_body(code: int) -> None:
    """A status alone is enough: 5xx are ServerErrors, the known 4xx have their class."""
    error = error_from(code, {}, b"")
    want = {
        400: errors.BadRequest,
        401: errors.Unauthorized,
        403: errors.Forbidden,
        404: errors.NotFound,
        409: errors.Conflict,
        410: errors.Expired,
        413: errors.TooLarge,
        422: errors.Invalid,
        429: errors.TooManyRequests,
        504: errors.Timeout,
    }.get(code, errors.ServerError if code >= 500 else ApiError)
    assert type(error) is want
    assert (error.code, str(error)) == (code, f"HTTP status {code}")


@pytest.mark.parametrize(
    ("body", "want_message"),
    [
        pytest.param(b"404 page not found\n", "404 page not found", id="plain text"),
        pytest.param(b"<html>\n  <b>Bad</b>\n</html>", "<html> <b>Bad</b> </html>", id="HTML"),
        pytest.param(b'["a"]', '["a"]', id="JSON that is no object"),
        pytest.param(b"\xff\xfe", "\ufffd\ufffd", id="no text at all"),
        pytest.param(b"x" * 400, "x" * 300 + "...", id="a long text is cut"),
    ],
)
def test_a_body_that_is_no_status_is_the_message(body: bytes, want_message: str) -> None:
    """Proxies and old servers answer with text; it is shown."""
    assert error_from(404, {}, body).message == want_message


@pytest.mark.parametrize(
    ("headers", "details", "want_seconds"),
    [
        pytest.param({"Retry-After": "7"}, {}, 7.0, id="from the header"),
        pytest.param({}, {"retryAfterSeconds": 3}, 3.0, id="from the details"),
        pytest.param({"Retry-After": "7"}, {"retryAfterSeconds": 3}, 7.0, id="header first"),
        pytest.param({"Retry-After": "0"}, {}, None, id="zero is none"),
        pytest.param({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None, id="a date"),
        pytest.param({"Retry-After": "-1"}, {}, None, id="a negative number"),
        pytest.param({}, {"retryAfterSeconds": "x"}, None, id="nonsense"),
        pytest.param({"Retry-After": "9" * 5000}, {}, None, id="more digits than a number has"),
        pytest.param({"Retry-After": "9" * 20}, {}, 3600.0, id="for ever"),
        pytest.param({}, {"retryAfterSeconds": 2**63}, 3600.0, id="for ever, from the details"),
        pytest.param({}, {}, None, id="nothing"),
    ],
)
def test_the_time_to_come_back(
    headers: dict[str, str], details: dict[str, Any], want_seconds: float | None
) -> None:
    """Retry-After is read from the header or from the Status."""
    body = status(429, "TooManyRequests", details=details)
    assert error_from(429, headers, body).retry_after == want_seconds


def test_the_causes_of_an_invalid_object() -> None:
    """Causes come field by field; ill-formed ones are passed over."""
    cause = {"reason": "FieldValueInvalid", "field": "spec.ports", "message": "bad"}
    error = error_from(422, {}, status(422, "Invalid", details={"causes": [cause, 7, {}]}))
    want = [StatusCause("FieldValueInvalid", "spec.ports", "bad"), StatusCause("", "", "")]
    assert error.causes == want
    assert error_from(422, {}, status(422, details={"causes": "none"})).causes == []


def test_an_expired_list_offers_a_token() -> None:
    """The token of an inconsistent rest of a list is kept."""
    body = status(410, "Expired", metadata={"continue": "tok"})
    assert error_from(410, {}, body).continue_token == "tok"  # noqa: S105
    assert error_from(410, {}, status(410, "Expired")).continue_token == ""


def test_parts_of_the_wrong_type_count_as_absent() -> None:
    """A Status that is itself broken still makes an error."""
    found = {"code": "x", "reason": 7, "message": None, "details": [], "metadata": "m"}
    error = error_of(found)
    assert type(error) is errors.ServerError
    assert (error.code, error.reason, error.message, error.details) == (500, "", "", {})
    assert str(error_of({"code": 410})) == "HTTP status 410"


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """Every class of the module stands in the drawing at its head."""
    drawn = errors.__doc__ or ""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, KubeError)
    ]
    assert len(classes) == 23
    assert [c.__name__ for c in classes if c.__name__ not in drawn] == []


def test_messages_say_what_where_and_the_fix() -> None:
    """The parts of a message that are known stand in one line."""
    assert (
        str(ConfigError("is missing", file="/kc", field="server", fix="add it"))
        == "/kc: server: is missing; add it"
    )
    assert str(ConfigError("no pod")) == "no pod"
    assert str(TransportError("h:1", "gone", fix="look")) == "h:1: gone; look"
    assert str(TransportError("", "gone")) == "gone"
    assert str(UnreadableObject("shop/web", required("spec"))) == "shop/web: spec: Required value"


def test_what_was_sent_is_known() -> None:
    """Only failures to connect are sure that nothing was sent."""
    assert ConnectionRefused("h", "r").sent is False
    assert TimedOut("h", "r").sent is True
    assert TimedOut("h", "r", sent=False).sent is False


def test_a_time_beyond_all_numbers_is_cut() -> None:
    """A Status may hold an integer that no float can."""
    body = b'{"details": {"retryAfterSeconds": %s}}' % (b"9" * 400)
    assert error_from(429, {}, body).retry_after == errors.MAX_WAIT_S
