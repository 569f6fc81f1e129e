"""KEP-2004 with real connections: a Service grows past its starting threshold and back, T5 to T15.

Three zones begin to be divided at 9 + 3 endpoints and end at 9 - 3. A slice of a divided Service is
labelled with the one zone that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.real.labs_running import RunningLab, pods_of_nodes, running_lab, until

MANIFEST = """
apiVersion: v1
kind: Service
metadata:
  name: web
  annotations: {endpointslice.kubernetes.io/subsetting: Prefer}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 9
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 50%, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "web:1", ports: [{containerPort: 8080}]}]
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule,
         labelSelector: {matchLabels: {app: web}}}
"""
FOR_ZONE = "endpointslice.kubernetes.io/for-zone"
ANNOTATION = "endpointslice.kubernetes.io/subsetting"
FOR_REGION = "endpointslice.kubernetes.io/for-region"
REGION = "topology.kubernetes.io/region"
START = "keepclose.dev/subsetting-starting-threshold"
PADDING = "keepclose.dev/subsetting-padding"
OVERLOAD = "keepclose.dev/subsetting-overload-threshold"
NODES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
ZONES = set(NODES.values())
UNDIVIDED = {""}
Groups = dict[str, set[str]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Run three zones of a node each."""
    with running_lab(tmp_path_factory.mktemp("subsetting"), zones=3, nodes_per_zone=1) as found:
        found.apply(MANIFEST)
        found.rolled_out("deployment/web")
        yield found


def groups(lab: RunningLab) -> Groups:
    """Return the pods in the slices for each zone; those for all under ""."""
    found: Groups = {}
    for piece in lab.slices("web"):
        zone = piece["metadata"]["labels"].get(FOR_ZONE, "")
        names = {one["targetRef"]["name"] for one in piece.get("endpoints") or ()}
        found[zone] = found.get(zone, set()) | names
    return found


def until_divided(lab: RunningLab, zones: set[str], *, count: int) -> Groups:
    """Return the groups when these are all, and when all clients are served by theirs alone.

    Every pod that is there is in one of them then, and no other pod.
    """
    pods = set(lab.pods("web"))
    assert len(pods) == count
    found = until(
        lambda: groups(lab),
        lambda found: set(found) == zones and sorted(pods) == sorted(_join(found)),
    )
    want = {node: found.get(zone) or found[""] for node, zone in NODES.items()}
    lab.until_routed(want, "web", connections=400, by=pods_of_nodes)
    return found


def _join(found: Groups) -> list[str]:
    return [pod for group in found.values() for pod in group]


def scale(lab: RunningLab, count: int) -> None:
    """Return when there are so many pods, and those that were too many are gone."""
    lab.scale("web", count)
    until(lambda: lab.pods("web"), lambda pods: len(pods) == count)


def sizes(found: Groups) -> dict[str, int]:
    """Return how many pods are in each group."""
    return {zone: len(group) for zone, group in found.items()}


def approach(lab: RunningLab, value: str) -> None:
    """Set the annotation."""
    lab.kubectl("annotate", "--overwrite", "service", "web", f"{ANNOTATION}={value}")


def test_growing_past_the_threshold_and_back(lab: RunningLab) -> None:
    """T8 to T11: divided from 12 endpoints on, undivided from 6 on, and between as it was."""
    scale(lab, 9)
    until_divided(lab, UNDIVIDED, count=9)
    scale(lab, 11)
    until_divided(lab, UNDIVIDED, count=11)
    scale(lab, 12)
    found = until_divided(lab, ZONES, count=12)
    assert sizes(found) == dict.fromkeys(ZONES, 4)
    zones = {pod: NODES[node] for pod, node in lab.pods("web").items()}
    assert all(zones[pod] == zone for zone, group in found.items() for pod in group)

    scale(lab, 7)
    found = until_divided(lab, ZONES, count=7)
    scale(lab, 6)
    until_divided(lab, UNDIVIDED, count=6)
    scale(lab, 7)
    until_divided(lab, UNDIVIDED, count=7)


