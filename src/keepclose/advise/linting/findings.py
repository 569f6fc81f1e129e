"""Findings of the linter: the rule, the object and field that break it, why, and the fix.

A rule is described once, here and in its documentation page. The severity says what a pipeline
should do: an error contradicts what the manifest asks for, a warning endangers it, information is
worth a thought.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from keepclose.model.meta import ObjectMeta


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


SEVERITY_ORDER: Final = (Severity.ERROR, Severity.WARNING, Severity.INFO)
"""The most severe first."""


class ObjectName(NamedTuple):
    """The kind, namespace and name of an object; Nodes have no namespace."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, kind: str, meta: ObjectMeta) -> ObjectName:
        """Return the name of an object."""
        return cls(kind, meta.namespace, meta.name)

    def __str__(self) -> str:
        path = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return path if self.kind == "Service" else f"{self.kind} {path}"


class LintFinding(msgspec.Struct, frozen=True):
    """One place that breaks a rule; `fix` is a command or one imperative sentence, or ""."""

    rule: str
    severity: Severity
    subject: ObjectName
    field: str
    message: str
    fix: str = ""


class LintRule(msgspec.Struct, frozen=True):
    """A rule and its documentation.

    `name` is for people, `id` for programs; neither ever changes its meaning.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str

    def found(self, subject: ObjectName, field: str, message: str, fix: str = "") -> LintFinding:
        """Return a finding of this rule."""
        return LintFinding(self.id, self.severity, subject, field, message, fix)
