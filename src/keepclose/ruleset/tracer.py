"""Follows one packet through a table, statement by statement, as the kernel would.

A packet from outside or from a pod passes prerouting, then input if its destination is the node's
own or forward and postrouting if not; one that the node itself sends passes output and postrouting,
and input when it comes back to the node. Only first packets of connections are traced. Where the
kernel draws a number, the caller chooses, or all choices are followed with their probabilities.

Reads the same structs that the kernel's text is made of, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple, assert_never

import msgspec

from keepclose.ruleset.statements import (
    Choose,
    ClearMark,
    Count,
    Draw,
    Drop,
    Goto,
    HasMark,
    InSet,
    IsLocal,
    IsNew,
    IsTranslated,
    Jump,
    Lookup,
    Masquerade,
    Match,
    MatchCondition,
    PacketField,
    Reject,
    Remember,
    Return,
    SetMark,
    To,
    Translate,
    VerdictAction,
)
from keepclose.ruleset.tables import Table

_Choice = Callable[[Sequence[int]], int]
"""Given the shares of the alternatives, returns the index of one."""

_DEEPEST: Final = 16
"""How many chains the kernel lets a packet be in at once."""


class Packet(msgspec.Struct, frozen=True):
    """The first packet of a connection; addresses are canonical."""

    source: str
    destination: str
    port: int
    protocol: str = "tcp"
    interface: str = ""
    from_node: bool = False
    """Sent by a process of the node, not by one of its pods."""


class TracedNode(msgspec.Struct, frozen=True):
    """What of the node matters to packets: its addresses and what its affinity sets remember."""

    addresses: frozenset[str] = frozenset()
    remembered: Mapping[str, frozenset[str]] = {}
    """Clients by affinity set."""


class Fate(Enum):
    """What becomes of a packet."""

    PASSED = "passed"
    DROPPED = "dropped"
    REJECTED = "rejected"


class Trace(msgspec.Struct, frozen=True):
    """What happened to a packet, and by which rules."""

    fate: Fate
    endpoint: tuple[str, int] | None
    """To what the destination was translated."""
    masqueraded: bool
    mark: int
    remembered: tuple[str, ...]
    """Affinity sets that the client was put into."""
    counted: tuple[str, ...]
    path: tuple[str, ...]
    """The rules that took effect, each behind its chain."""


class _Outcome(NamedTuple):
    """One way a packet can go, and how likely it does."""

    trace: Trace
    probability: Fraction


class _End(Enum):
    """How a rule or a chain let go of the packet."""

    GO_ON = "go on with the next rule"
    GO_BACK = "leave the chain"
    ACCEPT = "done at this hook"
    DROP = "dropped"
    REJECT = "rejected"


def trace_packet(table: Table, packet: Packet, node: TracedNode, *, choose: _Choice) -> Trace:
    """Return the way that the packet takes when the caller draws the numbers.

    A jump to a chain that does not exist, which no kernel would accept, raises KeyError.
    """
    return _Walk(table, packet, node, choose).walk()


def trace_outcomes(table: Table, packet: Packet, node: TracedNode) -> tuple[_Outcome, ...]:
    """Return every way the packet can take, in the order in which rules list the alternatives."""
    return tuple(_explore(table, packet, node))


def _explore(table: Table, packet: Packet, node: TracedNode) -> Iterator[_Outcome]:
    taken: list[int] = []
    while True:
        shares_met: list[Sequence[int]] = []

        def choose(shares: Sequence[int], met: list[Sequence[int]] = shares_met) -> int:
            met.append(shares)
            if len(met) > len(taken):
                taken.append(0)
            return taken[len(met) - 1]

        trace = trace_packet(table, packet, node, choose=choose)
        probability = Fraction(1)
        for index, shares in zip(taken, shares_met, strict=True):
            probability *= Fraction(shares[index], sum(shares))
        yield _Outcome(trace, probability)
        while taken and taken[-1] == len(shares_met[len(taken) - 1]) - 1:
            taken.pop()
        if not taken:
            return
        taken[-1] += 1


class _Walk:
    """A packet on its way; every change that rules make to it is kept here."""

    def __init__(self, table: Table, packet: Packet, node: TracedNode, choose: _Choice) -> None:
        self._table = table
        self._packet = packet
        self._node = node
        self._choose = choose
        self._destination = packet.destination
        self._port = packet.port
        self._endpoint: tuple[str, int] | None = None
        self._masqueraded = False
        self._mark = 0
        self._remembered: list[str] = []
        self._counted: list[str] = []
        self._path: list[str] = []

    def walk(self) -> Trace:
        fate = Fate.PASSED
        for hook in self._hooks():
            end = self._pass_hook(hook)
            if end is not _End.ACCEPT:
                fate = Fate.DROPPED if end is _End.DROP else Fate.REJECTED
                break
        return Trace(
            fate,
            self._endpoint,
            self._masqueraded,
            self._mark,
            tuple(self._remembered),
            tuple(self._counted),
            tuple(self._path),
        )

    def _hooks(self) -> Iterator[str]:
        # NB: whether the destination is the node's own is asked after it may have been translated.
        if self._packet.from_node:
            yield "output"
            yield "postrouting"
            if self._is_own(self._destination):
                yield "input"
            return
        yield "prerouting"
        if self._is_own(self._destination):
            yield "input"
        else:
            yield "forward"
            yield "postrouting"

    def _pass_hook(self, name: str) -> _End:
        entered = [
            (chain.hook.priority, chain.name)
            for chain in self._table.chains.values()
            if chain.hook is not None and chain.hook.name == name
        ]
        for _, chain in sorted(entered):
            end = self._pass_chain(chain, 1)
            if end in (_End.DROP, _End.REJECT):
                return end
        return _End.ACCEPT

    def _pass_chain(self, name: str, depth: int) -> _End:
        if depth > _DEEPEST:
            raise RecursionError(f"chain {name} is entered from more than {_DEEPEST} others")
        for rule in self._table.chains[name].rules:
            step = len(self._path)
            for statement in rule.statements:
                if isinstance(statement, Match | InSet | IsLocal | IsNew | IsTranslated | HasMark):
                    if not self._matches(statement):
                        break
                    continue
                if len(self._path) == step:
                    self._path.append(f"{name}: {rule.text}")
                end = self._carry_out(statement, depth)
                if end is None:
                    # A lookup that finds nothing ends the rule as if it had not been there.
                    del self._path[step:]
                    break
                if end is _End.GO_BACK:
                    return _End.GO_ON
                if end is not _End.GO_ON:
                    return end
        return _End.GO_ON

    def _carry_out(self, statement: VerdictAction, depth: int) -> _End | None:
        match statement:
            case Jump(chain):
                return self._pass_chain(chain, depth + 1)
            case Goto(chain):
                return self._go_to(chain, depth)
            case Choose(branches):
                drawn = self._choose([branch.share for branch in branches])
                return self._go_to(branches[drawn].chain, depth)
            case Lookup(fields, name):
                element = self._table.elements[name].get(self._key(fields))
                if element is None or element.verdict is None or isinstance(element.verdict, To):
                    return None
                return self._carry_out(element.verdict, depth)
            case Return():
                return _End.GO_BACK
            case Drop():
                return _End.DROP
            case Reject():
                return _End.REJECT
            case Translate(targets):
                drawn = self._choose([target.share for target in targets])
                _, self._destination, self._port = targets[drawn]
                self._endpoint = self._destination, self._port
                return _End.ACCEPT
            case Draw(fields, total, name):
                return self._draw((*self._key(fields), str(self._choose([1] * total))), name)
            case Masquerade():
                self._masqueraded = True
                return _End.ACCEPT
            case SetMark(mark):
                self._mark |= mark
            case ClearMark(mark):
                self._mark ^= mark
            case Remember(name):
                self._remembered.append(name)
            case Count(name):
                self._counted.append(name)
            case _:
                assert_never(statement)
        return _End.GO_ON

    def _draw(self, key: tuple[str, ...], name: str) -> _End | None:
        element = self._table.elements[name].get(key)
        if element is None or not isinstance(element.verdict, To):
            return None
        self._destination, self._port = element.verdict.address, element.verdict.port
        self._endpoint = self._destination, self._port
        return _End.ACCEPT

    def _go_to(self, chain: str, depth: int) -> _End:
        # The kernel remembers no way back into a chain that was left by goto.
        end = self._pass_chain(chain, depth)
        return _End.GO_BACK if end is _End.GO_ON else end

    def _matches(self, condition: MatchCondition) -> bool:
        match condition:
            case Match(field, values, negated):
                return any(_holds(value, self._value(field)) for value in values) is not negated
            case InSet(fields, name):
                key = self._key(fields)
                is_remembered = key[0] in self._node.remembered.get(name, ())
                return is_remembered or key in self._table.elements.get(name, {})
            case IsLocal(field):
                return self._is_own(self._value(field))
            case IsNew():
                return True
            case IsTranslated():
                return self._endpoint is not None
            case HasMark(mark):
                return bool(self._mark & mark)
            case _:
                assert_never(condition)

    def _is_own(self, address: str) -> bool:
        return address in self._node.addresses or ip_address(address).is_loopback

    def _key(self, fields: tuple[PacketField, ...]) -> tuple[str, ...]:
        return tuple([self._value(field) for field in fields])

    def _value(self, field: PacketField) -> str:
        match field:
            case PacketField.SOURCE:
                return self._packet.source
            case PacketField.DESTINATION:
                return self._destination
            case PacketField.PROTOCOL:
                return self._packet.protocol
            case PacketField.PORT:
                return str(self._port)
            case PacketField.INTERFACE:
                return f'"{self._packet.interface}"'
            case _:
                assert_never(field)


@lru_cache(maxsize=4096)
def _holds(value: str, seen: str) -> bool:
    """Tell whether what a rule names holds what the packet has."""
    if value.endswith('*"'):
        return seen.startswith(value.removesuffix('*"'))
    if "/" not in value:
        return value == seen
    return ip_address(seen) in ip_network(value)
