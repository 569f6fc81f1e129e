"""The network of a cluster for the block of a test, and calls in it without anybody who serves.

    with underlay_or_skip("n1", "n2") as underlay:
        one, other = underlay.add_pods([("n1", "a"), ("n2", "b")])
        assert call(one.namespace, other.namespace, other.addresses[0]) == one.addresses[0]

Whoever may not have a network of namespaces is told why and not failed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from keepclose.lab.network.privilege import why_no_packets
from keepclose.lab.network.underlay import Underlay
from keepclose.system.namespaces import NetworkNamespace


@contextlib.contextmanager
def underlay_or_skip(*nodes: str) -> Iterator[Underlay]:
    """Make a network with nodes for the block of a test, or skip the test with the reason."""
    import pytest  # noqa: PLC0415 - only tests have it

    reason = why_no_packets()
    if reason:
        pytest.skip(reason)
    with Underlay() as underlay:
        underlay.add_nodes(nodes)
        yield underlay


def call(
    source: NetworkNamespace, target: NetworkNamespace, address: str, *, seconds: float = 20.0
) -> str:
    """Return under which address the caller is seen at an address of the target, "" if it is not.

    The kernel answers for whoever listens, so that nobody need serve.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with target.open_socket(family) as listener, source.open_socket(family) as caller:
        listener.bind((address, 0))
        listener.listen()
        caller.settimeout(seconds)
        listener.settimeout(seconds)
        try:
            caller.connect(listener.getsockname())
            accepted, peer = listener.accept()
        except OSError:
            return ""
        accepted.close()
        return str(peer[0])
