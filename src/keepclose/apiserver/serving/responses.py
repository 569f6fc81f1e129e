"""Answers as clients want them: objects that were written, failures, and warnings beside both."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from keepclose.apiserver.serving.messages import HttpAnswer
from keepclose.apiserver.serving.negotiation import JSON_FORM, ResponseForm, encode, shape_object
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.serving.writing import Written
from keepclose.apiserver.status_errors import StatusError

Headers = tuple[tuple[bytes, bytes], ...]
_MOST_CHARACTERS: Final = 4096
MOST_OF_ONE: Final = 256
_PLAIN: Final = ResponseForm()
_UNAUTHORIZED: Final = 401


def warning_headers(texts: Iterable[str]) -> Headers:
    """Return the headers for the warnings, each once; none for none."""
    fit = [text for text in dict.fromkeys(texts) if text and not _has_controls(text)]
    if sum(map(len, fit)) > _MOST_CHARACTERS:
        fit = _cut(fit)
    return tuple((b"Warning", _header(text)) for text in fit)


def _cut(texts: list[str]) -> list[str]:
    kept: list[str] = []
    total = 0
    for text in texts:
        if total >= _MOST_CHARACTERS:
            break
        kept.append(text[:MOST_OF_ONE])
        total += len(kept[-1])
    return kept


def _has_controls(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(one) == "Cc" for one in text)


def _header(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'.encode(errors="replace")


def content_type_of(form: ResponseForm) -> bytes:
    """Return the Content-Type of an answer."""
    return b"application/json" if form.media_type == JSON_FORM else b"application/yaml"


def answer_with(code: int, data: bytes, form: ResponseForm) -> HttpAnswer:
    """Return data that is rendered already."""
    return HttpAnswer(code, data, content_type_of(form))


def answer_written(
    target: RequestTarget, written: Written, warnings: list[str], form: ResponseForm
) -> HttpAnswer:
    """Return what became of a write."""
    if form == _PLAIN and written.entry is not None and not target.resource.stored_as:
        data = written.entry.data
    else:
        shaped = shape_object(target.resource, written.object, form)
        data = encode(shaped, form.media_type)
    answer = answer_with(201 if written.created else 200, data, form)
    answer.headers = warning_headers(warnings + written.warnings)
    return answer


def answer_status(
    code: int, status: dict[str, Any], warnings: list[str], form: ResponseForm
) -> HttpAnswer:
    """Return a Status as the outcome of a request."""
    answer = answer_with(code, encode(status, form.media_type), form)
    answer.headers = warning_headers(warnings)
    return answer


def answer_failure(failure: StatusError) -> HttpAnswer:
    """Return a failure as it is sent."""
    answer = HttpAnswer(failure.code, msgspec.json.encode(failure.status()))
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
    except StatusError as failure:
        failure.warnings = warnings + failure.warnings
        raise
