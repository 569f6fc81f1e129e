r"""Selectors: which objects a Service, a list or a watch is about.

Label selectors follow the grammar of the API ("a=b,c!=d,e in (f,g),!h,i>3"): "!=" and "notin" also
match objects without the label, "()" holds the empty value. Field selectors know "=", "==" and
"!=", with backslashes before "\", "," and "=" in values. Parsing answers with a selector or a
`SelectorRejected` and never raises; the text of a selector parses to the same selector again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never

import msgspec

from keepclose.model.metadata_validation import label_value, qualified_name


class SelectorRejected(msgspec.Struct, frozen=True):
    """Says why a text is no selector."""

    message: str


class Operator(StrEnum):
    """How a label is compared; "==" is read as "="."""

    EQUALS = "="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"
    GREATER = ">"
    LESS = "<"


class LabelRequirement(msgspec.Struct, frozen=True):
    """One condition on a label; values are sorted and free of repetitions."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.operator is Operator.EXISTS:
            return self.key
        if self.operator is Operator.ABSENT:
            return f"!{self.key}"
        if self.operator in (Operator.IN, Operator.NOT_IN):
            return f"{self.key} {self.operator} ({','.join(self.values)})"
        return f"{self.key}{self.operator}{self.values[0]}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil the condition."""
        found = labels.get(self.key)
        match self.operator:
            case Operator.EQUALS | Operator.IN:
                return found in self.values
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return found not in self.values
            case Operator.EXISTS:
                return found is not None
            case Operator.ABSENT:
                return found is None
            case Operator.GREATER | Operator.LESS:
                if found is None or not _is_int64(found):
                    return False
                bound = int(self.values[0])
                return (
                    int(found) > bound if self.operator is Operator.GREATER else int(found) < bound
                )
            case _:
                assert_never(self.operator)


class LabelSelector(msgspec.Struct, frozen=True):
    """Conditions that must all hold; none selects everything."""

    requirements: tuple[LabelRequirement, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil every condition."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class FieldRequirement(msgspec.Struct, frozen=True):
    """One condition on a field, which counts as "" where it is absent."""

    field: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.field}{'!=' if self.negated else '='}{_special.sub(_ESCAPE, self.value)}"


