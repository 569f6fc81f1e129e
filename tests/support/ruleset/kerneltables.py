"""A table as a kernel would keep it: applies commands and refuses what the kernel refuses.

On top of the kernel's own rules it refuses what would lose connections: changing the rules of a
chain that something leads to, and leading to a chain that came in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.ruleset.commands import (
    AddChain,
    AddElement,
    AddMap,
    AddRule,
    AddSet,
    AddTable,
    Command,
    DeleteChain,
    DeleteCounter,
    DeleteElement,
    DeleteSet,
    FlushChain,
    Transaction,
)
from keepclose.ruleset.listing import TableListing
from keepclose.ruleset.names import is_service_chain
from keepclose.ruleset.statements import Choose, Goto, InSet, Jump, Lookup, Remember
from keepclose.ruleset.tables import Chain, Element, ElementKey, Map, Rule, Set, Table


class Refused(AssertionError):  # noqa: N818 (it says what happened)
    """What a kernel, or our own care, does not allow."""


class KernelTable:
    """One table and everything in it."""

    def __init__(
        self, family: str = "IPv4", name: str = "kube-proxy", *, careful: bool = True
    ) -> None:
        self.careful = careful
        self.family = family
        self.name = name
        self.exists = False
        self.chains: dict[str, Chain] = {}
        self.sets: dict[str, Set] = {}
        self.maps: dict[str, Map] = {}
        self.elements: dict[str, dict[ElementKey, Element]] = {}
        self.counters: dict[str, None] = {}
        """Those of earlier versions, by name."""
        self._before: frozenset[str] = frozenset()

    def apply(self, transactions: Iterable[Transaction]) -> None:
        """Carry out the transactions one after the other."""
        for transaction in transactions:
            self._before = frozenset(self.chains)
            for command in transaction.commands:
                self._carry_out(command)

    def table(self) -> Table:
        """Return the table as it is, for the tracer."""
        return Table(
            self.family,
            self.name,
            dict(self.chains),
            dict(self.sets),
            dict(self.maps),
            {name: dict(elements) for name, elements in self.elements.items()},
        )

    def listing(self) -> TableListing:
        """Return what a proxy that starts anew would read."""
        return TableListing(
            frozenset(self.chains),
            frozenset(self.sets),
            frozenset(self.counters),
            {
                name: {
                    key: "" if one.verdict is None else one.verdict.text()
                    for key, one in elements.items()
                }
                for name, elements in self.elements.items()
            },
            {name: len(chain.rules) for name, chain in self.chains.items() if chain.rules},
        )

    def references(self, kind: str, name: str) -> list[str]:
        """Return what refers to a chain, a set, a map or a counter."""
        found = [
            f"rule of {chain.name}"
            for chain in self.chains.values()
            for rule in chain.rules
            if (kind, name) in _references(rule)
        ]
        found += [
            f"element of {one.container}"
            for elements in self.elements.values()
            for one in elements.values()
            if kind == "chain" and isinstance(one.verdict, Goto) and one.verdict.chain == name
        ]
        return found

    def _carry_out(self, command: Command) -> None:
        if not self.exists and not isinstance(command, AddTable):
            raise Refused("there is no table")
        match command:
            case AddTable():
                self.exists = True
            case AddChain(chain):
                known = self.chains.setdefault(chain.name, Chain(chain.name, (), chain.hook))
                if chain.hook is not None and known.hook != chain.hook:
                    raise Refused(f"chain {chain.name} has another hook")
            case AddRule(name, rule):
                self._add_rule(name, rule)
            case FlushChain(name):
                self._need(self.chains, name)
                if is_service_chain(name) and (users := self._live_users(name)):
                    raise Refused(f"chain {name} is flushed while in use by {users}")
                self.chains[name] = Chain(name, (), self.chains[name].hook)
            case DeleteChain(name):
                self._need(self.chains, name)
                self._be_free("chain", name)
                del self.chains[name]
            case AddSet(one):
                self.sets[one.name] = one
                self.elements.setdefault(one.name, {})
            case DeleteSet(name):
                self._need(self.sets, name)
                self._be_free("set", name)
                del self.sets[name]
                self.elements.pop(name, None)
            case AddMap(mapping):
                self.maps[mapping.name] = mapping
                self.elements.setdefault(mapping.name, {})
            case AddElement(element):
                self._add_element(element)
            case DeleteElement(container, key):
                self._need(self.elements.get(container, {}), key)
                del self.elements[container][key]
            case DeleteCounter(name):
                self._need(self.counters, name)
                self._be_free("counter", name)
                del self.counters[name]

    def _add_rule(self, name: str, rule: Rule) -> None:
        self._need(self.chains, name)
        if is_service_chain(name) and name in self._before and self._live_users(name):
            raise Refused(f"rule added to chain {name}, which is in use")
        for kind, target in _references(rule):
            known = {
                "chain": self.chains,
                "set": self.sets,
                "map": self.maps,
            }[kind]
            self._need(known, target)
        old = self.chains[name]
        self.chains[name] = Chain(name, (*old.rules, rule), old.hook)

    def _add_element(self, element: Element) -> None:
        self._need(self.elements, element.container)
        if (element.container in self.maps) is (element.verdict is None):
            raise Refused(f"element of {element.container} with or without a verdict")
        if element.key in self.elements[element.container]:
            raise Refused(f"{element.container} has {element.key} already")
        if isinstance(element.verdict, Goto):
            self._need(self.chains, element.verdict.chain)
            if self.careful and element.verdict.chain not in self._before:
                raise Refused(f"{element.verdict.chain} is led to as soon as it is there")
        self.elements[element.container][element.key] = element

    def _live_users(self, name: str) -> list[str]:
        if not self.careful:
            return []
        return [
            user for user in self.references("chain", name) if user.startswith("element of")
        ] + [
            user
            for user in self.references("chain", name)
            if user.startswith("rule of ") and self._live_users(user.removeprefix("rule of "))
        ]

    def _be_free(self, kind: str, name: str) -> None:
        if users := self.references(kind, name):
            raise Refused(f"{kind} {name} is deleted while in use by {users}")

    @staticmethod
    def _need(known: object, key: object) -> None:
        assert isinstance(known, dict)
        if key not in known:
            raise Refused(f"there is no {key}")


def _references(rule: Rule) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for statement in rule.statements:
        match statement:
            case Jump(chain) | Goto(chain):
                found.add(("chain", chain))
            case Choose(branches):
                found |= {("chain", branch.chain) for branch in branches}
            case Lookup(_, name):
                found.add(("map", name))
            case InSet(_, name) | Remember(name):
                found.add(("set", name))
            case _:
                pass
    return found
