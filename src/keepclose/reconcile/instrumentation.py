"""What a controller tells those who measure it.

Observers look on: they must neither block nor raise, and nothing that they do may change what the
controller does.
"""

from __future__ import annotations

from typing import Protocol

from keepclose.kube.work_queue import WorkQueue
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.contention import Contention
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import Mirrored
from keepclose.slices.service_planner import ServicePlan


class MirroringObserver(Protocol):
    """Sees everything the mirroring of Endpoints does."""

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Note the end of a sync and how long it took."""

    def mirrored(self, key: NamespacedName, mirrored: Mirrored) -> None:
        """Note what mirroring asks for, before it is written."""

    def written(self, operation: str) -> None:
        """Note that the server took a write: create, update or delete."""


class Observer(Protocol):
    """Sees everything a controller does."""

    @property
    def mirroring(self) -> MirroringObserver:
        """Who sees the mirroring of Endpoints."""

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Note the end of a sync and how long it took."""

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Note a plan, before it is written."""

    def written(self, operation: str) -> None:
        """Note that the server took a write: create, update or delete."""

    def reached(self, seconds: float) -> None:
        """Note how long the oldest change of a pod in a sync took until it was written."""

    def forgotten(self, key: NamespacedName) -> None:
        """Note that a Service is gone."""

    def contended(self, key: NamespacedName) -> None:
        """Note that writes of a Service are put off because another controller undoes them."""

    def watch_contention(self, contention: Contention) -> None:
        """Look from now on at the Services that another controller fights about."""

    def watch_queue(self, name: str, queue: WorkQueue[NamespacedName]) -> None:
        """Look at a queue from now on."""


class SilentMirroringObserver:
    """Looks away."""

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Do nothing."""

    def mirrored(self, key: NamespacedName, mirrored: Mirrored) -> None:
        """Do nothing."""

    def written(self, operation: str) -> None:
        """Do nothing."""


class SilentObserver:
    """Looks away."""

    mirroring = SilentMirroringObserver()

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Do nothing."""

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Do nothing."""

    def written(self, operation: str) -> None:
        """Do nothing."""

    def reached(self, seconds: float) -> None:
        """Do nothing."""

    def forgotten(self, key: NamespacedName) -> None:
        """Do nothing."""

    def contended(self, key: NamespacedName) -> None:
        """Do nothing."""

    def watch_contention(self, contention: Contention) -> None:
        """Do nothing."""

    def watch_queue(self, name: str, queue: WorkQueue[NamespacedName]) -> None:
        """Do nothing."""
