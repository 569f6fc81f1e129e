"""What a probe pod of `keepclose verify --probe` does in a lab: it connects, and logs the answers.

A lab executes no containers, so this takes the place of the script in the pod's manifest: the same
connections from the pod's own network namespace, the same lines. The log becomes the termination
message of the container, which the API server of the lab serves as its log.
"""

from __future__ import annotations

import socket
from threading import Event
from typing import Final, NamedTuple

from keepclose.flows.probe import (
    ADDRESS_VARIABLE,
    CONNECTIONS_VARIABLE,
    MAX_ANSWER_CHARACTERS,
    MAX_LOG_BYTES,
    PORT_VARIABLE,
    PROBE_CONNECT_S,
    condense_answer,
)
from keepclose.model.workloads.pods import ContainerSpec

MAX_PROBED: Final = 100_000
_DIGITS: Final = 6


class LabProbe(NamedTuple):
    """What a probe container connects to; an address of "" connects to nothing."""

    address: str
    port: int
    connections: int

    @classmethod
    def of(cls, container: ContainerSpec) -> LabProbe:
        """Return what the variables of a container ask for, within bounds."""
        values = {variable.name: variable.value for variable in container.env}

        def number(name: str, most: int) -> int:
            text = values.get(name, "")
            is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
            return min(int(text), most) if is_number else 0

        return cls(
            values.get(ADDRESS_VARIABLE, ""),
            number(PORT_VARIABLE, 65535),
            number(CONNECTIONS_VARIABLE, MAX_PROBED),
        )

    def run(self, stopped: Event) -> str:
        """Connect as often as asked for, in this thread's namespace, and return the log.

        Ends early when `stopped` is set or the log is full.
        """
        lines: list[str] = []
        size = 0
        for _ in range(self.connections if self.address and self.port else 0):
            if stopped.is_set() or size > MAX_LOG_BYTES // 4:
                break
            lines.append(condense_answer(self._connect()))
            size += len(lines[-1]) + 1
        return "".join(f"{line}\n" for line in lines)

    def _connect(self) -> bytes:
        request = f"GET / HTTP/1.0\r\nHost: {self.address}\r\n\r\n".encode()
        answer = b""
        try:
            with socket.create_connection((self.address, self.port), PROBE_CONNECT_S) as connected:
                connected.sendall(request)
                while len(answer) < MAX_ANSWER_CHARACTERS:
                    data = connected.recv(MAX_ANSWER_CHARACTERS)
                    if not data:
                        break
                    answer += data
        except (OSError, ValueError):
            return answer
        return answer
