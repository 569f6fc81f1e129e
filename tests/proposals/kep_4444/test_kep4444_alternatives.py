"""KEP-4444, Alternatives: what they say about the design that was chosen.

Not counted: why the alternatives were turned down, and what data planes would have had to do under
them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.routing.selection import PacketVerdict
from keepclose.testing.api_server import serving
from keepclose.testing.recording_writer import RecordingWriter
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalscenes import THREE_ZONES, UNEVEN, Scene, asking
from support.proxies import cluster_of, hinted
from support.real.programs import program
from support.server_processes import embedded_server

ONE_NODE_EACH = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
SPEC = "io.k8s.api.core.v1.ServiceSpec"


def test_prefer_close_means_the_zone_and_not_the_node() -> None:
    """PreferClose means the same zone: endpoints on the own node are not preferred."""
    scene = Scene(THREE_ZONES, UNEVEN)
    routes = scene.routed(asking("PreferClose"))
    assert routes["n1"] == routes["n2"] == {"n1-1", "n1-2", "n2-1"}


def test_the_node_has_a_value_of_its_own() -> None:
    """PreferSameNode, which the clearer meaning paved the way for, stands beside PreferClose."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.routed(asking("PreferSameNode"))["n1"] == {"n1-1", "n1-2"}
    assert scene.routed(asking("PreferClose"))["n1"] == {"n1-1", "n1-2", "n2-1"}


async def test_the_field_is_type_checked(api: ProposalApi) -> None:
    """A field allows for type checking: a number is refused."""
    reply = await api.post_service(trafficDistribution=7)
    assert reply.status == 400
    assert "trafficDistribution" in reply.message


async def test_the_field_is_validated(api: ProposalApi) -> None:
    """A field allows for validation: unknown values are refused, with those that are known."""
    reply = await api.post_service(trafficDistribution="PreferZone")
    assert reply.status == 422
    assert reply.json["details"]["causes"] == [
        {
            "reason": "FieldValueNotSupported",
            "message": 'Unsupported value: "PreferZone": supported values: '
            '"PreferClose", "PreferSameZone", "PreferSameNode"',
            "field": "spec.trafficDistribution",
        }
    ]


async def test_the_annotation_is_not_validated(api: ProposalApi) -> None:
    """The annotation that the field replaces takes any text."""
    reply = await api.post_service(annotations={TOPOLOGY_MODE_ANNOTATION: "PreferZone"})
    assert (reply.status, reply.warnings) == (201, [])


async def test_the_field_is_discoverable(api: ProposalApi) -> None:
    """The meaning of the field is discoverable through the published specification."""
    document = await api.plain.get("/openapi/v2")
    field = document["definitions"][SPEC]["properties"]["trafficDistribution"]
    assert field["type"] == "string"
    assert "zone" in field["description"]


@pytest.mark.real
def test_kubectl_explains_the_field(tmp_path: Path) -> None:
    """The meaning of the field is discoverable through kubectl explain."""
    with embedded_server(tmp_path / "data") as server:
        done = subprocess.run(
            [
                program("kubectl"),
                f"--kubeconfig={server.kubeconfig}",
                "explain",
                "service.spec.trafficDistribution",
            ],
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
    assert done.returncode == 0, done.stderr
    assert "FIELD: trafficDistribution <string>" in done.stdout
    assert "zone" in done.stdout.partition("DESCRIPTION:")[2]


@pytest.mark.parametrize("policy", ["internalTrafficPolicy", "externalTrafficPolicy"])
async def test_traffic_policies_stay_strict(api: ProposalApi, policy: str) -> None:
    """Traffic policies keep their meaning: they take no preference such as PreferZone."""
    reply = await api.post_service(type="NodePort", **{policy: "PreferZone"})
    assert reply.status == 422
    assert f'spec.{policy}: Unsupported value: "PreferZone"' in reply.message


def test_local_never_bounces_to_another_node() -> None:
    """Local mandates that traffic remains on the node, whatever preference is set beside it."""
    scene = Scene(THREE_ZONES, UNEVEN)
    wanted = asking("PreferClose", internal_traffic_policy="Local")
    chosen = scene.selections(scene.plan(wanted).slices, wanted)
    assert {one.node_name for one in chosen["n1"].internal.endpoints} == {"n1"}
    assert chosen["n4"].internal.verdict is PacketVerdict.DROP


async def test_the_proxy_watches_no_pods(tmp_path: Path) -> None:
    """The data plane is told by EndpointSlices and need not watch pods across all nodes.

    The proxy works with the rights of its node, which may not list the pods of others.
    """
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
        await cluster.add_service(trafficDistribution="PreferClose")
        await cluster.set_endpoints(hinted("10.0.0.1", "zone-a"))
        token = api.token_of("node-n1")
        assert (await api.call("GET", "/api/v1/pods", token=token)).status == 403
        role, writer = "node-n1.kubeconfig", RecordingWriter()
        with capture_logs() as logs:
            async with cluster.proxied("n1", writer=writer, role=role) as proxy:
                await cluster.settle(proxy)
        assert "forbidden" not in str(logs).lower()
        assert any("10.0.0.1" in text for text in writer.applied)


def test_spread_pods_let_the_preference_be_satisfied() -> None:
    """Pods spread over zones make it likely that PreferClose can be satisfied everywhere."""
    spread = Scene(ONE_NODE_EACH, {"n1": 2, "n2": 2, "n3": 2})
    crowded = Scene(ONE_NODE_EACH, {"n1": 6})
    for scene, zones in ((spread, 3), (crowded, 1)):
        routes = scene.routed(asking("PreferClose"))
        inside = [name for name, used in routes.items() if all(p.startswith(name) for p in used)]
        assert len(inside) == zones


def test_spread_pods_reduce_overload() -> None:
    """Pods spread over zones reduce the chance that one zone is overloaded."""
    busiest = [
        max(scene.loads(scene.routed(asking("PreferClose"))).values())
        for scene in (
            Scene(ONE_NODE_EACH, {"n1": 2, "n2": 2, "n3": 2}),
            Scene(ONE_NODE_EACH, {"n1": 4, "n2": 1, "n3": 1}),
        )
    ]
    assert busiest == [pytest.approx(1.0), pytest.approx(2.0)]


def test_spread_pods_do_not_rule_overload_out() -> None:
    """Overload of a zone is not completely eliminated by that: clients may be skewed."""
    scene = Scene(ONE_NODE_EACH, {"n1": 2, "n2": 2, "n3": 2})
    routes = scene.routed(asking("PreferClose"))
    assert scene.loads(routes, {"n1": 4, "n2": 1, "n3": 1})["n1-1"] == pytest.approx(2.0)
