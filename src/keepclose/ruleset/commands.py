"""nftables commands, the transactions they form, and the update as a sequence of transactions.

A transaction has one command a line. Only verbs occur that every nft since 1.0.1 has: add
(idempotent), delete (an error if the object does not exist), flush. Commands are data and become
text on request, so that a test can apply them to a table and check what the kernel would reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from keepclose.ruleset.names import quote_comment
from keepclose.ruleset.tables import Chain, Element, Map, Rule, Set

MAX_COMMANDS: Final = 2_000
"""The approximate number of commands in one transaction; nft needs a few kilobytes for each."""
FEW_ELEMENTS: Final = 100
"""How many elements may share a transaction with other commands; more are faster separately."""


class AddTable(msgspec.Struct, frozen=True, gc=False):
    """Create the table unless it exists."""

    comment: str

    def text(self, table: str) -> str:
        """Return the command as nft text; `table` includes the family."""
        return f"add table {table} {{ comment {quote_comment(self.comment)} ; }}"


class AddChain(msgspec.Struct, frozen=True, gc=False):
    """Create the chain unless it exists; `AddRule` adds its rules."""

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
    """Remove all rules of the chain."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"flush chain {table} {self.name}"


class DeleteChain(msgspec.Struct, frozen=True, gc=False):
    """Delete a chain that nothing refers to."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete chain {table} {self.name}"


class AddSet(msgspec.Struct, frozen=True, gc=False):
    """Create the set unless it exists."""

    set: Set

    def text(self, table: str) -> str:
        """Return the command."""
        added = self.set
        parts = [f"type {' . '.join(added.key)} ;"]
        if added.timeout_s:
            parts.append(f"flags dynamic,timeout ; timeout {added.timeout_s}s ;")
        if added.counted:
            parts.append("counter ;")
        if added.comment:
            parts.append(f"comment {quote_comment(added.comment)} ;")
        return f"add set {table} {added.name} {{ {' '.join(parts)} }}"


class DeleteSet(msgspec.Struct, frozen=True, gc=False):
    """Delete a set that no rule refers to."""

    name: str

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete set {table} {self.name}"


class AddMap(msgspec.Struct, frozen=True, gc=False):
    """Create the map unless it exists."""

    map: Map

    def text(self, table: str) -> str:
        """Return the command."""
        added = self.map
        comment = f" comment {quote_comment(added.comment)} ;" if added.comment else ""
        key = " . ".join(added.key)
        types = f"typeof {added.typeof}" if added.typeof else f"type {key} : verdict"
        counter = " counter ;" if added.counted else ""
        return f"add map {table} {added.name} {{ {types} ;{counter}{comment} }}"


class AddElement(msgspec.Struct, frozen=True, gc=False):
    """Add an element whose key is free in the set or map."""

    element: Element

    def text(self, table: str) -> str:
        """Return the command."""
        element = self.element
        comment = f" comment {quote_comment(element.comment)}" if element.comment else ""
        verdict = f" : {element.verdict.text()}" if element.verdict is not None else ""
        key = " . ".join(element.key)
        return f"add element {table} {element.container} {{ {key}{comment}{verdict} }}"


class DeleteElement(msgspec.Struct, frozen=True, gc=False):
    """Delete an element of a set or map."""

    container: str
    key: tuple[str, ...]

    def text(self, table: str) -> str:
        """Return the command."""
        return f"delete element {table} {self.container} {{ {' . '.join(self.key)} }}"


class DeleteCounter(msgspec.Struct, frozen=True, gc=False):
    """Delete a counter that no rule refers to."""

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
    | DeleteCounter
)


class Transaction(msgspec.Struct, frozen=True):
    """Commands that the kernel applies all or nothing."""

    table: str
    """The table with its family, such as "ip kube-proxy"."""
    commands: tuple[Command, ...]

    @property
    def elements(self) -> tuple[AddElement | DeleteElement, ...]:
        """The commands if all of them add or delete elements; empty otherwise."""
        commands = [
            command for command in self.commands if isinstance(command, AddElement | DeleteElement)
        ]
        return tuple(commands) if len(commands) == len(self.commands) else ()

    @property
    def text(self) -> str:
        """The transaction as nft text, one command a line; "" for no commands."""
        table = self.table
        return "".join([f"{command.text(table)}\n" for command in self.commands])


class Update(msgspec.Struct, frozen=True):
    """Transactions that turn the table in the kernel into the desired one, in order."""

    serial: int
    """The argument of `sweep`, once the update has been in force for more than a second."""
    transactions: tuple[Transaction, ...]
    ports: int
    """How many service ports changed."""
    retired: int
    """How many objects this update leaves for deletion."""

    @property
    def phases(self) -> tuple[str, ...]:
        """The text of each transaction; empty if the update only leaves objects for deletion."""
        return tuple([transaction.text for transaction in self.transactions])

    @property
    def commands(self) -> int:
        """The number of commands in all phases."""
        return sum([len(transaction.commands) for transaction in self.transactions])


def add_chain(chain: Chain) -> list[Command]:
    """Return the commands that create a chain with its rules."""
    return [AddChain(chain), *[AddRule(chain.name, rule) for rule in chain.rules]]


def split_commands(
    commands: Sequence[Command], most: int = MAX_COMMANDS
) -> Iterator[tuple[Command, ...]]:
    """Yield the commands in parts that the kernel may apply one after the other.

    A chain stays together with its rules, and an element with the one that it replaces. Many
    elements at the end form a part of their own, because a writer may have a faster path for them.
    NB: the commands of the fixed part of a table must come first and be fewer than `most`.
    """
    start = 0
    last_elements = _start_of_last_elements(commands)
    for at in range(len(commands)):
        is_full = at - start >= most
        if at == last_elements or (is_full and _may_begin(commands[at - 1], commands[at])):
            if at == start:
                continue
            yield tuple(commands[start:at])
            start = at
    if start < len(commands):
        yield tuple(commands[start:])


def _start_of_last_elements(commands: Sequence[Command]) -> int:
    """Return the index of the first of the elements at the end; -1 if these are few."""
    at = len(commands)
    while at and isinstance(commands[at - 1], AddElement | DeleteElement):
        at -= 1
    return at if len(commands) - at > FEW_ELEMENTS else -1


def _may_begin(before: Command, command: Command) -> bool:
    if isinstance(command, AddElement):
        return not isinstance(before, DeleteElement)
    return not isinstance(command, AddRule)