def test_the_annotation_is_followed(lab: RunningLab) -> None:
    """T12 and T13: each value is followed when it comes, and taking it back undoes it."""
    scale(lab, 12)
    try:
        for value, zones in (
            ("Random", UNDIVIDED),
            ("Prefer", ZONES),
            ("Require", ZONES),
            ("Random", UNDIVIDED),
        ):
            approach(lab, value)
            until_divided(lab, zones, count=12)
    finally:
        approach(lab, "Prefer")
    until_divided(lab, ZONES, count=12)


def test_a_rolling_update_ends_as_it_began(lab: RunningLab) -> None:
    """T14 and T15: all pods are replaced by others, and every zone reaches enough of them."""
    scale(lab, 12)
    before = until_divided(lab, ZONES, count=12)
    lab.kubectl("rollout", "restart", "deployment/web")
    lab.rolled_out("deployment/web")
    until(lambda: lab.pods("web"), lambda pods: len(pods) == 12)
    after = until_divided(lab, ZONES, count=12)
    assert not set(_join(before)) & set(_join(after))
    # A third of all is the share of each zone, of which none lacks one half or more.
    assert all(12 / 3 / size - 1 < 0.5 for size in sizes(after).values())


def limit(lab: RunningLab, *annotations: str) -> None:
    """Set limits of the Service, or remove them with a minus sign behind their names."""
    lab.kubectl("annotate", "--overwrite", "service", "web", *annotations)


def test_a_starting_threshold_of_its_own(lab: RunningLab) -> None:
    """T5 to T7: one that is not valid leaves the default and says so, a valid one is followed."""
    try:
        limit(lab, f"{START}=soon")
        # Whatever was divided before is not any more; padding would keep it so at eleven.
        scale(lab, 5)
        until_divided(lab, UNDIVIDED, count=5)
        scale(lab, 11)
        until_divided(lab, UNDIVIDED, count=11)
        scale(lab, 12)
        until_divided(lab, ZONES, count=12)
        events = lab.kubectl("get", "events", "--field-selector=reason=StartingThresholdInvalid")
        assert f"metadata.annotations[{START}]: 'soon' is not a number above 0" in events

        limit(lab, f"{START}=1", f"{PADDING}=0")
        scale(lab, 6)
        until_divided(lab, ZONES, count=6)
        # Five pods leave a zone with one, 67 % above its share: all zones use all of them.
        scale(lab, 5)
        until_divided(lab, UNDIVIDED, count=5)
        limit(lab, f"{OVERLOAD}=0.7")
        until_divided(lab, ZONES, count=5)
    finally:
        limit(lab, f"{START}-", f"{PADDING}-", f"{OVERLOAD}-")
    until_divided(lab, UNDIVIDED, count=5)


def by_region(lab: RunningLab) -> Groups:
    """Return the pods in the slices for each region; those for all under ""."""
    found: Groups = {}
    for endpoint_slice in lab.slices("web"):
        assert FOR_ZONE not in endpoint_slice["metadata"]["labels"]
        region = endpoint_slice["metadata"]["labels"].get(FOR_REGION, "")
        names = {one["targetRef"]["name"] for one in endpoint_slice.get("endpoints") or ()}
        found[region] = found.get(region, set()) | names
    return found


def test_regions_have_slices_of_their_own(lab: RunningLab) -> None:
    """A node uses the endpoints of its region, in whatever zone of it, and those of no other."""
    scale(lab, 12)
    region = f"{REGION}=elsewhere"
    before = lab.get("node", "n3")["metadata"]["labels"][REGION]
    lab.kubectl("label", "--overwrite", "node", "n3", region)
    try:
        approach(lab, "RequireRegion")
        nodes = lab.pods("web")
        far = {pod for pod, node in nodes.items() if node == "n3"}
        near = set(nodes) - far
        assert far
        until(lambda: by_region(lab), lambda found: found == {before: near, "elsewhere": far})
        want = {"n1": near, "n2": near, "n3": far}
        lab.until_routed(want, "web", connections=600, by=pods_of_nodes)
        lab.kubectl("label", "--overwrite", "node", "n3", f"{REGION}={before}")
        until(lambda: by_region(lab), lambda found: found == {"": set(nodes)})
        want = {node: set(nodes) for node in NODES}
        lab.until_routed(want, "web", connections=900, by=pods_of_nodes)
    finally:
        lab.kubectl("label", "--overwrite", "node", "n3", f"{REGION}={before}")
        approach(lab, "Prefer")
    until_divided(lab, ZONES, count=12)
