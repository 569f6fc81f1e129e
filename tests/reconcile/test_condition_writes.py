"""What is written as the status of a Service, and what of it a reader can trust."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.transport.retries import Retries
from keepclose.model.meta import Condition
from keepclose.model.service.types import Service
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.testing.fake_clock import FakeClock
from support.builders import service
from support.echoes import EchoTransport

ACCEPTED = Condition(type="TrafficDistributionAccepted", status="True", reason="Accepted")


async def observed(generation: int) -> list[int | None]:
    """Return the generations that the conditions of a Service of some generation speak of."""
    clock, transport = FakeClock(), EchoTransport()
    client = Client(transport, clock=clock, retries=Retries(max_elapsed=0.0))
    cache: Cache[Service] = Cache()
    made = service("web")
    made = replace(made, metadata=replace(made.metadata, generation=generation))
    assert await ConditionWriter(client, cache, clock=clock).write(made, (ACCEPTED,))
    [request] = transport.requests
    sent = msgspec.json.decode(request.body or b"{}")["status"]["conditions"]
    return [condition.get("observedGeneration") for condition in sent]


async def test_conditions_name_the_generation_they_speak_of() -> None:
    """A reader sees that a condition is stale; a server that counts none gets none."""
    assert await observed(7) == [7]
    assert await observed(0) == [None]
