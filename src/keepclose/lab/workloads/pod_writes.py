"""Creates and deletes the pods of workloads, a few at once, and remembers what it did.

A pod that is deleted gets the time that it asked for; whoever runs it ends it. One whose creation
got no answer is waited for a little, because it may be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from keepclose.kube.client import Client
from keepclose.kube.errors import ApiError, Conflict, NotFound, TransportError
from keepclose.kube.event_recorder import EventRecorder
from keepclose.lab.workloads.expectations import DOUBT_S, Expectations
from keepclose.lab.workloads.pods import PODS, WorkloadPod
from keepclose.lab.workloads.types import DaemonSet, ReplicaSet, reference_to
from keepclose.model.json_values import JsonObject

T = TypeVar("T")
AT_ONCE: Final = 16


class NewPod(NamedTuple):
    """A pod to be created: all that is sent, and what of it matters here."""

    body: JsonObject
    pod: WorkloadPod


class PodWriter:
    """Writes pods in the name of the workloads that own them."""

    def __init__(
        self, client: Client, expectations: Expectations, *, recorder: EventRecorder
    ) -> None:
        self._client = client
        self._expectations = expectations
        self._recorder = recorder

    async def create(self, owner: ReplicaSet | DaemonSet, pods: Sequence[NewPod]) -> None:
        """Create the pods; raise the first error once all had their turn."""
        for one in pods:
            # Before the first of them is sent: others choose nodes meanwhile.
            self._expectations.expect_created(owner.metadata.uid, one.pod)
        await _do_all(pods, lambda one: self._create(owner, one))

    async def delete(self, owner: ReplicaSet | DaemonSet, pods: Sequence[WorkloadPod]) -> None:
        """Delete the pods, each with its own grace; raise the first error after all of them."""
        for one in pods:
            self._expectations.expect_deleted(owner.metadata.uid, one)
        await _do_all(pods, lambda one: self._delete(owner, one))

    async def _create(self, owner: ReplicaSet | DaemonSet, new: NewPod) -> None:
        name = new.pod.metadata.name
        try:
            await self._client.create(PODS, new.body, namespace=owner.metadata.namespace)
        except TransportError as error:
            self._expectations.forget(new.pod)
            if error.sent:
                self._expectations.expect_created(owner.metadata.uid, new.pod, for_s=DOUBT_S)
            raise
        except BaseException as error:
            self._expectations.forget(new.pod)
            if isinstance(error, ApiError):
                self._tell(owner, "Warning", "FailedCreate", f"Error creating: {error}")
            raise
        self._tell(owner, "Normal", "SuccessfulCreate", f"Created pod: {name}")

    async def _delete(self, owner: ReplicaSet | DaemonSet, pod: WorkloadPod) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            # It is gone, perhaps with another one in its place.
            self._expectations.forget(pod)
            return
        except BaseException:
            self._expectations.forget(pod)
            raise
        self._tell(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}")

    def _tell(
        self, owner: ReplicaSet | DaemonSet, severity: str, reason: str, message: str
    ) -> None:
        self._recorder.record(reference_to(owner), severity, reason, message)


async def _do_all(work: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def do_one(one: T) -> None:
        async with slots:
            await do(one)

    results = await asyncio.gather(*(do_one(one) for one in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
