"""The fields of a kubeconfig, each read as the type that it must have.

An error names the file, the path of the field and the type that it has instead; it never shows the
value of a secret. An absent field and null are the same.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Final

from keepclose.kube.auth.credentials import unreadable
from keepclose.kube.errors import ConfigError
from keepclose.system.files import MAX_SETTINGS_BYTES, read_input

_TYPE_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a text"),
    (list, "a list"),
    (dict, "a map"),
    (type(None), "nothing"),
)


class Fields:
    """One map of a kubeconfig."""

    def __init__(self, values: dict[str, Any], *, file: str, path: str = "") -> None:
        self._values = values
        self._path = path
        self.file = file

    def path(self, field: str = "") -> str:
        """Return the path of a field, or of the whole map."""
        return ".".join(part for part in (self._path, field) if part)

    def error(self, field: str, why: str, *, fix: str = "") -> ConfigError:
        """Return an error about a field."""
        return ConfigError(why, file=self.file, field=self.path(field), fix=fix)

    def has(self, field: str) -> bool:
        """Return whether the field has a value."""
        return bool(self._values.get(field))

    def value(self, field: str) -> Any:
        """Return the value of a field, of any type; None when absent."""
        return self._values.get(field)

    def text(self, field: str, *, needed: bool = False) -> str:
        """Return a text; "" when absent."""
        value = self._values.get(field)
        if value is None or value == "":
            if needed:
                raise self.error(field, "is missing", fix="add it")
            return ""
        if not isinstance(value, str):
            fix = "put it in quotes" if not isinstance(value, dict | list) else ""
            raise self.error(field, f"expected a text, got {_type_name(value)}", fix=fix)
        return value

    def flag(self, field: str) -> bool:
        """Return a boolean; False when absent."""
        value = self._values.get(field)
        if value is not None and not isinstance(value, bool):
            fix = "write true or false, without quotes"
            raise self.error(field, f"expected true or false, got {_type_name(value)}", fix=fix)
        return bool(value)

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of texts; empty when absent."""
        listed = self._list(field)
        for position, item in enumerate(listed):
            if not isinstance(item, str):
                where = f"{field}[{position}]"
                why = f"expected a text, got {_type_name(item)}"
                raise self.error(where, why, fix="put it in quotes")
        return tuple(listed)

    def maps(self, field: str) -> list[Fields]:
        """Return a list of maps; empty when absent."""
        maps: list[Fields] = []
        for position, item in enumerate(self._list(field)):
            where = f"{field}[{position}]"
            if not isinstance(item, dict):
                raise self.error(where, f"expected a map, got {_type_name(item)}")
            maps.append(Fields(item, file=self.file, path=self.path(where)))
        return maps

    def map(self, field: str, *, path: str = "") -> Fields:
        """Return a map, with `path` as its path in errors; an empty one when absent."""
        value = self._values.get(field)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(field, f"expected a map, got {_type_name(value)}")
        return Fields(value, file=self.file, path=path or self.path(field))

    def file_path(self, field: str) -> str:
        """Return a path, relative to the directory of the kubeconfig; "" when absent."""
        named = self.text(field)
        return str(Path(self.file).parent.absolute() / Path(named).expanduser()) if named else ""

    def data(self, field: str) -> bytes:
        """Return the decoded value of a base64 field; empty when absent."""
        encoded = self.text(field)
        try:
            return base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            fix = "encode the file with base64 -w0"
            raise self.error(field, "is not base64", fix=fix) from None

    def secret(self, field: str) -> bytes:
        """Return `<field>-data`, or the content of the file that the field names; else empty."""
        if self.has(f"{field}-data"):
            return self.data(f"{field}-data")
        named = self.file_path(field)
        if not named:
            return b""
        try:
            return read_input(named, most=MAX_SETTINGS_BYTES)
        except OSError as error:
            raise unreadable(named, error, field=self.path(field), source=self.file) from error

    def encoded(self, field: str) -> str:
        """Return the secret of a field in base64."""
        return base64.b64encode(self.secret(field)).decode()

    def _list(self, field: str) -> list[Any]:
        value = self._values.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(field, f"expected a list, got {_type_name(value)}")
        return value


def _type_name(value: object) -> str:
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "a value")
