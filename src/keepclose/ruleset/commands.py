"""Commands to nftables, the transactions they make up, and the update as a sequence of those.

One command a line, only verbs that every nft from 1.0.1 on knows: add (fine if it is there), delete
(an error if it is not), flush. Commands are data first and text when asked for, so that a test can
apply them to a table and check what the kernel would have refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from keepclose.ruleset.names import quote_comment
from keepclose.ruleset.tables import Chain, Counter, Element, Map, Rule, Set

MOST_COMMANDS: Final = 2_000
"""How many commands go into one transaction, more or less; each takes nft a few kilobytes."""
FEW_ELEMENTS: Final = 100
"""How many elements may share a transaction with other commands; more are quicker apart."""


class AddTable(msgspec.Struct, frozen=True, gc=False):
    """Have the table."""

    comment: str

    def text(self, table: str) -> str:
        """Return the command for the table, which is given with its family."""
        return f"add table {table} {{ comment {quote_comment(self.comment)} ; }}"


class AddChain(msgspec.Struct, frozen=True, gc=False):
    """Have the chain; its rules are added one by one."""

    chain: Chain

    def text(self, table: str) -> str:
        """Return the command."""
        chain = self.chain
        parts = []
        if chain.hook is not None:
            kind, hook, priority = chain.hook
            parts.append(f"type {kind} hook {hook} priority {priority} ;")
        if chain.comment:
            parts.append(f"comment {quote_comment(chain.comment)} ;")
        body = f" {{ {' '.join(parts)} }}" if parts else ""
        return f"add chain {table} {chain.name}{body}"


class AddRule(msgspec.Struct, frozen=True, gc=False):
    """Append a rule to the chain."""

    chain: str
    rule: Rule

    def text(self, table: str) -> str:
        """Return the command."""
        return f"add rule {table} {self.chain} {self.rule.whole_text}"


class FlushChain(msgspec.Struct, frozen=True, gc=False):
    """Take all rules out of the chain."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"flush chain {table} {self.name}"


class DeleteChain(msgspec.Struct, frozen=True, gc=False):
    """Remove a chain that nothing refers to."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete chain {table} {self.name}"


class AddSet(msgspec.Struct, frozen=True, gc=False):
    """Have the set."""

    set: Set

    def text(self, table: str) -> str:
        """Return the command."""
        one = self.set
        parts = [f"type {' . '.join(one.key)} ;"]
        if one.timeout_s:
            parts.append(f"flags dynamic,timeout ; timeout {one.timeout_s}s ;")
        if one.counted:
            parts.append("counter ;")
        if one.comment:
            parts.append(f"comment {quote_comment(one.comment)} ;")
        return f"add set {table} {one.name} {{ {' '.join(parts)} }}"


class DeleteSet(msgspec.Struct, frozen=True, gc=False):
    """Remove a set that no rule refers to."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete set {table} {self.name}"


class AddMap(msgspec.Struct, frozen=True, gc=False):
    """Have the map."""

    map: Map

    def text(self, table: str) -> str:
        """Return the command."""
        one = self.map
        comment = f" comment {quote_comment(one.comment)} ;" if one.comment else ""
        types = f"typeof {one.typeof}" if one.typeof else f"type {' . '.join(one.key)} : verdict"
        counter = " counter ;" if one.counted else ""
        return f"add map {table} {one.name} {{ {types} ;{counter}{comment} }}"


class AddElement(msgspec.Struct, frozen=True, gc=False):
    """Put an element where its key is free."""

    element: Element

    def text(self, table: str) -> str:
        """Return the command."""
        one = self.element
        comment = f" comment {quote_comment(one.comment)}" if one.comment else ""
        verdict = f" : {one.verdict.text()}" if one.verdict is not None else ""
        key = " . ".join(one.key)
        return f"add element {table} {one.container} {{ {key}{comment}{verdict} }}"


class DeleteElement(msgspec.Struct, frozen=True, gc=False):
    """Take an element out of its set or map."""

    container: str
    key: tuple[str, ...]

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete element {table} {self.container} {{ {' . '.join(self.key)} }}"


class AddCounter(msgspec.Struct, frozen=True, gc=False):
    """Have the counter; one that is there keeps its count."""

    counter: Counter

    def text(self, table: str) -> str:
        """Return the command."""
        return f"add counter {table} {self.counter.name}"


class DeleteCounter(msgspec.Struct, frozen=True, gc=False):
    """Remove a counter that no rule refers to."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete counter {table} {self.name}"


Command = (
    AddTable
    | AddChain
    | AddRule
    | FlushChain
    | DeleteChain
    | AddSet
    | DeleteSet
    | AddMap
    | AddElement
    | DeleteElement
    | AddCounter
    | DeleteCounter
)


class Transaction(msgspec.Struct, frozen=True):
    """Commands that the kernel carries out together or not at all."""

    table: str
    """The table with its family, such as "ip kube-proxy"."""
    commands: tuple[Command, ...]

    @property
    def elements(self) -> tuple[AddElement | DeleteElement, ...]:
        """The commands if all of them add or delete elements; empty otherwise."""
        found = [one for one in self.commands if isinstance(one, AddElement | DeleteElement)]
        return tuple(found) if len(found) == len(self.commands) else ()

    @property
    def text(self) -> str:
        """The transaction as nft reads it, one command a line; "" for none."""
        table = self.table
        return "".join([f"{command.text(table)}\n" for command in self.commands])


class Update(msgspec.Struct, frozen=True):
    """What to write, in order, to get from what the kernel has to what is wanted."""

    serial: int
    """What `sweep` is told once the update has been in force for more than a second."""
    transactions: tuple[Transaction, ...]
    ports: int
    """How many service ports changed."""
    retired: int
    """How many objects wait to be deleted because of this update."""

    @property
    def phases(self) -> tuple[str, ...]:
        """The text of each transaction; none when only deletions are due later."""
        return tuple([transaction.text for transaction in self.transactions])

    @property
    def commands(self) -> int:
        """How many commands there are in all phases."""
        return sum([len(transaction.commands) for transaction in self.transactions])


def add_chain(chain: Chain) -> list[Command]:
    """Return the commands that make a chain with its rules."""
    return [AddChain(chain), *[AddRule(chain.name, rule) for rule in chain.rules]]


def split_commands(
    commands: Sequence[Command], most: int = MOST_COMMANDS
) -> Iterator[tuple[Command, ...]]:
    """Yield the commands in parts that may be carried out one after the other.

    A chain stays together with its rules, and an element with the one that it replaces. Many
    elements at the end are apart from what comes before them, because a writer may have a shorter
    way for them. NB: what makes up the fixed part of a table has to come first and be less than
    the most.
    """
    start = 0
    apart = _first_of_last_elements(commands)
    for at in range(len(commands)):
        if at == apart or (at - start >= most and _may_begin(commands[at - 1], commands[at])):
            if at == start:
                continue
            yield tuple(commands[start:at])
            start = at
    if start < len(commands):
        yield tuple(commands[start:])


def _first_of_last_elements(commands: Sequence[Command]) -> int:
    """Return where the elements at the end begin; -1 where they are few or have nothing before."""
    at = len(commands)
    while at and isinstance(commands[at - 1], AddElement | DeleteElement):
        at -= 1
    return at if len(commands) - at > FEW_ELEMENTS else -1


def _may_begin(before: Command, command: Command) -> bool:
    if isinstance(command, AddElement):
        return not isinstance(before, DeleteElement)
    return not isinstance(command, AddRule)
