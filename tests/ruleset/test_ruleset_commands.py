"""Long updates are written in parts, none of which tears apart what belongs together."""

from __future__ import annotations

import pytest

from keepclose.ruleset.commands import (
    AddElement,
    Command,
    DeleteElement,
    FlushChain,
    add_chain,
    split_commands,
)
from keepclose.ruleset.statements import Drop
from keepclose.ruleset.tables import Chain, Element, make_rule

RULE = make_rule("ip", Drop())
CHAIN = add_chain(Chain("a", (RULE, RULE)))
ELEMENT = AddElement(Element("set", ("1.2.3.4",)))
REPLACED: list[Command] = [DeleteElement("set", ("1.2.3.4",)), ELEMENT]


@pytest.mark.parametrize(
    ("commands", "want"),
    [
        pytest.param([], [], id="nothing has no parts"),
        pytest.param([ELEMENT], [1], id="a short one is one part"),
        pytest.param([ELEMENT] * 5, [2, 2, 1], id="elements come in parts"),
        pytest.param([*CHAIN, *CHAIN], [3, 3], id="a chain stays with its rules"),
        pytest.param(
            [ELEMENT, *REPLACED, *REPLACED], [3, 2], id="an element stays with what it replaces"
        ),
        pytest.param(
            [ELEMENT, FlushChain("a"), *CHAIN[1:], ELEMENT],
            [4, 1],
            id="a chain that is written anew is never left empty",
        ),
    ],
)
def test_commands_are_split_where_nothing_is_torn(commands: list[Command], want: list[int]) -> None:
    """Parts hold all commands in order, and are as long as said, or longer where they must be."""
    parts = list(split_commands(commands, 2))
    assert [len(part) for part in parts] == want
    assert [command for part in parts for command in part] == commands


def test_many_elements_are_apart_from_chains() -> None:
    """Behind chains they make transactions of their own; a few stay with what comes before."""
    few, many = [*CHAIN, *[ELEMENT] * 100], [*CHAIN, *[ELEMENT] * 101]
    assert [len(part) for part in split_commands(few)] == [103]
    assert [len(part) for part in split_commands(many)] == [3, 101]
    assert [len(part) for part in split_commands(many[3:])] == [101]
