"""Answers as clients want them: objects that were written, failures, and warnings beside both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from keepclose.apiserver.http.messages import Answer
from keepclose.apiserver.serving.negotiation import JSON, Form, encode, shape_object
from keepclose.apiserver.serving.notices import warning_headers
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.serving.writing import Written
from keepclose.apiserver.status_errors import Failure

_PLAIN: Final = Form()
_UNAUTHORIZED: Final = 401


def content_type_of(form: Form) -> bytes:
    """Return the Content-Type of an answer."""
    return b"application/json" if form.media_type == JSON else b"application/yaml"


def answer_with(code: int, data: bytes, form: Form) -> Answer:
    """Return data that is rendered already."""
    return Answer(code, data, content_type_of(form))


def answer_written(target: Target, written: Written, warnings: list[str], form: Form) -> Answer:
    """Return what became of a write."""
    if form == _PLAIN and written.entry is not None and not target.resource.stored_as:
        data = written.entry.data
    else:
        shaped = shape_object(target.resource, written.object, form)
        data = encode(shaped, form.media_type)
    answer = answer_with(201 if written.created else 200, data, form)
    answer.headers = warning_headers(warnings + written.warnings)
    return answer


def answer_status(code: int, status: dict[str, Any], warnings: list[str], form: Form) -> Answer:
    """Return a Status as the outcome of a request."""
    answer = answer_with(code, encode(status, form.media_type), form)
    answer.headers = warning_headers(warnings)
    return answer


def answer_failure(failure: Failure) -> Answer:
    """Return a failure as it is sent."""
    answer = Answer(failure.code, msgspec.json.encode(failure.status()))
    if failure.retry_after is not None:
        answer.headers = ((b"Retry-After", str(failure.retry_after).encode()),)
    answer.headers += warning_headers(failure.warnings)
    if failure.code == _UNAUTHORIZED:
        answer.headers += ((b"WWW-Authenticate", b'Bearer realm="keepclose"'),)
    return answer


@contextmanager
def noting(warnings: list[str]) -> Iterator[None]:
    """Have a refusal tell the warnings too."""
    try:
        yield
    except Failure as failure:
        failure.warnings = warnings + failure.warnings
        raise
