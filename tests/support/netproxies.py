"""`keepclose proxy` as a process in the namespace of each node, against a server in this process.

    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        with topology_or_skip((NodePlan("n1", "zone-a"),)) as bed:
            async with proxies(bed, cluster, tmp_path) as running:
                ...

A node reaches the server at the server's own local address, through a relay out of its world that a
test can cut. Each proxy has the rights of its node and no more.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from keepclose.lab.network.relays import Relay
from support.nettopology import Bed, BedNode
from support.proxies import ProxyCluster

PAGES: Final = "127.0.0.1:10249"
HEALTH: Final = "127.0.0.1:10256"
_SECONDS: Final = 60.0


class RunningProxy(NamedTuple):
    """The proxy of one node."""

    node: BedNode
    relay: Relay
    kubeconfig: Path
    log: Path

    def command(self, *more: str) -> list[str]:
        """Return the command line of the proxy, with more options."""
        program = Path(sys.executable).parent / "keepclose"
        return [
            str(program),
            "proxy",
            *("--node-name", self.node.name, "--kubeconfig", str(self.kubeconfig)),
            *("--min-sync-period", "0s", "--metrics-bind-address", PAGES),
            *("--healthz-bind-address", HEALTH),
            *more,
        ]

    def rules(self, family: str = "ip") -> str:
        """Return the table as nft lists it, "" where there is none."""
        try:
            return self.node.namespace.run("nft", "list", "table", family, "kube-proxy")
        except subprocess.CalledProcessError:
            return ""

    def fetch(self, path: str, address: str = PAGES) -> tuple[int, str]:
        """Return status and body of a page of the proxy; raises OSError."""
        host, _, port = address.rpartition(":")
        with self.node.namespace.open_socket() as one:
            one.settimeout(_SECONDS)
            one.connect((host, int(port)))
            one.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            head, _, body = _read_all(one).partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def start(self, *more: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Run the proxy for a block."""
        return self.node.namespace.running(self.command(*more), self.log)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the command with other options to its end."""
        return subprocess.run(
            self.node.namespace.command(*self.command(*options)),
            capture_output=True,
            text=True,
            timeout=3 * _SECONDS,
            check=False,
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another keepclose command inside the node."""
        program = Path(sys.executable).parent / "keepclose"
        return subprocess.run(
            self.node.namespace.command(program, *arguments),
            capture_output=True,
            text=True,
            timeout=3 * _SECONDS,
            check=False,
        )


def _read_all(one: socket.socket) -> bytes:
    parts = []
    while part := one.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@contextlib.asynccontextmanager
async def prepared(
    bed: Bed, cluster: ProxyCluster, directory: Path
) -> AsyncIterator[dict[str, RunningProxy]]:
    """Add the nodes of the bed to the cluster and connect them to the server, for the block."""
    port = int(cluster.api.url.rpartition(":")[2])
    made: dict[str, RunningProxy] = {}
    for node in bed.nodes:
        await cluster.add_node(
            node.name,
            node.zone or None,
            addresses=(node.address, node.address6),
            pod_cidrs=(node.pod_cidr, node.pod_cidr6),
        )
        relay = Relay(node.namespace, port)
        await relay.open()
        data = cluster.api.server.settings.data_dir
        kubeconfig = data / f"node-{node.name}.kubeconfig"
        log = directory / f"{node.name}.log"
        made[node.name] = RunningProxy(node, relay, kubeconfig, log)
    try:
        yield made
    finally:
        for one in made.values():
            await one.relay.cut()


@contextlib.contextmanager
def started(proxies: dict[str, RunningProxy], *more: str) -> Iterator[None]:
    """Run all proxies for the block; fail if one has ended by itself."""
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(one.start(*more)) for name, one in proxies.items()}
        yield
        for name, process in processes.items():
            if process.poll() is not None:
                raise AssertionError(proxies[name].log.read_text(errors="replace")[-3000:])


__all__ = ["HEALTH", "PAGES", "RunningProxy", "prepared", "started"]
