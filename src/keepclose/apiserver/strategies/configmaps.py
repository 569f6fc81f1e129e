"""What becomes of a ConfigMap when it is written: keys that can be files, and limits."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from typing import Final

from keepclose.apiserver.registry.strategy import Context
from keepclose.apiserver.strategies.plain import PlainStrategy, same
from keepclose.model.field_errors import Cause, forbidden, invalid, too_long
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import DNS1123_SUBDOMAIN_MAX, byte_length

MAX_BYTES: Final = 1 << 20
_FORM = "[-._a-zA-Z0-9]+"
_is_key = re.compile(_FORM).fullmatch
_KEY_SENTENCE: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    f"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_FORM}')"
)


class ConfigMapStrategy(PlainStrategy):
    """Settings."""

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with keys and sizes, and what an immutable one may not change."""
        del context
        causes: list[Cause] = []
        if old is not None and old.get("immutable"):
            causes += [
                forbidden(key, "field is immutable when `immutable` is set")
                for key in ("immutable", "data", "binaryData")
                if not same(new.get(key) or None, old.get(key))
            ]
        data, binary = new.get("data") or {}, new.get("binaryData") or {}
        for key in sorted(data):
            causes += [invalid(f"data[{key}]", key, text) for text in config_key(key)]
            if key in binary:
                detail = "duplicate of key present in binaryData"
                causes.append(invalid(f"data[{key}]", key, detail))
        for key in sorted(binary):
            causes += [invalid(f"binaryData[{key}]", key, text) for text in config_key(key)]
        size = sum(map(byte_length, data.values())) + sum(map(_decoded_length, binary.values()))
        if size > MAX_BYTES:
            causes.append(too_long("[]", MAX_BYTES))
        return causes


def config_key(value: str) -> list[str]:
    """Return what keeps the string from being a key: it must be able to name a file."""
    messages: list[str] = []
    if byte_length(value) > DNS1123_SUBDOMAIN_MAX:
        messages.append(f"must be no more than {DNS1123_SUBDOMAIN_MAX} characters")
    if not _is_key(value):
        messages.append(_KEY_SENTENCE)
    if value == ".":
        messages.append("must not be '.'")
    elif value == "..":
        messages.append("must not be '..'")
    elif value.startswith(".."):
        messages.append("must not start with '..'")
    return messages


def _decoded_length(text: str) -> int:
    try:
        return len(b64decode(text, validate=True))
    except (NotBase64, ValueError):
        return len(text)
