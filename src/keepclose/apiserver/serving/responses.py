"""Builds responses: written objects, Statuses and errors, with their warning headers.

The limits of warnings are those of kube-apiserver: when they have more than 4096 characters
together, each is cut to 256, and those that do not fit then are dropped. A warning with control
characters, which would break the header, is dropped too.

The entries of a list are those of one version. A portion is rendered only after the client has
taken the one before. Portions that need computing are rendered in a thread, in the turn of their
user.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec

from keepclose.apiserver.serving.http_messages import HttpResponse
from keepclose.apiserver.serving.negotiation import (
    JSON_FORM,
    ListRendering,
    ResponseForm,
    encode,
    shape_object,
)
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.serving.writing import Written
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.entries import Entry

MAX_OF_ONE: Final = 256
_MAX_CHARACTERS: Final = 4096
_PLAIN: Final = ResponseForm()
_UNAUTHORIZED: Final = 401

Headers = tuple[tuple[bytes, bytes], ...]
PLAIN_BYTES: Final = 128 * 1024
"""The size of a portion of objects that are sent as they are stored."""
RENDERED_BYTES: Final = 64 * 1024
"""The size of a portion of objects that are rendered first, in bytes of stored JSON."""

_Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]


def warning_headers(texts: Iterable[str]) -> Headers:
    """Return the headers of the warnings, without duplicates; () without warnings."""
    fit = [text for text in dict.fromkeys(texts) if text and not _has_controls(text)]
    if sum(map(len, fit)) > _MAX_CHARACTERS:
        fit = _truncate(fit)
    return tuple((b"Warning", _warning_value(text)) for text in fit)


def _truncate(texts: list[str]) -> list[str]:
    kept: list[str] = []
    total = 0
    for text in texts:
        if total >= _MAX_CHARACTERS:
            break
        kept.append(text[:MAX_OF_ONE])
        total += len(kept[-1])
    return kept


def _has_controls(text: str) -> bool:
    return not text.isprintable() and any(
        unicodedata.category(character) == "Cc" for character in text
    )


def _warning_value(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'.encode(errors="replace")


def content_type_of(form: ResponseForm) -> bytes:
    """Return the Content-Type of a response."""
    return b"application/json" if form.media_type == JSON_FORM else b"application/yaml"


def respond_with(code: int, data: bytes, form: ResponseForm) -> HttpResponse:
    """Return the response with a rendered body."""
    return HttpResponse(code, data, content_type_of(form))


def respond_written(
    target: RequestTarget, written: Written, warnings: list[str], form: ResponseForm
) -> HttpResponse:
    """Return the response to a write: the written object and its warnings."""
    if form == _PLAIN and written.entry is not None and not target.resource.stored_as:
        data = written.entry.data
    else:
        shaped = shape_object(target.resource, written.object, form)
        data = encode(shaped, form.media_type)
    answer = respond_with(201 if written.created else 200, data, form)
    answer.headers = warning_headers(warnings + written.warnings)
    return answer


def respond_status(
    code: int, status: dict[str, Any], warnings: list[str], form: ResponseForm
) -> HttpResponse:
    """Return the response with a Status and its warnings."""
    answer = respond_with(code, encode(status, form.media_type), form)
    answer.headers = warning_headers(warnings)
    return answer


def respond_error(failure: StatusError) -> HttpResponse:
    """Return the response to a failed request."""
    answer = HttpResponse(failure.code, msgspec.json.encode(failure.status()))
    if failure.retry_after is not None:
        answer.headers = ((b"Retry-After", str(failure.retry_after).encode()),)
    answer.headers += warning_headers(failure.warnings)
    if failure.code == _UNAUTHORIZED:
        answer.headers += ((b"WWW-Authenticate", b'Bearer realm="keepclose"'),)
    return answer


@contextmanager
def warnings_on_error(warnings: list[str]) -> Iterator[None]:
    """Add the warnings to a StatusError that the block raises."""
    try:
        yield
    except StatusError as failure:
        failure.warnings = warnings + failure.warnings
        raise


class ListStream:
    """A list as a stream of portions."""

    def __init__(self, rendering: ListRendering, entries: Sequence[Entry], run: _Run) -> None:
        """Prepare to render; `run` computes a portion, in a thread or in turn with others."""
        self.content_type = content_type_of(rendering.form)
        self.endless = False
        self._rendering = rendering
        self._entries = entries
        self._run = run

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the portions."""
        rendering, entries = self._rendering, self._entries
        yield rendering.begin(empty=not entries)
        size = PLAIN_BYTES if rendering.is_plain else RENDERED_BYTES
        for start, stop in portions(entries, size):
            render = partial(rendering.items, entries[start:stop], first=start == 0)
            yield await self._run(render)
        end = rendering.end()
        if end:
            yield end

    def close(self) -> None:
        """Release the entries."""
        self._entries = ()


def portions(entries: Sequence[Entry], most: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of portions of at most so many bytes; a larger entry is one by itself."""
    start = total = 0
    for position, entry in enumerate(entries):
        size = len(entry.data)
        if total and total + size > most:
            yield start, position
            start, total = position, 0
        total += size
    if start < len(entries):
        yield start, len(entries)
