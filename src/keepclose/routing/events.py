"""What the user is told on the Service object when topology hints come or go."""

from __future__ import annotations

import msgspec


class TopologyEvent(msgspec.Struct, frozen=True):
    """An event on a Service: Normal or Warning, a reason in one word, a message."""

    type: str
    reason: str
    message: str
