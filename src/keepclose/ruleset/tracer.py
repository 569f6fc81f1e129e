"""Traces one packet through a table, statement by statement, as the kernel evaluates it.

A packet from outside or from a pod passes prerouting, then input if the destination is the node's
own, otherwise forward and postrouting. A packet that the node itself sends passes output and
postrouting, and input if it returns to the node. The tracer handles only the first packet of a
connection. Where the kernel draws a number, the caller chooses, or the tracer follows all choices
with their probabilities.

It reads the structs from which the kernel's text is rendered, and nothing else.
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
    DnatTarget,
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
    Translate,
    VerdictAction,
)
from keepclose.ruleset.tables import Slot, Table

_Choice = Callable[[Sequence[int]], int]
"""Takes the shares of the alternatives and returns the index of one."""

_MAX_DEPTH: Final = 16
"""The kernel's limit for nested chains."""


class Packet(msgspec.Struct, frozen=True):
    """The first packet of a connection; addresses are canonical."""

    source: str
    destination: str
    port: int
    protocol: str = "tcp"
    interface: str = ""
    from_node: bool = False
    """Whether a process of the node sent it, not one of its pods."""


class TracedNode(msgspec.Struct, frozen=True):
    """The state of a node that matters to packets: its addresses and its affinity sets."""

    addresses: frozenset[str] = frozenset()
    remembered: Mapping[str, frozenset[str]] = {}
    """Clients by the name of the affinity set."""


class Fate(Enum):
    """What the rules do with a packet."""

    PASSED = "passed"
    DROPPED = "dropped"
    REJECTED = "rejected"


class Trace(msgspec.Struct, frozen=True):
    """What the table did with a packet, and by which rules."""

    fate: Fate
    endpoint: tuple[str, int] | None
    """The endpoint to which the destination was translated."""
    masqueraded: bool
    mark: int
    remembered: tuple[str, ...]
    """Affinity sets to which the client was added."""
    counted: tuple[Slot, ...]
    """The elements of sets that counted the packet."""
    path: tuple[str, ...]
    """The rules that took effect, each as "chain: rule"."""


class _Outcome(NamedTuple):
    """One possible trace of a packet, and its probability."""

    trace: Trace
    probability: Fraction


class _End(Enum):
    """How the evaluation of a rule or chain ended."""

    GO_ON = "go on with the next rule"
    GO_BACK = "leave the chain"
    ACCEPT = "done at this hook"
    DROP = "dropped"
    REJECT = "rejected"


def trace_packet(table: Table, packet: Packet, node: TracedNode, *, choose: _Choice) -> Trace:
    """Return the trace of the packet; the caller draws the numbers.

    A jump to a chain that does not exist, which no kernel accepts, raises KeyError.
    """
    return _Evaluation(table, packet, node, choose).run()


def trace_outcomes(table: Table, packet: Packet, node: TracedNode) -> tuple[_Outcome, ...]:
    """Return every possible trace, in the order in which rules list the alternatives."""
    return tuple(_explore(table, packet, node))


