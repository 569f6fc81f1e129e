"""Tests of the rules for nodes and pods."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.field_errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
)
from keepclose.model.metadata_validation import (
    LABEL_SENTENCE,
    LABEL_VALUE_SENTENCE,
    SUBDOMAIN_SENTENCE,
)
from keepclose.model.workload import (
    Container,
    ContainerPort,
    NodeStatus,
    Pod,
    PodIP,
    PodSpec,
    validate_node,
    validate_pod,
)
from support import builders

MUST_BE_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def pod_with_ports(*ports: ContainerPort, init: bool = False) -> Pod:
    """Return a pod with one container, or one init container, that has the given ports."""
    containers = (Container(name="web", ports=ports),)
    spec = PodSpec(init_containers=containers) if init else PodSpec(containers=containers)
    return replace(builders.pod(), spec=spec)


@pytest.mark.parametrize(
    "allocatable",
    [
        pytest.param({}, id="no amounts"),
        pytest.param({"cpu": "3920m", "memory": "16Gi", "pods": 110}, id="usual amounts"),
        pytest.param({"cpu": 0.5, "memory": "0"}, id="numbers and nothing"),
    ],
)
def test_good_node_has_no_causes(allocatable: dict[str, str | float]) -> None:
    """A node with a legal name, labels and amounts is fine."""
    node = replace(builders.node("n1.example.com"), status=NodeStatus(allocatable=allocatable))

    assert validate_node(node) == []


def test_bad_node_has_all_causes() -> None:
    """Name, namespace, zone label and amounts of a node are all checked, in this order."""
    node = builders.node("N1", "zone a", cpu="four")
    node = replace(
        node,
        metadata=replace(node.metadata, namespace="default"),
        status=NodeStatus(allocatable={"memory": "-1", "cpu": "four"}),
    )

    assert validate_node(node) == [
        invalid("metadata.name", "N1", SUBDOMAIN_SENTENCE),
        forbidden_field("metadata.namespace", "not allowed on this type"),
        invalid("metadata.labels", "zone a", LABEL_VALUE_SENTENCE),
        invalid(
            "status.allocatable.cpu",
            "four",
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        invalid("status.allocatable.memory", "-1", "must be greater than or equal to 0"),
    ]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(builders.pod(), id="a running pod"),
        pytest.param(builders.pod(ips=("10.0.0.1", "fd00::1")), id="both families"),
        pytest.param(builders.pod(node_name="", ips=()), id="a pod that is not placed yet"),
        pytest.param(pod_with_ports(), id="no ports"),
        pytest.param(pod_with_ports(ContainerPort(container_port=65535)), id="the last port"),
        pytest.param(
            pod_with_ports(ContainerPort(container_port=1, protocol="")), id="protocol left out"
        ),
    ],
)
def test_good_pod_has_no_causes(pod: Pod) -> None:
    """A pod with a legal name, node, ports and addresses is fine, and so is one without them."""
    assert validate_pod(pod) == []


@pytest.mark.parametrize(
    ("pod", "want_causes"),
    [
        pytest.param(
            builders.pod("Web"),
            [invalid("metadata.name", "Web", SUBDOMAIN_SENTENCE)],
            id="a name in capitals",
        ),
        pytest.param(
            builders.pod(namespace=""), [required("metadata.namespace")], id="no namespace"
        ),
        pytest.param(
            builders.pod(node_name="n_1"),
            [invalid("spec.nodeName", "n_1", SUBDOMAIN_SENTENCE)],
            id="a node that cannot exist",
        ),
        pytest.param(
            replace(builders.pod(), spec=PodSpec(hostname="a.b", subdomain="-")),
            [
                invalid("spec.hostname", "a.b", "must not contain dots"),
                invalid("spec.subdomain", "-", LABEL_SENTENCE),
            ],
            id="host names that are no labels",
        ),
        pytest.param(
            pod_with_ports(ContainerPort(), ContainerPort(container_port=65536)),
            [
                required("spec.containers[0].ports[0].containerPort"),
                invalid(
                    "spec.containers[0].ports[1].containerPort",
                    65536,
                    "must be between 1 and 65535, inclusive",
                ),
            ],
            id="ports out of range",
        ),
        pytest.param(
            pod_with_ports(ContainerPort(container_port=-1), init=True),
            [
                invalid(
                    "spec.initContainers[0].ports[0].containerPort",
                    -1,
                    "must be between 1 and 65535, inclusive",
                )
            ],
            id="a negative port of an init container",
        ),
        pytest.param(
            pod_with_ports(
                ContainerPort(name="http", container_port=80),
                ContainerPort(name="http", container_port=81, protocol="tcp"),
                ContainerPort(name="80", container_port=82),
            ),
            [
                duplicate("spec.containers[0].ports[1].name", "http"),
                not_supported(
                    "spec.containers[0].ports[1].protocol", "tcp", ("SCTP", "TCP", "UDP")
                ),
                invalid(
                    "spec.containers[0].ports[2].name",
                    "80",
                    "must contain at least one letter (a-z)",
                ),
            ],
            id="bad port names and protocols",
        ),
        pytest.param(
            builders.pod(ips=("10.0.0.256", "")),
            [
                invalid("status.podIP", "10.0.0.256", MUST_BE_IP),
                invalid("status.podIPs[0]", "10.0.0.256", MUST_BE_IP),
                invalid("status.podIPs[1]", "", MUST_BE_IP),
            ],
            id="addresses that are none",
        ),
        pytest.param(
            builders.pod(ips=("10.0.0.1", "10.0.0.1")),
            [
                invalid(
                    "status.podIPs",
                    [{"IP": "10.0.0.1"}, {"IP": "10.0.0.1"}],
                    "may specify no more than one IP for each IP family",
                )
            ],
            id="the same address twice",
        ),
        pytest.param(
            builders.pod(ips=("10.0.0.1", "10.0.0.2")),
            [
                invalid(
                    "status.podIPs",
                    [{"IP": "10.0.0.1"}, {"IP": "10.0.0.2"}],
                    "may specify no more than one IP for each IP family",
                )
            ],
            id="two addresses of one family",
        ),
    ],
)
def test_bad_pod_has_causes(pod: Pod, want_causes: list[FieldError]) -> None:
    """Each rule that a pod breaks gives its cause."""
    assert validate_pod(pod) == want_causes


def test_address_alone_is_checked() -> None:
    """An address of the older single field is checked also where the list is empty."""
    pod = builders.pod()
    pod = replace(pod, status=replace(pod.status, pod_ip="x", pod_ips=()))

    assert validate_pod(pod) == [invalid("status.podIP", "x", MUST_BE_IP)]


def test_three_addresses_are_too_many() -> None:
    """More than one address of a family is refused also beside another family."""
    pod = builders.pod()
    addresses = ("10.0.0.1", "fd00::1", "fd00::2")
    pod = replace(pod, status=replace(pod.status, pod_ips=tuple(map(PodIP, addresses))))

    assert [cause.field for cause in validate_pod(pod)] == ["status.podIPs"]
