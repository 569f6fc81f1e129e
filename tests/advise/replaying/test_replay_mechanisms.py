"""The mechanisms that a replay compares: their names, and how a Service is switched to them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.advise.replaying.mechanisms import (
    DEFAULT_MECHANISMS,
    REPLAY_MECHANISMS,
    ReplayMechanism,
    UnknownMechanism,
    choose_mechanisms,
)
from keepclose.model.gates import Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.routing.strategy import choose_strategy
from keepclose.simulate.cluster_objects import web_service
from keepclose.slices.settings import PlannerSettings
from support.replays import SETTINGS

SERVICES = [
    pytest.param(web_service(), id="without a mechanism"),
    pytest.param(web_service(traffic_distribution="PreferSameZone"), id="with a distribution"),
    pytest.param(
        web_service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}), id="with an annotation"
    ),
    pytest.param(
        web_service(annotations={"keepclose.dev/traffic-distribution": "PreferSameNode"}),
        id="with the annotation of keepclose",
    ),
]
GOVERNS = {
    "none": "None",
    "PreferSameZone": "PreferSameZone",
    "PreferSameNode": "PreferSameNode",
    "Auto": "Auto",
    "Subsetting": "Subsetting",
    "Balanced": "keepclose.dev/Balanced",
    "Weights": "keepclose.dev/Balanced",
    "LocalShared": "keepclose.dev/LocalShared",
    "LocalWeighted": "keepclose.dev/LocalWeighted",
    "LocalOpt": "keepclose.dev/LocalOpt",
}


def chosen(name: str) -> ReplayMechanism:
    """Return a mechanism by its name."""
    mechanisms = choose_mechanisms([name])
    assert isinstance(mechanisms, tuple)
    return mechanisms[0]


def governing(service: Service, settings: PlannerSettings) -> str:
    """Return what governs a Service."""
    return choose_strategy(service, gates=settings.gates, heuristics=settings.heuristics).label


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", GOVERNS)
def test_a_mechanism_governs_whatever_governed_before(name: str, service: Service) -> None:
    """With the gates that it needs, and its label is its name."""
    mechanism = chosen(name)
    switched, settings = mechanism.apply(service, SETTINGS)
    assert governing(switched, settings) == GOVERNS[name]
    assert mechanism.label_for(switched, settings) == name
    # Ports, selector and policies stay.
    assert replace(switched.spec, traffic_distribution=None) == replace(
        service.spec, traffic_distribution=None
    )


def test_every_mechanism_is_tried_here() -> None:
    """All but the Service as it is."""
    assert ["as-is", *GOVERNS] == [mechanism.name for mechanism in REPLAY_MECHANISMS]


@pytest.mark.parametrize("service", SERVICES)
def test_the_service_as_it_is(service: Service) -> None:
    """Nothing changes, and the label says what governs."""
    mechanism = chosen("as-is")
    assert mechanism.apply(service, SETTINGS) == (service, SETTINGS)
    governs = governing(service, SETTINGS)
    want = "none" if governs == "None" else governs
    assert mechanism.label_for(service, SETTINGS) == f"as-is ({want})"


def test_what_excludes_a_mechanism_is_said() -> None:
    """TopologyKeys govern whatever is asked for, and their gate excludes that of Auto."""
    service = web_service()
    service = replace(service, spec=replace(service.spec, topology_keys=("*",)))
    gates = SETTINGS.gates.without(Gate.TOPOLOGY_AWARE_HINTS).with_gates(Gate.SERVICE_TOPOLOGY)
    settings = replace(SETTINGS, gates=gates)
    for name in ("Auto", "PreferSameZone"):
        mechanism = chosen(name)
        label = mechanism.label_for(*mechanism.apply(service, settings))
        assert label == f"{name} (TopologyKeys)"


def test_names_of_mechanisms() -> None:
    """In any case, by the value of a heuristic, each once; without names the default ones."""
    names = choose_mechanisms(["AUTO", "keepclose.dev/balanced", "auto", "as-is"])
    assert isinstance(names, tuple)
    assert [mechanism.name for mechanism in names] == ["Auto", "Balanced", "as-is"]
    default = choose_mechanisms([])
    assert isinstance(default, tuple)
    assert tuple(mechanism.name for mechanism in default) == DEFAULT_MECHANISMS
    assert choose_mechanisms(["Ballanced"]) == UnknownMechanism(
        "Ballanced", "did you mean Balanced?"
    )
