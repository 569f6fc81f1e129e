"""How a controller runs: how many workers, how patient, and the settings of every plan.

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
from keepclose.slices.settings import Settings

CONTROLLER_COMPONENT: Final = "endpoint-slice-controller"
MIRRORING_COMPONENT: Final = "endpoint-slice-mirroring-controller"
QUEUE: Final = "endpoint_slice"
MIRRORING_QUEUE: Final = "endpoint_slice_mirroring"


class ControllerSettings(msgspec.Struct, frozen=True):
    """Everything a controller can be told; times are seconds."""

    plan: Settings = Settings()
    workers: int = 5
    batch_s: float = 0.0
    """How long a change of a pod waits for others before its Services are synced."""
    slice_delay_s: float = 1.0
    """The least time before a slice that somebody else wrote is looked at."""
    retry_delay_s: float = 1.0
    """How long a Service waits after its first failure; each further one doubles that."""
    most_retries: int = 15
    grace_s: float = 3.0
    """How long syncs under way may take to end when the controller stops."""
    resync_s: tuple[float, float] = (12 * 3600.0, 24 * 3600.0)
    ask_again_s: tuple[float, float] = (45.0, 75.0)
    """After what time the server is asked whether it keeps by now what it did not keep."""
    mirrors: bool = True
    mirroring_workers: int = 5
    mirroring_max: int = MAX_PER_SUBSET
    mirroring_batch_s: float = 0.0

    @property
    def slice_batch_s(self) -> float:
        """How long a change of a slice waits."""
        return max(self.slice_delay_s, self.batch_s)

    @property
    def writes_conditions(self) -> bool:
        """Whether Services get status conditions."""
        return self.plan.gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)


def defer_answers(settings: ControllerSettings) -> ControllerSettings:
    """Return the settings with heuristics of third parties that make no caller wait."""
    heuristics = defer_heuristics(settings.plan.heuristics)
    return replace(settings, plan=replace(settings.plan, heuristics=heuristics))


def controller_settings_errors(settings: ControllerSettings) -> list[str]:
    """Return what is out of range, named by the option that sets it; empty when all is well."""
    flaws: list[str] = []
    for option, value, most in (
        ("concurrent-service-endpoint-syncs", settings.workers, 50),
        ("max-endpoints-per-slice", settings.plan.max_endpoints, 1000),
        ("mirroring-concurrent-service-endpoint-syncs", settings.mirroring_workers, 50),
        ("mirroring-max-endpoints-per-subset", settings.mirroring_max, 1000),
    ):
        if value < 1:
            flaws.append(f"{option} must not be less than 1, but got {value}")
        elif value > most:
            flaws.append(f"{option} must not be more than {most}, but got {value}")
    if settings.batch_s < 0:
        flaws.append("endpointslice-updates-batch-period must not be negative")
    if settings.mirroring_batch_s < 0:
        flaws.append("mirroring-endpointslice-updates-batch-period must not be negative")
    return flaws
