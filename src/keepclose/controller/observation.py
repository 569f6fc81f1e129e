"""What a controller tells those who measure it."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from keepclose.model.meta import NamespacedName
from keepclose.slices.servicestate import ServicePlan


class Result(StrEnum):
    """How a sync ended; the words are those of the metric `syncs`."""

    SUCCESS = "success"
    STALE = "stale"
    """The cache lagged behind what was written, or somebody else wrote first; tried again."""
    ERROR = "error"


class Observer(Protocol):
    """Sees everything a controller does; must neither block nor raise."""

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Note the end of a sync and how long it took."""

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Note a plan, before it is written."""

    def written(self, operation: str) -> None:
        """Note that the server took a write: create, update or delete."""

    def forgotten(self, key: NamespacedName) -> None:
        """Note that a Service is gone."""


class SilentObserver:
    """Looks away."""

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Do nothing."""

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Do nothing."""

    def written(self, operation: str) -> None:
        """Do nothing."""

    def forgotten(self, key: NamespacedName) -> None:
        """Do nothing."""
