"""A real kube-controller-manager that runs the EndpointSlice controllers and nothing else."""

from __future__ import annotations

import contextlib
import re
import ssl
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.real.programs import free_port, program, running, wait_until_answering

JSON = "--kube-api-content-type=application/json"
CONTROLLERS = ("endpointslice-controller", "endpointslice-mirroring-controller")
# Old versions that lose to newer ones are part of the protocol, and are tried again. The tables of
# kube-proxy are not there when it starts, once for each address family.
_HARMLESS = re.compile(
    r"the object has been modified|Operation cannot be fulfilled"
    r"|Failed to list existing nftables objects"
)


class Manager(NamedTuple):
    """A running kube-controller-manager."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str

    def repeated_errors(self) -> dict[str, int]:
        """Return errors that were logged twice or more from the same place, with their number."""
        return repeated_errors(self.log)

    def metric(self, pattern: str) -> float:
        """Return the sum of the samples whose name and labels match."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10, context=context) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{pattern}\S* (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in found)


def repeated_errors(log: Path) -> dict[str, int]:
    """Return errors of a log of klog that come twice or more from the same line of code."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"[EF]\d{4} ", line)]
    places = Counter(line.split("] ", 1)[-1] for line in errors if not _HARMLESS.search(line))
    return {place: count for place, count in places.items() if count > 1}


@contextlib.contextmanager
def controller_manager(
    kubeconfig: Path, log: Path, *flags: str, controllers: tuple[str, ...] = CONTROLLERS
) -> Iterator[Manager]:
    """Run the controllers for the time of the block, without leader election unless asked for."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    arguments: list[str | Path] = [
        program("kube-controller-manager"),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        "--use-service-account-credentials=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={log.parent / f'{log.stem}-certs'}",
        "--authorization-always-allow-paths=/healthz,/metrics",
        "--v=2",
        *flags,
    ]
    with running(arguments, log) as process:
        wait_until_answering(f"{url}/healthz", process, log)
        yield Manager(process, log, url)
