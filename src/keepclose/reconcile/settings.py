"""The settings of a controller: workers, delays, retries, and the settings of every plan.

The names, defaults, ranges and messages are those of the EndpointSlice controllers of
kube-controller-manager.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.heuristics.process import defer_heuristics
from keepclose.model.gates import Gate
from keepclose.slices.mirroring import MAX_PER_SUBSET
from keepclose.slices.settings import PlannerSettings

CONTROLLER_COMPONENT: Final = "endpoint-slice-controller"
MIRRORING_COMPONENT: Final = "endpoint-slice-mirroring-controller"
CONTROLLER_QUEUE: Final = "endpoint_slice"
MIRRORING_QUEUE: Final = "endpoint_slice_mirroring"


class ControllerSettings(msgspec.Struct, frozen=True):
    """The settings of a controller; times are in seconds."""

    plan: PlannerSettings = PlannerSettings()
    workers: int = 5
    batch_s: float = 0.0
    """How long the change of a pod is batched with others before its Services are synced."""
    slice_delay_s: float = 1.0
    """The shortest delay of the sync after another client wrote a slice."""
    retry_delay_s: float = 1.0
    """The delay after the first failure of a Service; each further failure doubles it."""
    most_retries: int = 15
    grace_s: float = 3.0
    """How long running syncs may take to finish when the controller stops."""
    resync_s: tuple[float, float] = (12 * 3600.0, 24 * 3600.0)
    recheck_s: tuple[float, float] = (45.0, 75.0)
    """The range of delays between dry runs that check whether dropped fields are stored now."""
    mirrors: bool = True
    mirroring_workers: int = 5
    mirroring_max: int = MAX_PER_SUBSET
    mirroring_batch_s: float = 0.0

    @property
    def slice_batch_s(self) -> float:
        """How long the change of a slice is batched."""
        return max(self.slice_delay_s, self.batch_s)

    @property
    def writes_conditions(self) -> bool:
        """Whether the controller writes status conditions of Services."""
        return self.plan.gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)


def defer_answers(settings: ControllerSettings) -> ControllerSettings:
    """Return the settings with third-party heuristics deferred, so that no plan blocks on one."""
    heuristics = defer_heuristics(settings.plan.heuristics)
    return replace(settings, plan=replace(settings.plan, heuristics=heuristics))


def controller_settings_errors(settings: ControllerSettings) -> list[str]:
    """Return the validation errors, each with the option that sets the value."""
    errors: list[str] = []
    for option, value, most in (
        ("concurrent-service-endpoint-syncs", settings.workers, 50),
        ("max-endpoints-per-slice", settings.plan.max_endpoints, 1000),
        ("mirroring-concurrent-service-endpoint-syncs", settings.mirroring_workers, 50),
        ("mirroring-max-endpoints-per-subset", settings.mirroring_max, 1000),
    ):
        if value < 1:
            errors.append(f"{option} must not be less than 1, but got {value}")
        elif value > most:
            errors.append(f"{option} must not be more than {most}, but got {value}")
    if settings.batch_s < 0:
        errors.append("endpointslice-updates-batch-period must not be negative")
    if settings.mirroring_batch_s < 0:
        errors.append("mirroring-endpointslice-updates-batch-period must not be negative")
    return errors