class _Evaluation:
    """The evaluation of one packet: its state, as rules change it."""

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
        self._counted: list[Slot] = []
        self._path: list[str] = []
        self._passed: list[str] = []
        """The hooks that the packet has reached."""

    def run(self) -> Trace:
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
        # NB: a hook may translate the destination, so `_is_own` must run after it.
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
        base_chains = [
            (chain.hook.priority, chain.name)
            for chain in self._table.chains.values()
            if chain.hook is not None and chain.hook.name == name
        ]
        self._passed.append(name)
        for _, chain in sorted(base_chains):
            # NB: nat chains translate the source at one of two hooks, and the kernel asks no other
            # then.
            if name == "input" and "postrouting" in self._passed and self._is_nat(chain):
                continue
            end = self._pass_chain(chain, 1)
            if end in (_End.DROP, _End.REJECT):
                return end
        return _End.ACCEPT

    def _is_nat(self, chain: str) -> bool:
        hook = self._table.chains[chain].hook
        return hook is not None and hook.type == "nat"

    def _pass_chain(self, name: str, depth: int) -> _End:
        if depth > _MAX_DEPTH:
            raise RecursionError(f"chain {name} is entered from more than {_MAX_DEPTH} others")
        for rule in self._table.chains[name].rules:
            step = len(self._path)
            for statement in rule.statements:
                if isinstance(statement, Match | InSet | IsLocal | IsNew | IsTranslated | HasMark):
                    if not self._matches(statement):
                        break
                    continue
                if len(self._path) == step:
                    self._path.append(f"{name}: {rule.text}")
                end = self._act(statement, depth)
                if end is None:
                    # A lookup that finds nothing ends the rule as if the rule did not exist.
                    del self._path[step:]
                    break
                if end is _End.GO_BACK:
                    return _End.GO_ON
                if end is not _End.GO_ON:
                    return end
        return _End.GO_ON

    def _act(self, statement: VerdictAction, depth: int) -> _End | None:
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
                if (
                    element is None
                    or element.verdict is None
                    or isinstance(element.verdict, DnatTarget)
                ):
                    return None
                return self._act(element.verdict, depth)
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
            case _:
                assert_never(statement)
        return _End.GO_ON

    def _draw(self, key: tuple[str, ...], name: str) -> _End | None:
        element = self._table.elements[name].get(key)
        if element is None or not isinstance(element.verdict, DnatTarget):
            return None
        self._destination, self._port = element.verdict.address, element.verdict.port
        self._endpoint = self._destination, self._port
        return _End.ACCEPT

    def _go_to(self, chain: str, depth: int) -> _End:
        # The kernel never returns to a chain that was left by goto.
        end = self._pass_chain(chain, depth)
        return _End.GO_BACK if end is _End.GO_ON else end

    def _matches(self, condition: MatchCondition) -> bool:
        match condition:
            case Match(field, values, negated):
                return any(_covers(value, self._value(field)) for value in values) is not negated
            case InSet(fields, name):
                return self._is_in_set(self._key(fields), name)
            case IsLocal(field, negated):
                return self._is_own(self._value(field)) is not negated
            case IsNew():
                return True
            case IsTranslated():
                return self._endpoint is not None
            case HasMark(mark):
                return bool(self._mark & mark)
            case _:
                assert_never(condition)

    def _is_in_set(self, key: tuple[str, ...], name: str) -> bool:
        if key[0] in self._node.remembered.get(name, ()):
            return True
        if key not in self._table.elements.get(name, {}):
            return False
        traced_set = self._table.sets.get(name)
        if traced_set is not None and traced_set.counted:
            self._counted.append((name, key))
        return True

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
            case PacketField.ORIGINAL_DESTINATION:
                return self._packet.destination
            case PacketField.ORIGINAL_PORT:
                return str(self._packet.port)
            case _:
                assert_never(field)


@lru_cache(maxsize=4096)
def _covers(value: str, actual: str) -> bool:
    """Return whether the value in a rule (a range, a prefix) covers the packet's actual value."""
    if value.endswith('*"'):
        return actual.startswith(value.removesuffix('*"'))
    if "/" not in value:
        return value == actual
    return ip_address(actual) in ip_network(value)


def _explore(table: Table, packet: Packet, node: TracedNode) -> Iterator[_Outcome]:
    choices: list[int] = []
    while True:
        all_shares: list[Sequence[int]] = []

        def choose(shares: Sequence[int], seen: list[Sequence[int]] = all_shares) -> int:
            seen.append(shares)
            if len(seen) > len(choices):
                choices.append(0)
            return choices[len(seen) - 1]

        trace = trace_packet(table, packet, node, choose=choose)
        probability = Fraction(1)
        for index, shares in zip(choices, all_shares, strict=True):
            probability *= Fraction(shares[index], sum(shares))
        yield _Outcome(trace, probability)
        while choices and choices[-1] == len(all_shares[len(choices) - 1]) - 1:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1
