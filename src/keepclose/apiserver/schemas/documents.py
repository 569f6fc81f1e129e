"""A document as it goes over the wire, with the mark by which clients and caches know it."""

from __future__ import annotations

from hashlib import sha512
from typing import Final

import msgspec

JSON: Final = "application/json"
TITLE: Final = {"title": "Kubernetes", "version": "1.36"}


class Document(msgspec.Struct, frozen=True):
    """Bytes that stay the same as long as the process lives."""

    body: bytes
    media_type: str
    # Without quotes; the same for the same bytes in every process.
    hash: str

    @property
    def etag(self) -> str:
        """The hash as the header ETag writes it."""
        return f'"{self.hash}"'


def make_document(body: bytes, media_type: str = JSON) -> Document:
    """Return a document with its hash."""
    return Document(body, media_type, sha512(body).hexdigest().upper())
