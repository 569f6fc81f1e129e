"""The fields of a kubeconfig, each read as the type it must have.

What a field holds instead is said with the file and the path of the field; values of secrets are
never shown. An absent field and null are the same.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Final

from keepclose.kube.auth.credentials import unreadable
from keepclose.kube.errors import ConfigError
from keepclose.system.files import MOST_SETTINGS_BYTES, read_input


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
        """Tell whether the field holds anything."""
        return bool(self._values.get(field))

    def value(self, field: str) -> Any:
        """Return whatever stands there; None when nothing does."""
        return self._values.get(field)

    def text(self, field: str, *, needed: bool = False) -> str:
        """Return a text; "" when absent."""
        found = self._values.get(field)
        if found is None or found == "":
            if needed:
                raise self.error(field, "is missing", fix="add it")
            return ""
        if not isinstance(found, str):
            fix = "put it in quotes" if not isinstance(found, dict | list) else ""
            raise self.error(field, f"expected a text, got {_article(found)}", fix=fix)
        return found

    def flag(self, field: str) -> bool:
        """Return a boolean; False when absent."""
        found = self._values.get(field)
        if found is not None and not isinstance(found, bool):
            fix = "write true or false, without quotes"
            raise self.error(field, f"expected true or false, got {_article(found)}", fix=fix)
        return bool(found)

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of texts; empty when absent."""
        listed = self._list(field)
        for position, item in enumerate(listed):
            if not isinstance(item, str):
                where = f"{field}[{position}]"
                why = f"expected a text, got {_article(item)}"
                raise self.error(where, why, fix="put it in quotes")
        return tuple(listed)

    def maps(self, field: str) -> list[Fields]:
        """Return a list of maps; empty when absent."""
        found = []
        for position, item in enumerate(self._list(field)):
            where = f"{field}[{position}]"
            if not isinstance(item, dict):
                raise self.error(where, f"expected a map, got {_article(item)}")
            found.append(Fields(item, file=self.file, path=self.path(where)))
        return found

    def map(self, field: str, *, path: str = "") -> Fields:
        """Return a map, known by the given path; an empty one when absent."""
        found = self._values.get(field)
        if found is None:
            found = {}
        if not isinstance(found, dict):
            raise self.error(field, f"expected a map, got {_article(found)}")
        return Fields(found, file=self.file, path=path or self.path(field))

    def file_path(self, field: str) -> str:
        """Return a path, relative ones taken from the kubeconfig's folder; "" when absent."""
        named = self.text(field)
        return str(Path(self.file).parent.absolute() / Path(named).expanduser()) if named else ""

    def data(self, field: str) -> bytes:
        """Return what a field in base64 holds; empty when absent."""
        encoded = self.text(field)
        try:
            return base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            fix = "encode the file with base64 -w0"
            raise self.error(field, "is no base64", fix=fix) from None

    def secret(self, field: str) -> bytes:
        """Return `<field>-data`, or what the file named by the field holds; empty when absent."""
        if self.has(f"{field}-data"):
            return self.data(f"{field}-data")
        named = self.file_path(field)
        if not named:
            return b""
        try:
            return read_input(named, most=MOST_SETTINGS_BYTES)
        except OSError as error:
            raise unreadable(named, error, field=self.path(field), source=self.file) from error

    def encoded(self, field: str) -> str:
        """Return the same in base64."""
        return base64.b64encode(self.secret(field)).decode()

    def _list(self, field: str) -> list[Any]:
        found = self._values.get(field)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.error(field, f"expected a list, got {_article(found)}")
        return found


_WORDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a text"),
    (list, "a list"),
    (dict, "a map"),
    (type(None), "nothing"),
)


def _article(value: object) -> str:
    return next((words for kind, words in _WORDS if isinstance(value, kind)), "a value")