class FieldSelector(msgspec.Struct, frozen=True):
    """Conditions that must all hold; none selects everything."""

    requirements: tuple[FieldRequirement, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return whether the fields, by their paths, fulfil every condition."""
        return all(
            (fields.get(one.field, "") == one.value) is not one.negated for one in self.requirements
        )


class LabelMatcher:
    """A label selector made ready to be asked often.

    All conditions on one label become one, so that what a question costs depends on the labels of
    the object and not on how many conditions there are.
    """

    def __init__(self, selector: LabelSelector) -> None:
        """Combine the conditions of each label."""
        # What the value of a label must be among; None allows any value.
        self._wanted: dict[str, frozenset[str] | None] = {}
        # What the value of a label must not be among, where there is one; None forbids the label.
        self._refused: dict[str, frozenset[str] | None] = {}
        self._compared: dict[str, list[LabelRequirement]] = {}
        for requirement in selector.requirements:
            self._add(requirement)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return what `LabelSelector.matches` returns."""
        wanted, refused = self._wanted, self._refused
        if len(wanted) > len(labels):
            return False
        for key, values in wanted.items():
            found = labels.get(key)
            if found is None or (values is not None and found not in values):
                return False
        if refused:
            for key in labels if len(labels) < len(refused) else refused:
                if key in refused and key in labels:
                    values = refused[key]
                    if values is None or labels[key] in values:
                        return False
        return all(
            requirement.matches(labels)
            for requirements in self._compared.values()
            for requirement in requirements
        )

    def _add(self, requirement: LabelRequirement) -> None:
        key, values = requirement.key, frozenset(requirement.values)
        match requirement.operator:
            case Operator.EQUALS | Operator.IN:
                before = self._wanted.get(key)
                self._wanted[key] = values if before is None else before & values
            case Operator.EXISTS:
                self._wanted.setdefault(key, None)
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                known = self._refused.get(key, frozenset())
                self._refused[key] = None if known is None else known | values
            case Operator.ABSENT:
                self._refused[key] = None
            case Operator.GREATER | Operator.LESS:
                self._wanted.setdefault(key, None)
                self._compare(requirement)
            case _:
                assert_never(requirement.operator)

    def _compare(self, requirement: LabelRequirement) -> None:
        """Keep the narrowest bound of each direction."""
        kept = self._compared.setdefault(requirement.key, [])
        for place, other in enumerate(kept):
            if other.operator is requirement.operator:
                bounds = (int(other.values[0]), int(requirement.values[0]))
                is_greater = requirement.operator is Operator.GREATER
                if (max(bounds) if is_greater else min(bounds)) != bounds[0]:
                    kept[place] = requirement
                return
        kept.append(requirement)


class FieldMatcher:
    """A field selector made ready to be asked often, at a cost by fields and not by conditions."""

    def __init__(self, selector: FieldSelector) -> None:
        """Combine the conditions of each field."""
        self._wanted: dict[str, str] = {}
        self._refused: dict[str, set[str]] = {}
        self._impossible = False
        for requirement in selector.requirements:
            field, value = requirement.field, requirement.value
            if requirement.negated:
                self._refused.setdefault(field, set()).add(value)
            else:
                self._impossible |= self._wanted.setdefault(field, value) != value

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return what `FieldSelector.matches` returns."""
        return (
            not self._impossible
            and all(fields.get(field, "") == value for field, value in self._wanted.items())
            and all(fields.get(field, "") not in some for field, some in self._refused.items())
        )


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a Service with this selector takes a pod with these labels.

    The empty selector selects all; what a Service without any selector means is for the caller.
    """
    return all(labels.get(key) == value for key, value in selector.items())


def parse_label_selector(text: str) -> LabelSelector | SelectorRejected:
    """Return the label selector that the text means; "" selects everything."""
    # NB: taken from the end, because a list gives its last word at no cost.
    words = _words.findall(text)[::-1]
    requirements: list[LabelRequirement] = []
    while words:
        requirement = _take_requirement(words)
        if isinstance(requirement, str):
            return SelectorRejected(f"label selector {text!r}: {requirement}")
        requirements.append(requirement)
        if words and (words.pop() != "," or not words):
            return SelectorRejected(f"label selector {text!r}: expected ',' between conditions")
    return LabelSelector(tuple(sorted(requirements, key=lambda one: one.key)))


def parse_field_selector(text: str) -> FieldSelector | SelectorRejected:
    """Return the field selector that the text means; "" selects everything."""
    requirements: list[FieldRequirement] = []
    for term in _terms.findall(text):
        match = _field_term(term)
        if match is None:
            return SelectorRejected(
                f"field selector {text!r}: cannot read {term!r}; write field=value or field!=value"
            )
        field, operator, value = match.groups()
        if not _is_escaped(value):
            return SelectorRejected(
                f"field selector {text!r}: in {value!r} a backslash must stand before "
                "each of '\\', ',' and '=', and nowhere else"
            )
        plain = _escaped.sub(r"\1", value)
        requirements.append(FieldRequirement(field, plain, negated=operator == "!="))
    return FieldSelector(tuple(requirements))


_words = re.compile(r"==|!=|[=!(),<>]|[^\s=!(),<>]+")
_is_word = re.compile(r"[^\s=!(),<>]+").fullmatch
_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_terms = re.compile(r"(?:\\.|[^,\\]|\\\Z)+", re.DOTALL)
_field_term = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL).fullmatch
_is_escaped = re.compile(r"(?:\\[\\,=]|[^\\,=])*").fullmatch
_escaped = re.compile(r"\\([\\,=])")
_special = re.compile(r"[\\,=]")
_ESCAPE = r"\\\g<0>"


def _take_requirement(words: list[str]) -> LabelRequirement | str:
    """Return the condition that the last words begin with and take it off, or say what is wrong."""
    negated = words[-1] == "!"
    if negated:
        words.pop()
    key = words.pop() if words else ""
    if not _is_word(key):
        return f"expected a label, found {key!r}" if key else "expected a label after '!'"
    if problems := qualified_name(key):
        return f"key {key!r}: {problems[0]}"
    if negated:
        return LabelRequirement(key, Operator.ABSENT)
    if not words or words[-1] == ",":
        return LabelRequirement(key, Operator.EXISTS)
    operator = _OPERATORS.get(words.pop())
    if operator is None:
        return f"expected one of {', '.join(_OPERATORS)} after {key!r}"
    if operator in (Operator.IN, Operator.NOT_IN):
        values = _take_values(words)
        if values is None:
            return f"expected values in parentheses after {key!r} {operator}"
    else:
        values = {words.pop() if words and _is_word(words[-1]) else ""}
    for value in sorted(values):
        if operator in (Operator.GREATER, Operator.LESS) and not _is_int64(value):
            return f"value {value!r} of {key!r}: {operator} needs a whole number"
        if problems := label_value(value):
            return f"value {value!r} of {key!r}: {problems[0]}"
    return LabelRequirement(key, operator, tuple(sorted(values)))


def _take_values(words: list[str]) -> set[str] | None:
    if not words or words.pop() != "(":
        return None
    values: set[str] = set()
    while words:
        values.add(words.pop() if _is_word(words[-1]) else "")
        closing = words.pop() if words else ""
        if closing == ")":
            return values
        if closing != ",":
            return None
    return None


def _is_int64(text: str) -> bool:
    return _is_integer(text) is not None and -(2**63) <= int(text) < 2**63


_OPERATORS = {
    "=": Operator.EQUALS,
    "==": Operator.EQUALS,
    "!=": Operator.NOT_EQUALS,
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
    ">": Operator.GREATER,
    "<": Operator.LESS,
}
