"""Writing nodes."""

from __future__ import annotations

from copy import deepcopy

import pytest

from keepclose.model.json_values import JsonObject
from support.kinds import Kinds, raw

NOT_A_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def test_a_node_brings_its_status(kinds: Kinds) -> None:
    """What a node has is what it can give, unless it says less."""
    new = raw(
        "Node", spec={"podCIDR": "10.0.0.0/24"}, status={"capacity": {"cpu": "4"}, "future": 1}
    )
    got = kinds.write(new)
    assert got.causes == []
    assert got.object["spec"] == {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}
    status = got.object["status"]
    assert (status["allocatable"], status["future"]) == ({"cpu": "4"}, 1)
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    assert set(status["nodeInfo"].values()) == {""}


@pytest.mark.parametrize(
    ("spec", "want_causes"),
    [
        pytest.param(
            {"podCIDR": "foo"},
            [
                (
                    'spec.podCIDRs[0]: Invalid value: "foo": must be a valid CIDR value, (e.g. '
                    "10.9.8.0/24 or 2001:db8::/64)"
                )
            ],
            id="no range",
        ),
        pytest.param(
            {"podCIDRs": ["10.0.0.0/24", "10.1.0.0/24"]},
            [
                (
                    'spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.1.0.0/24"]: may specify no '
                    "more "
                    "than one CIDR for each IP family"
                )
            ],
            id="two ranges of one family",
        ),
        pytest.param({"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}, [], id="one of each family"),
        pytest.param(
            {
                "taints": [
                    {"key": "a", "effect": "Foo"},
                    {"key": "b c", "effect": "NoSchedule"},
                    {"key": "d", "effect": "NoSchedule"},
                    {"key": "d", "effect": "NoSchedule"},
                    {"key": "e"},
                ]
            },
            [
                (
                    'metadata.taints[0].effect: Unsupported value: "Foo": supported values: '
                    '"NoSchedule", "PreferNoSchedule", "NoExecute"'
                ),
                f'metadata.taints[1].key: Invalid value: "b c": {NOT_A_NAME}',
                (
                    "metadata.taints[3]: Duplicate value: "
                    '{"Key":"d","Value":"","Effect":"NoSchedule",'
                    '"TimeAdded":null}: taints must be unique by key and effect pair'
                ),
                "metadata.taints[4].effect: Required value",
            ],
            id="bad taints",
        ),
    ],
)
def test_nodes_are_checked(kinds: Kinds, spec: JsonObject, want_causes: list[str]) -> None:
    """Ranges and taints are told with upstream's words."""
    assert kinds.write(raw("Node", spec=spec)).causes == want_causes


def test_some_of_a_node_stays_once_it_is_set(kinds: Kinds) -> None:
    """Range and provider may be set once; the rest, and labels, may change."""
    old = kinds.write(raw("Node", spec={})).object
    new = deepcopy(old)
    new["spec"] = {"providerID": "x", "podCIDR": "10.0.0.0/24", "unschedulable": True}
    changed = kinds.write(new, old)
    assert changed.causes == []
    later = deepcopy(changed.object)
    later["spec"] = {"providerID": "y", "podCIDR": "10.1.0.0/24"}
    assert kinds.write(later, changed.object).causes == [
        'spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid',
        (
            'spec.providerID: Forbidden: node updates may not change providerID except from "" to '
            "valid"
        ),
    ]


def test_what_a_node_reports_is_checked(kinds: Kinds) -> None:
    """A status update keeps the spec, completes the status and refuses doubles."""
    old = kinds.write(raw("Node", spec={"unschedulable": True})).object
    address = {"type": "InternalIP", "address": "1.1.1.1"}
    new = {**deepcopy(old), "spec": {}, "status": {"capacity": {"cpu": "9"}}}
    new["metadata"]["labels"] = {"a": "b"}
    got = kinds.write(new, old, subresource="status").object
    assert (got["spec"], got["metadata"]["labels"]) == ({"unschedulable": True}, {"a": "b"})
    assert got["status"]["allocatable"] == {"cpu": "9"}
    new["status"] = {"addresses": [address, address], "allocatable": {"cpu": "-1"}}
    assert kinds.write(new, old, subresource="status").causes == [
        'status.allocatable.cpu: Invalid value: "-1": must be greater than or equal to 0',
        'status.addresses[1]: Duplicate value: {"Type":"InternalIP","Address":"1.1.1.1"}',
    ]
