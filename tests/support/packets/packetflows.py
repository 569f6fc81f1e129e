"""New connections of every kind of client to every kind of address, and what must come of them.

Who answers is asked until it is certain; who does not is told apart by whether an error comes back.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from keepclose.model.service.types import Service
from support.netanswers import PATIENCE, SILENCE, Answer, Silence, calling
from support.netns import Namespace
from support.packets.loads import ask_here
from support.packets.tabledbeds import TabledBed, address_of
from support.packets.webobjects import FAMILIES, addresses_of

T = TypeVar("T")
CLUSTER: Final = "cluster IP"
NODE_PORT: Final = "node port"
LOAD_BALANCER: Final = "load balancer"
EXTERNAL: Final = "external IP"
DOORS: Final = (NODE_PORT, LOAD_BALANCER, EXTERNAL)
"""The ways into the cluster."""
_MANY: Final = 128
_ENOUGH: Final = 6
_AT_ONCE: Final = 48


def find_answers(
    namespace: Namespace,
    address: str,
    port: int,
    *,
    want: int = 1,
    udp: bool = False,
    seconds: float = PATIENCE,
) -> frozenset[Answer] | Silence:
    """Return everybody who answers to new connections, or the silence.

    So many different answers are waited for, and a few more asked; where fewer can come, as many
    times are asked as make it certain.
    """

    def find() -> frozenset[Answer] | Silence:
        found: set[Answer] = set()
        for number in range(_MANY):
            try:
                found.add(ask_here(address, port, udp=udp, seconds=seconds))
            except OSError as error:
                # A Service that answers only now and then is neither silent nor does it answer.
                if found:
                    raise AssertionError(f"after {found} at {address}:{port}") from error
                # So the kernel tells a sender of datagrams on the node that a rule stopped one.
                if isinstance(error, PermissionError):
                    return _how_stopped(namespace, address, port)
                return _silence_of(error)
            if number + 1 >= _ENOUGH * want and len(found) >= want:
                break
        return frozenset(found)

    return namespace.do(find)


def _silence_of(error: OSError) -> Silence:
    if isinstance(error, TimeoutError):
        return Silence.DROPPED
    if isinstance(error, (ConnectionRefusedError, ConnectionResetError)):
        return Silence.REFUSED
    assert error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES}, error
    return Silence.UNREACHABLE


def _how_stopped(namespace: Namespace, address: str, port: int) -> Silence:
    """Return whether a datagram of the node itself is rejected or dropped: only one is told.

    NB: on a busy machine the kernel tells of a refusal some time after the datagram was sent.
    """
    end = time.monotonic() + SILENCE
    with calling(namespace, address, port, udp=True, seconds=SILENCE) as caller:
        while time.monotonic() < end:
            try:
                caller.ask()
            except ConnectionRefusedError:
                return Silence.REFUSED
            except PermissionError:
                time.sleep(0.02)
    return Silence.DROPPED


class Flow(NamedTuple):
    """New connections of somebody to a Service, and who must answer, seeing what source."""

    who: str
    to: str
    service: Service
    want: tuple[str, ...] | Silence
    is_masked: bool = False
    udp: bool = False

    @property
    def name(self) -> str:
        """The flow in words."""
        return (
            f"{'UDP ' if self.udp else ''}{self.who} to {self.to} of {self.service.metadata.name}"
        )


def wanted(bed: TabledBed, flow: Flow, family: str) -> frozenset[Answer] | Silence:
    """Return what must come of a flow; packets of others than pods enter at the first node."""
    if isinstance(flow.want, Silence):
        return flow.want
    entry = bed.bed.nodes[0].name
    # NB: node ports of the first node are asked, so it is the one that masquerades there.
    if "-" in flow.who and flow.to != NODE_PORT:
        entry = bed.node_of(flow.who).name
    return frozenset(
        Answer(
            pod,
            bed.mask(entry, pod, family) if flow.is_masked else bed.source(flow.who, family),
        )
        for pod in flow.want
    )


def follow(bed: TabledBed, flow: Flow, family: str) -> frozenset[Answer] | Silence:
    """Return what comes of a flow."""
    addresses = addresses_of(flow.service, family)
    port = 53 if flow.udp else 80
    target = {
        CLUSTER: (addresses.cluster, port),
        LOAD_BALANCER: (addresses.load_balancer, port),
        EXTERNAL: (addresses.external, port),
        NODE_PORT: (address_of(bed.bed.nodes[0], family), addresses.node_port),
    }[flow.to]
    count = 1 if isinstance(flow.want, Silence) else len(flow.want)
    # A busy machine is slow, and only silence must be short.
    seconds = SILENCE if flow.want is Silence.DROPPED else PATIENCE
    return find_answers(bed.namespace(flow.who), *target, want=count, udp=flow.udp, seconds=seconds)


def check(bed: TabledBed, flows: Iterable[Flow], families: Sequence[str] = FAMILIES) -> None:
    """Fail unless of each flow comes what must, in all families."""
    wants = {f"{family} {flow.name}": (flow, family) for flow in flows for family in families}
    found = do_at_once(
        {name: partial(follow, bed, flow, family) for name, (flow, family) in wants.items()}
    )
    assert found == {name: wanted(bed, flow, family) for name, (flow, family) in wants.items()}


def do_at_once(work: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return what each piece of work returns; all at once, since silence takes long."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = {name: pool.submit(one) for name, one in work.items()}
        return {name: future.result() for name, future in futures.items()}
