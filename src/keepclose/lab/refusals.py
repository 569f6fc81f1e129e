"""What a person who asked something of the lab should read, in one line."""

from __future__ import annotations


class LabRefusal(Exception):  # noqa: N818 - a refusal is no error of the lab
    """Why the lab does not do what it was asked; `code` is the command's exit code."""

    def __init__(self, text: str, *, code: int = 2) -> None:
        super().__init__(text)
        self.code = code
