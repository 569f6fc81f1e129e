"""Leader election on a Lease: of several processes with one lease, at most one leads at a time.

Only the local monotonic clock decides whether another holder is alive, from the moment at which its
record was last seen to change; the times in a record are for people. The leader counts from before
it sent its last successful renewal and stops after the renew deadline, while all other candidates
wait for the whole lease duration after they saw that renewal. So the leader has stopped before
another one starts, as long as its work ends promptly when it is cancelled.

      seeking --- free, released or expired ---> leading --- work ended ---> released
         ^                                          |
         +--- another process holds it              +--- not renewed in time ---> lost
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from random import Random
from typing import Final

import structlog
from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, ConfigError, Conflict, KubeError, NotFound
from keepclose.kube.requests import LEASES
from keepclose.model.core_kinds import Lease, LeaseSpec
from keepclose.model.meta import ObjectMeta

# Candidates spread over this many further retry periods, as in client-go.
_SEEK_JITTER: Final = 1.2
_log = structlog.get_logger(__name__)


class LeadershipLost(KubeError):  # noqa: N818 - named after what happened, as in the tree
    """Another process may lead by now; the work was cancelled."""


class LeaderElector:
    """A candidate for one Lease, under an identity that no other process has."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        random: Random | None = None,
        lease_duration_s: int = 15,
        renew_deadline_s: float = 10.0,
        retry_period_s: float = 2.0,
        seek_period_s: float | None = None,
    ) -> None:
        """Take the terms of the election; a candidate reads the lease every `seek_period_s`.

        By default that is the retry period. It is the shortest time of a handover.
        """
        if not identity:
            raise ConfigError("a leader needs an identity", field="identity")
        if not lease_duration_s > renew_deadline_s > retry_period_s > 0:
            raise ConfigError("lease duration > renew deadline > retry period > 0 must hold")
        self._client = client
        self._namespace, self._name = namespace, name
        self.identity = identity
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - spreads load, keeps no secret
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._seek_period_s = retry_period_s if seek_period_s is None else seek_period_s
        self._lease: Lease | None = None
        self._seen_spec: LeaseSpec | None = None
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self.is_leader = False
        """Whether the work may run now."""
        self.terms = 0
        """How often this process has become the leader."""

    @property
    def holder(self) -> str:
        """The holder of the lease when it was last seen; "" without one."""
        return (self._seen_spec.holder_identity or "") if self._seen_spec else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to become the leader, then run the work once; return when it returns.

        Errors of the work pass through. When the lease cannot be renewed, the work is cancelled,
        and LeadershipLost is raised once it has ended. When this call is cancelled, so is the work,
        and the lease is released once it has ended.
        """
        await self._acquire()
        self.is_leader = True
        self.terms += 1
        _log.info("leadership acquired", lease=self._name, identity=self.identity)
        renewing = asyncio.ensure_future(self._renew())
        working = asyncio.ensure_future(lead())
        is_cancelled = False
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            is_cancelled = True
        self.is_leader = False
        # The lease is renewed for as long as the work takes to stop.
        is_cancelled |= await _cancel_and_wait(working)
        is_held = not renewing.done()
        is_cancelled |= await _cancel_and_wait(renewing)
        if is_held:
            await self._release()
        else:
            _log.warning("leadership lost", lease=self._name, identity=self.identity)
        if is_cancelled:
            raise asyncio.CancelledError
        if not working.cancelled():
            working.result()
        if not is_held:
            raise LeadershipLost(f"lease {self._namespace}/{self._name}: {renewing.exception()}")

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._clock.wait_for(self._try_to_acquire(), self._renew_deadline_s / 2):
                    return
            except ConfigError:
                raise
            except (KubeError, TimeoutError) as error:
                _log.warning("lease not acquired", lease=self._name, error=repr(error))
            spread = 1.0 + _SEEK_JITTER * self._random.random()
            await self._clock.sleep(self._seek_period_s * spread)

    async def _renew(self) -> None:
        """Renew the lease until that fails for too long, then raise LeadershipLost."""
        last_error: BaseException | None = None
        while True:
            deadline = self._renewed_at + self._renew_deadline_s
            pause = self._retry_period_s * (0.9 + 0.2 * self._random.random())
            await self._clock.sleep(min(pause, deadline - self._clock.monotonic()))
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise LeadershipLost(f"not renewed in {self._renew_deadline_s} s") from last_error
            try:
                await self._clock.wait_for(
                    self._try_to_renew(), min(left, self._renew_deadline_s / 2)
                )
            except (KubeError, TimeoutError) as error:
                last_error = error
                _log.warning("lease not renewed", lease=self._name, error=repr(error))
            if self.holder != self.identity:
                raise LeadershipLost(f"held by {self.holder!r}")

    async def _try_to_acquire(self) -> bool:
        """Acquire the lease if it is free; return whether this process holds it now."""
        try:
            current = await self._client.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            return await self._create()
        self._observe(current)
        if not self._is_free(current.spec):
            return False
        try:
            await self._write(current)
        except (Conflict, NotFound):
            return False
        return True

    async def _try_to_renew(self) -> None:
        """Renew the lease; if another process holds it, only record the holder."""
        if self._lease is not None:
            # The usual renewal needs no read: a write of another client raises Conflict.
            try:
                await self._write(self._lease)
            except (Conflict, NotFound):
                self._lease = None
            else:
                return
        try:
            current = await self._client.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            await self._create()
            return
        self._observe(current)
        if current.spec.holder_identity == self.identity:
            await self._write(current)

    def _is_free(self, spec: LeaseSpec) -> bool:
        if not spec.holder_identity or spec.holder_identity == self.identity:
            return True
        duration_s = spec.lease_duration_seconds or self._lease_duration_s
        return self._seen_at + duration_s <= self._clock.monotonic()

    async def _create(self) -> bool:
        asked_at = self._clock.monotonic()
        now = self._timestamp()
        lease = Lease(
            metadata=ObjectMeta(name=self._name, namespace=self._namespace),
            spec=LeaseSpec(
                holder_identity=self.identity,
                lease_duration_seconds=self._lease_duration_s,
                acquire_time=now,
                renew_time=now,
                lease_transitions=0,
            ),
        )
        try:
            held = await self._client.create(LEASES, lease, namespace=self._namespace)
        except AlreadyExists:
            return False
        self._record_held(held, asked_at)
        return True

    async def _write(self, current: Lease) -> None:
        asked_at = self._clock.monotonic()
        now = self._timestamp()
        old = current.spec
        transitions = old.lease_transitions or 0
        is_ours = old.holder_identity == self.identity
        spec = replace(
            old,
            holder_identity=self.identity,
            lease_duration_seconds=self._lease_duration_s,
            acquire_time=(is_ours and old.acquire_time) or now,
            renew_time=now,
            lease_transitions=transitions if is_ours else transitions + 1,
        )
        self._record_held(await self._client.update(LEASES, replace(current, spec=spec)), asked_at)

    async def _release(self) -> None:
        """Release the lease for a quick handover; if that fails, it expires by itself."""
        try:
            await self._clock.wait_for(self._write_released(), self._renew_deadline_s / 2)
        except (KubeError, TimeoutError) as error:
            _log.warning("lease not released", lease=self._name, error=repr(error))

    async def _write_released(self) -> None:
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                await self._write_without_holder(lease)
                return
        except Conflict:
            pass
        # A renewal that was cancelled may have been served.
        current = await self._client.get(LEASES, self._name, namespace=self._namespace)
        if current.spec.holder_identity == self.identity:
            await self._write_without_holder(current)

    async def _write_without_holder(self, lease: Lease) -> None:
        now = self._timestamp()
        spec = replace(
            lease.spec,
            holder_identity="",
            lease_duration_seconds=1,
            acquire_time=now,
            renew_time=now,
        )
        self._observe(await self._client.update(LEASES, replace(lease, spec=spec)))

    def _record_held(self, lease: Lease, asked_at: float) -> None:
        self._lease = lease
        self._renewed_at = asked_at
        self._observe(lease)

    def _observe(self, lease: Lease) -> None:
        """Record when a record was first seen; reading it again without a change does not count."""
        if lease.spec != self._seen_spec:
            self._seen_spec = lease.spec
            self._seen_at = self._clock.monotonic()

    def _timestamp(self) -> str:
        return format_microtime(self._clock.now())


def format_microtime(seconds: float) -> str:
    """Return a time as the API's MicroTime: RFC 3339 in UTC with six digits of a second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _cancel_and_wait(task: asyncio.Future[None]) -> bool:
    """Cancel a task and wait for its end; return whether the caller was cancelled meanwhile."""
    task.cancel()
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            is_cancelled = True
    if not task.cancelled():
        task.exception()
    return is_cancelled
