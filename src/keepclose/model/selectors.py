r"""Label and field selectors: which objects a Service, a list or a watch selects.

Label selectors follow the grammar of the API ("a=b,c!=d,e in (f,g),!h,i>3"): "!=" and "notin" also
match objects without the label, "()" holds the empty value. Field selectors support "=", "==" and
"!=", with backslashes before "\", "," and "=" in values. Parsing returns a selector or a
`SelectorRejected` and never raises; the text of a selector parses to the same selector again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never

import msgspec

from keepclose.model.metadata_validation import label_value, qualified_name

_words = re.compile(r"==|!=|[=!(),<>]|[^\s=!(),<>]+")
_is_word = re.compile(r"[^\s=!(),<>]+").fullmatch
_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_terms = re.compile(r"(?:\\.|[^,\\]|\\\Z)+", re.DOTALL)
_field_term = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL).fullmatch
_is_escaped = re.compile(r"(?:\\[\\,=]|[^\\,=])*").fullmatch
_escaped = re.compile(r"\\([\\,=])")
_special = re.compile(r"[\\,=]")
_ESCAPE = r"\\\g<0>"


class SelectorRejected(msgspec.Struct, frozen=True):
    """The error message for a text that is no selector."""

    message: str


class Operator(StrEnum):
    """The operator of a label requirement; "==" is parsed as "="."""

    EQUALS = "="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"
    GREATER = ">"
    LESS = "<"


_OPERATORS = {
    "=": Operator.EQUALS,
    "==": Operator.EQUALS,
    "!=": Operator.NOT_EQUALS,
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
    ">": Operator.GREATER,
    "<": Operator.LESS,
}


class LabelRequirement(msgspec.Struct, frozen=True):
    """A requirement on a label; its values are sorted and unique."""

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
        """Return whether the labels meet the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.EQUALS | Operator.IN:
                return value in self.values
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.ABSENT:
                return value is None
            case Operator.GREATER | Operator.LESS:
                if value is None or not _is_int64(value):
                    return False
                bound = int(self.values[0])
                return (
                    int(value) > bound if self.operator is Operator.GREATER else int(value) < bound
                )
            case _:
                assert_never(self.operator)


class LabelSelector(msgspec.Struct, frozen=True):
    """Requirements that must all be met; without any, everything is selected."""

    requirements: tuple[LabelRequirement, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class FieldRequirement(msgspec.Struct, frozen=True):
    """A requirement on a field; an absent field counts as ""."""

    field: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.field}{'!=' if self.negated else '='}{_special.sub(_ESCAPE, self.value)}"


class FieldSelector(msgspec.Struct, frozen=True):
    """Requirements that must all be met; without any, everything is selected."""

    requirements: tuple[FieldRequirement, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return whether the fields, by their paths, meet every requirement."""
        return all(
            (fields.get(requirement.field, "") == requirement.value) is not requirement.negated
            for requirement in self.requirements
        )


class LabelMatcher:
    """A label selector compiled for many matches.

    All requirements on a label are combined, so that the cost of a match depends on the labels of
    the object and not on the number of requirements.
    """

    def __init__(self, selector: LabelSelector) -> None:
        """Combine the requirements of each label."""
        # The allowed values of a label that must be present; None allows any value.
        self._allowed: dict[str, frozenset[str] | None] = {}
        # The forbidden values of a label; None forbids the label itself.
        self._forbidden: dict[str, frozenset[str] | None] = {}
        self._compared: dict[str, list[LabelRequirement]] = {}
        for requirement in selector.requirements:
            self._add(requirement)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return what `LabelSelector.matches` returns."""
        allowed, forbidden = self._allowed, self._forbidden
        if len(allowed) > len(labels):
            return False
        for key, values in allowed.items():
            value = labels.get(key)
            if value is None or (values is not None and value not in values):
                return False
        if forbidden:
            for key in labels if len(labels) < len(forbidden) else forbidden:
                if key in forbidden and key in labels:
                    values = forbidden[key]
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
                allowed = self._allowed.get(key)
                self._allowed[key] = values if allowed is None else allowed & values
            case Operator.EXISTS:
                self._allowed.setdefault(key, None)
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                forbidden = self._forbidden.get(key, frozenset())
                self._forbidden[key] = None if forbidden is None else forbidden | values
            case Operator.ABSENT:
                self._forbidden[key] = None
            case Operator.GREATER | Operator.LESS:
                self._allowed.setdefault(key, None)
                self._compare(requirement)
            case _:
                assert_never(requirement.operator)

    def _compare(self, requirement: LabelRequirement) -> None:
        """Keep the narrowest bound of each direction."""
        kept = self._compared.setdefault(requirement.key, [])
        for position, earlier in enumerate(kept):
            if earlier.operator is requirement.operator:
                bounds = (int(earlier.values[0]), int(requirement.values[0]))
                is_greater = requirement.operator is Operator.GREATER
                if (max(bounds) if is_greater else min(bounds)) != bounds[0]:
                    kept[position] = requirement
                return
        kept.append(requirement)


class FieldMatcher:
    """A field selector compiled for many matches; the cost depends on the fields alone."""

    def __init__(self, selector: FieldSelector) -> None:
        """Combine the requirements of each field."""
        self._allowed: dict[str, str] = {}
        self._forbidden: dict[str, set[str]] = {}
        self._impossible = False
        for requirement in selector.requirements:
            field, value = requirement.field, requirement.value
            if requirement.negated:
                self._forbidden.setdefault(field, set()).add(value)
            else:
                self._impossible |= self._allowed.setdefault(field, value) != value

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return what `FieldSelector.matches` returns."""
        return (
            not self._impossible
            and all(fields.get(field, "") == value for field, value in self._allowed.items())
            and all(
                fields.get(field, "") not in values for field, values in self._forbidden.items()
            )
        )


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a Service with this selector selects a pod with these labels.

    The empty selector selects all pods; the caller handles a Service without a selector.
    """
    return all(labels.get(key) == value for key, value in selector.items())


def parse_label_selector(text: str) -> LabelSelector | SelectorRejected:
    """Return the label selector in a text; "" selects everything."""
    # NB: reversed, because popping from the end of a list is cheap.
    words = _words.findall(text)[::-1]
    requirements: list[LabelRequirement] = []
    while words:
        requirement = _take_requirement(words)
        if isinstance(requirement, str):
            return SelectorRejected(f"label selector {text!r}: {requirement}")
        requirements.append(requirement)
        if words and (words.pop() != "," or not words):
            return SelectorRejected(f"label selector {text!r}: expected ',' between conditions")
    return LabelSelector(tuple(sorted(requirements, key=lambda requirement: requirement.key)))


def parse_field_selector(text: str) -> FieldSelector | SelectorRejected:
    """Return the field selector in a text; "" selects everything."""
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


def _take_requirement(words: list[str]) -> LabelRequirement | str:
    """Pop one requirement off the reversed words and return it, or return the error."""
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
