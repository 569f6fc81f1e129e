"""Scenarios of `keepclose replay`: what happens to a cluster, when, and how long things take.

The types, with the names of their fields as in files. Whether the values make sense is for
`scenario_reading` to say.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.model.workloads.types import IntOrPercent

MAX_REPLAY_S: Final = 86_400.0
"""The simulated time of a replay, and any time in a scenario."""
MAX_REPLAY_EVENTS: Final = 200
MAX_REPLAY_REPLICAS: Final = 1000
MAX_REPLAY_NODES: Final = 500
"""How many nodes one event adds, and how many it names."""
MAX_AUTOSCALE_STEPS: Final = 200


class Seconds(float):
    """A duration; in files a text such as 90s or 1m30s, or a number of seconds."""


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a scenario."""


class PodTimes(_Part, frozen=True):
    """How long pods take, from the choice of their node and from their deletion."""

    start_after: Seconds = Seconds(1)
    """Until a pod runs and has its address."""
    ready_after: Seconds = Seconds(10)
    """Until a pod is ready and accepts connections."""
    ready_spread: Seconds = Seconds(0)
    """Up to this much is added to readyAfter, at random for each pod."""
    accepts_for: Seconds = Seconds(5)
    """How long a deleted pod still accepts connections."""
    exits_after: Seconds | None = None
    """When a deleted pod ends and is gone; default: when it no longer accepts connections."""
    termination_grace: Seconds | None = None
    """When a deleted pod is killed at the latest; default: that of its template, else 30 s."""


class ControllerTimes(_Part, frozen=True):
    """The EndpointSlice controller."""

    batch_period: Seconds = Seconds(0)
    """How long changes of pods are batched, as --endpointslice-updates-batch-period."""


class ProxyTimes(_Part, frozen=True):
    """The proxies of the nodes."""

    delay: Seconds = Seconds(1)
    """From the write of a slice until all nodes route by it."""


class ClientTraffic(_Part, frozen=True):
    """Who sends connections to the Service."""

    connections_per_second: float = 100.0
    """Of all clients at the start."""
    zones: dict[str, float] = {}
    """The parts that the zones send; default: every ready node sends the same."""


class BudgetNumbers(_Part, frozen=True):
    """A PodDisruptionBudget for the pods of the Service, instead of those in the input."""

    min_available: IntOrPercent | None = None
    max_unavailable: IntOrPercent | None = None


class RolloutEvent(_Part, frozen=True):
    """A new template for a Deployment, as by `kubectl rollout restart`."""

    deployment: str = ""
    max_surge: IntOrPercent | None = None
    max_unavailable: IntOrPercent | None = None
    min_ready_seconds: int | None = None


class ScaleEvent(_Part, frozen=True):
    """Another number of replicas for a Deployment."""

    replicas: int
    deployment: str = ""


class AutoscaleEvent(_Part, frozen=True):
    """Numbers of replicas over time, as an autoscaler would set them."""

    replicas: tuple[int, ...]
    every: Seconds = Seconds(60)
    deployment: str = ""


class DrainEvent(_Part, frozen=True):
    """Nodes that are cordoned, and drained one after the other, as by `kubectl drain`."""

    nodes: tuple[str, ...] = ()
    zone: str = ""
    back_after: Seconds | None = None
    """When a drained node is uncordoned, from the end of its drain; default: never."""


class ZoneLossEvent(_Part, frozen=True):
    """All nodes of a zone stop at once, with their pods and clients."""

    zone: str
    lasts: Seconds | None = None
    """Until the nodes are back and their pods start again; default: they stay away."""
    detected_after: Seconds = Seconds(50)
    """Until the nodes are reported as not ready: node-monitor-grace-period since 1.32."""
    evicted_after: Seconds = Seconds(300)
    """From then until their pods are deleted: the default toleration of unreachable nodes."""


class AddNodesEvent(_Part, frozen=True):
    """Nodes that join; their zone label may come late, as from a cloud controller."""

    zone: str
    count: int = 1
    like: str = ""
    """The node whose labels and resources they have; default: the first of the zone."""
    zone_label_after: Seconds = Seconds(0)


class DropZoneLabelsEvent(_Part, frozen=True):
    """Nodes that lose their zone label for some time."""

    nodes: tuple[str, ...] = ()
    zone: str = ""
    lasts: Seconds | None = None
    """Until they have it again; default: never."""


ReplayAction = (
    RolloutEvent
    | ScaleEvent
    | AutoscaleEvent
    | DrainEvent
    | ZoneLossEvent
    | AddNodesEvent
    | DropZoneLabelsEvent
)


class ReplayEvent(_Part, frozen=True):
    """When something happens, and what; exactly one of the fields after `at` is set."""

    at: Seconds = Seconds(0)
    rollout: RolloutEvent | None = None
    scale: ScaleEvent | None = None
    autoscale: AutoscaleEvent | None = None
    drain: DrainEvent | None = None
    zone_loss: ZoneLossEvent | None = None
    add_nodes: AddNodesEvent | None = None
    drop_zone_labels: DropZoneLabelsEvent | None = None

    @property
    def actions(self) -> dict[str, ReplayAction]:
        """What the event does, by the name of the field in files."""
        fields = msgspec.structs.fields(self)
        return {
            field.encode_name: action
            for field in fields[1:]
            if (action := getattr(self, field.name)) is not None
        }


class ReplayScenario(_Part, frozen=True):
    """A scenario."""

    events: tuple[ReplayEvent, ...]
    name: str = ""
    service: str = ""
    """[NAMESPACE/]NAME; may be left out if the input has one Service with a selector."""
    port: str = ""
    """The name of the port that clients use; default: the first one."""
    duration: Seconds | None = None
    """The simulated time; default: until a minute after the last change, an hour at most."""
    pods: PodTimes = PodTimes()
    controller: ControllerTimes = ControllerTimes()
    proxy: ProxyTimes = ProxyTimes()
    clients: ClientTraffic = ClientTraffic()
    disruption_budget: BudgetNumbers | None = None
