"""Our own API server as a process, as a user starts it."""

from __future__ import annotations

from support.server_processes import Embedded, embedded_server, start_embedded

__all__ = ["Embedded", "embedded_server", "start_embedded"]
