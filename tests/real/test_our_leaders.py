"""Leader election and event recording of ours, over the Leases and Events of both servers."""

from __future__ import annotations

import asyncio
import contextlib

from keepclose.kube.client import Client
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.leader_election import LeaderElector
from keepclose.kube.requests import EVENTS, LEASES, SERVICES
from keepclose.model.meta import ObjectReference
from support.real.apis import CLOCK, ONCE, Api, opened, service, wait_until

LEASE_S = 6


class Candidate:
    """One process of two that want to lead."""

    def __init__(self, client: Client, namespace: str, identity: str) -> None:
        self.elector = LeaderElector(
            client,
            namespace=namespace,
            name="lock",
            identity=identity,
            clock=CLOCK,
            lease_duration_s=LEASE_S,
            renew_deadline_s=4.0,
            retry_period_s=0.2,
        )
        self.running = asyncio.ensure_future(self.elector.run(self._lead))

    async def _lead(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End as a program does that is asked to: the lease is given back."""
        self.running.cancel()
        await asyncio.wait((self.running,))


async def test_a_leader_that_stops_hands_over_at_once(api: Api, namespace: str) -> None:
    """The lease is given back, so that the other one need not wait for its end."""
    async with opened(api.kubeconfig, retries=ONCE) as client:
        one = Candidate(client, namespace, "one")
        await wait_until(lambda: one.elector.is_leader, "the first leads")
        two = Candidate(client, namespace, "two")
        try:
            await wait_until(lambda: two.elector.holder == "one", "the second sees the first")
            assert not two.elector.is_leader
            await one.stop()
            stopped_at = CLOCK.monotonic()
            await wait_until(lambda: two.elector.is_leader, "the second leads")
            # Under one on a machine with nothing else to do.
            assert CLOCK.monotonic() - stopped_at < LEASE_S - 2
            lease = await client.get(LEASES, "lock", namespace=namespace)
            assert lease.spec.holder_identity == "two"
            assert lease.spec.lease_transitions == 1
        finally:
            await one.stop()
            await two.stop()


async def test_a_leader_that_dies_is_replaced(api: Api, namespace: str) -> None:
    """Without a word from the leader the other waits for the lease to run out, no longer."""
    async with opened(api.kubeconfig, retries=ONCE) as client:
        dying = opened(api.kubeconfig, retries=ONCE)
        one = Candidate(dying, namespace, "one")
        await wait_until(lambda: one.elector.is_leader, "the first leads")
        two = Candidate(client, namespace, "two")
        try:
            await wait_until(lambda: two.elector.holder == "one", "the second sees the first")
            # Cut off from the server it can neither renew the lease nor give it back.
            await dying.close()
            died_at = CLOCK.monotonic()
            await wait_until(lambda: not one.elector.is_leader, "the first has given up")
            assert not two.elector.is_leader
            await wait_until(lambda: two.elector.is_leader, "the second leads")
            waited = CLOCK.monotonic() - died_at
            assert LEASE_S - 2 < waited < LEASE_S + 4
            assert one.elector.terms == two.elector.terms == 1
        finally:
            await one.stop()
            await two.stop()
            if one.running.done() and not one.running.cancelled():
                one.running.exception()


async def test_repeated_events_are_counted(api: Api, namespace: str) -> None:
    """The same occurrence makes one Event with a count, other ones make their own."""
    async with opened(api.kubeconfig) as client:
        made = await client.create(SERVICES, service("web"), namespace=namespace)
        reference = ObjectReference(
            kind="Service",
            api_version="v1",
            namespace=namespace,
            name="web",
            uid=made.metadata.uid,
        )
        recorder = EventRecorder(client, component="keepclose", host="here", clock=CLOCK)
        sending = asyncio.ensure_future(recorder.run())
        try:
            for _ in range(3):
                recorder.record(reference, "Warning", "TooFew", "too few endpoints")
                await recorder.flush()
            for number in range(12):
                recorder.record(reference, "Normal", "Moved", f"moved to {number}")
            await recorder.flush()
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        page = await client.list_all(
            EVENTS, namespace=namespace, field_selector="involvedObject.name=web"
        )
    found = {(event.reason, event.message): event for event in page.items}
    assert len(found) == len(page.items) == 12
    few = found["TooFew", "too few endpoints"]
    assert (few.count, few.type, few.source.component) == (3, "Warning", "keepclose")
    combined = found["Moved", "(combined from similar events): moved to 11"]
    assert combined.count == 2
    assert found["Moved", "moved to 9"].count == 1
    assert recorder.failed == recorder.dropped == 0
