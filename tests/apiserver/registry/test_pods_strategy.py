"""Writing pods: defaults, rules, what may change, bindings and grace periods."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from keepclose.apiserver.registry.pod_templates import quality_of_service
from keepclose.apiserver.registry.pods import FIXED_SPEC
from keepclose.apiserver.registry.strategy import ObjectWrite
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import LABEL_SENTENCE
from support.kinds import NOW, Kinds, raw

WEB: JsonObject = {"name": "web", "image": "nginx"}
TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for state in ("not-ready", "unreachable")
]


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def test_a_new_pod_is_completed(kinds: Kinds) -> None:
    """A pod of one container gets all that a real server sets."""
    got = kinds.write(raw("Pod", spec={"containers": [WEB]}, status={"phase": "Running"}))
    assert got.causes == []
    assert got.object["metadata"]["generation"] == 1
    assert got.object["spec"] == {
        "containers": [
            {
                **WEB,
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }
        ],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "enableServiceLinks": True,
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "tolerations": TOLERATIONS,
    }
    assert got.object["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def test_parts_of_a_container_are_completed(kinds: Kinds) -> None:
    """Probes, ports, variables, volumes and requests get their defaults."""
    container = {
        **WEB,
        "ports": [{"containerPort": 80}],
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 3},
        "readinessProbe": {"grpc": {"port": 80}},
        "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
        "resources": {"limits": {"cpu": "1"}},
    }
    spec = {
        "containers": [container],
        "hostNetwork": True,
        "serviceAccountName": "me",
        "terminationGracePeriodSeconds": -5,
        "volumes": [{"name": "a"}, {"name": "b", "secret": {}}, {"name": "c", "hostPath": {}}],
        "tolerations": [{"operator": "Exists"}],
    }
    got = kinds.write(raw("Pod", spec=spec)).object["spec"]
    (web,) = got["containers"]
    assert web["ports"] == [{"containerPort": 80, "protocol": "TCP", "hostPort": 80}]
    assert web["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    counts = {"timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}
    action = {"port": 80, "path": "/", "scheme": "HTTP"}
    assert web["livenessProbe"] == {"httpGet": action, "periodSeconds": 3, **counts}
    want_grpc = {"port": 80, "service": ""}
    assert web["readinessProbe"] == {"grpc": want_grpc, "periodSeconds": 10, **counts}
    assert web["lifecycle"] == {"preStop": {"httpGet": action}}
    assert web["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    assert got["serviceAccount"] == "me"
    assert got["terminationGracePeriodSeconds"] == 1
    assert got["tolerations"] == [{"operator": "Exists"}]
    assert got["volumes"] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "secret": {"defaultMode": 420}},
        {"name": "c", "hostPath": {"type": ""}},
    ]


@pytest.mark.parametrize(
    ("image", "want_policy"),
    [
        pytest.param("nginx", "Always", id="no tag"),
        pytest.param("nginx:latest", "Always", id="the latest"),
        pytest.param("nginx:1.2", "IfNotPresent", id="a version"),
        pytest.param("host:5000/nginx", "Always", id="a port is no tag"),
        pytest.param("host:5000/nginx:1", "IfNotPresent", id="a tag after a port"),
        pytest.param("nginx@sha256:00", "IfNotPresent", id="a digest"),
    ],
)
def test_images_that_may_change_are_pulled_always(
    kinds: Kinds, image: str, want_policy: str
) -> None:
    """The pull policy follows the tag."""
    spec = {"containers": [{"name": "a", "image": image}]}
    (container,) = kinds.write(raw("Pod", spec=spec)).object["spec"]["containers"]
    assert container["imagePullPolicy"] == want_policy


@pytest.mark.parametrize(
    ("resources", "want_class"),
    [
        pytest.param([{}], "BestEffort", id="nothing asked for"),
        pytest.param([{"requests": {"cpu": "0"}}], "BestEffort", id="nothing but zero"),
        pytest.param([{"requests": {"cpu": "1"}}], "Burstable", id="something"),
        pytest.param(
            [
                {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "1000m", "memory": "1Gi"},
                }
            ],
            "Guaranteed",
            id="all limited to what is asked for",
        ),
        pytest.param(
            [{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}, {}],
            "Burstable",
            id="one container without",
        ),
    ],
)
def test_the_class_of_service(resources: list[JsonObject], want_class: str) -> None:
    """What containers ask for and are limited to decides the class."""
    spec = {"containers": [{"name": str(i), "resources": r} for i, r in enumerate(resources)]}
    assert quality_of_service(spec) == want_class


@pytest.mark.parametrize(
    ("spec", "want_causes"),
    [
        pytest.param({}, ["spec.containers: Required value"], id="no containers"),
        pytest.param(
            {"containers": [{}]},
            ["spec.containers[0].name: Required value", "spec.containers[0].image: Required value"],
            id="a container without name and image",
        ),
        pytest.param(
            {"containers": [WEB, WEB], "initContainers": [WEB]},
            [
                'spec.containers[1].name: Duplicate value: "web"',
                'spec.initContainers[0].name: Duplicate value: "web"',
            ],
            id="names given twice",
        ),
        pytest.param(
            {"containers": [{"name": "A_", "image": " x", "imagePullPolicy": "Foo"}]},
            [
                f'spec.containers[0].name: Invalid value: "A_": {LABEL_SENTENCE}',
                (
                    'spec.containers[0].image: Invalid value: " x": must not have leading or '
                    "trailing "
                    "whitespace"
                ),
                (
                    'spec.containers[0].imagePullPolicy: Unsupported value: "Foo": supported '
                    "values: "
                    '"Always", "IfNotPresent", "Never"'
                ),
            ],
            id="bad name, image and policy",
        ),
        pytest.param(
            {"containers": [{**WEB, "ports": [{"containerPort": 0, "hostPort": 70000}]}]},
            [
                (
                    "spec.containers[0].ports[0].hostPort: Invalid value: 70000: must be between "
                    "1 and "
                    "65535, inclusive"
                ),
                "spec.containers[0].ports[0].containerPort: Required value",
            ],
            id="bad ports",
        ),
        pytest.param(
            {"containers": [WEB], "restartPolicy": "Foo", "dnsPolicy": "Bar"},
            [
                (
                    'spec.restartPolicy: Unsupported value: "Foo": supported values: "Always", '
                    '"OnFailure", "Never"'
                ),
                (
                    'spec.dnsPolicy: Unsupported value: "Bar": supported values: '
                    '"ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"'
                ),
            ],
            id="unknown policies",
        ),
        pytest.param(
            {"containers": [WEB], "activeDeadlineSeconds": 0, "serviceAccountName": "a..b"},
            [
                (
                    'spec.serviceAccountName: Invalid value: "a..b": a lowercase RFC 1123 '
                    "subdomain "
                    "must consist of lower case alphanumeric characters, '-' or '.', and must "
                    "start and"
                    " end with an alphanumeric character (e.g. 'example.com', regex used for "
                    "validation"
                    " is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                ),
                (
                    "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and "
                    "2147483647, "
                    "inclusive"
                ),
            ],
            id="bad account and deadline",
        ),
        pytest.param(
            {
                "containers": [
                    {
                        **WEB,
                        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1", "x": "-1"}},
                        "env": [{"name": ""}, {"name": "a=b"}],
                        "volumeMounts": [{"name": "nope"}, {}],
                    }
                ],
                "volumes": [{"name": "v"}, {"name": "v"}, {}],
            },
            [
                'spec.volumes[1].name: Duplicate value: "v"',
                "spec.volumes[2].name: Required value",
                (
                    'spec.containers[0].resources.limits[x]: Invalid value: "-1": must be '
                    "greater than "
                    "or equal to 0"
                ),
                (
                    'spec.containers[0].resources.requests: Invalid value: "2": must be less '
                    "than or "
                    "equal to cpu limit of 1"
                ),
                (
                    'spec.containers[0].resources.requests[x]: Invalid value: "-1": must be '
                    "greater "
                    "than or equal to 0"
                ),
                "spec.containers[0].env[0].name: Required value",
                (
                    'spec.containers[0].env[1].name: Invalid value: "a=b": a valid environment '
                    "variable"
                    " name must consist only of printable ASCII characters other than '='"
                ),
                'spec.containers[0].volumeMounts[0].name: Not found: "nope"',
                "spec.containers[0].volumeMounts[0].mountPath: Required value",
                "spec.containers[0].volumeMounts[1].name: Required value",
                'spec.containers[0].volumeMounts[1].name: Not found: ""',
                "spec.containers[0].volumeMounts[1].mountPath: Required value",
            ],
            id="resources, variables and mounts",
        ),
    ],
)
def test_common_mistakes_are_named(kinds: Kinds, spec: JsonObject, want_causes: list[str]) -> None:
    """Each mistake is told at its field with upstream's words."""
    assert kinds.write(raw("Pod", spec=spec)).causes == want_causes


def _stored(kinds: Kinds, **spec: Any) -> JsonObject:
    return kinds.write(raw("Pod", spec={"containers": [deepcopy(WEB)], **spec})).object


def test_images_may_change(kinds: Kinds) -> None:
    """A new image is a new generation."""
    old = _stored(kinds)
    new = deepcopy(old)
    new["spec"]["containers"][0]["image"] = "nginx:2"
    got = kinds.write(new, old)
    assert (got.causes, got.object["metadata"]["generation"]) == ([], 2)


def test_the_rest_of_the_spec_is_fixed(kinds: Kinds) -> None:
    """Any other change is forbidden, and shown."""
    old = _stored(kinds)
    new = deepcopy(old)
    new["spec"]["nodeName"] = "n1"
    (cause,) = kinds.write(new, old).causes
    assert cause.startswith(f"spec: Forbidden: {FIXED_SPEC}\n@@ ")
    assert '\n+ "nodeName": "n1",\n' in cause


@pytest.mark.parametrize(
    ("before", "change", "want_causes"),
    [
        pytest.param(
            {},
            {"containers": [WEB, {**WEB, "name": "b"}]},
            ["spec.containers: Forbidden: pod updates may not add or remove containers"],
            id="another container",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 5},
            {"activeDeadlineSeconds": None},
            [
                (
                    "spec.activeDeadlineSeconds: Invalid value: null: must not update from a "
                    "positive "
                    "integer to nil value"
                )
            ],
            id="no deadline any more",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 5},
            {"activeDeadlineSeconds": 9},
            [
                (
                    "spec.activeDeadlineSeconds: Invalid value: 9: must be less than or equal to "
                    "previous value"
                )
            ],
            id="a later deadline",
        ),
        pytest.param(
            {},
            {"activeDeadlineSeconds": -1},
            [
                (
                    "spec.activeDeadlineSeconds: Invalid value: -1: must be between 1 and "
                    "2147483647, "
                    "inclusive"
                )
            ],
            id="a deadline that is none",
        ),
        pytest.param({"activeDeadlineSeconds": 5}, {"activeDeadlineSeconds": 4}, [], id="sooner"),
        pytest.param(
            {},
            {"tolerations": [*TOLERATIONS, {"key": "a", "operator": "Exists"}]},
            [],
            id="one more toleration",
        ),
        pytest.param(
            {"tolerations": [{"key": "a", "operator": "Exists"}]},
            {"tolerations": []},
            [
                (
                    "spec.tolerations: Forbidden: existing toleration can not be modified except "
                    "its "
                    "tolerationSeconds"
                )
            ],
            id="a toleration less",
        ),
    ],
)
def test_what_may_change_of_a_pod(
    kinds: Kinds, before: JsonObject, change: JsonObject, want_causes: list[str]
) -> None:
    """Deadlines get shorter, tolerations more, containers stay."""
    old = _stored(kinds, **before)
    new = deepcopy(old)
    new["spec"].update(deepcopy(change))
    assert kinds.write(new, old).causes == want_causes


def test_an_image_may_not_be_taken_away(kinds: Kinds) -> None:
    """A container without an image is refused on update too."""
    old = _stored(kinds)
    new = deepcopy(old)
    new["spec"]["containers"][0]["image"] = ""
    assert kinds.write(new, old).causes == ["spec.containers[0].image: Required value"]


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({"podIP": "10.0.0.1"}, ("10.0.0.1", ["10.0.0.1"]), id="the list follows"),
        pytest.param(
            {"podIPs": [{"ip": "10.0.0.1"}]}, ("10.0.0.1", ["10.0.0.1"]), id="the first follows"
        ),
        pytest.param(
            {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}]},
            ("10.0.0.2", ["10.0.0.2"]),
            id="the single one wins when it is new",
        ),
        pytest.param(
            {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
            ("10.0.0.1", ["10.0.0.1", "fd00::1"]),
            id="the list wins when only it is new",
        ),
    ],
)
def test_both_fields_for_addresses_agree(
    kinds: Kinds, status: JsonObject, want: tuple[str, list[str]]
) -> None:
    """An update of the status may set either field."""
    old = _stored(kinds)
    old["status"]["podIP"] = "10.9.9.9"
    new = {**deepcopy(old), "status": deepcopy(status), "spec": {}}
    new["metadata"]["ownerReferences"] = [{"uid": "x"}]
    got = kinds.write(new, old, subresource="status")
    assert got.causes == []
    found = got.object["status"]
    assert (found["podIP"], [one["ip"] for one in found["podIPs"]]) == want
    assert got.object["spec"] == old["spec"]
    assert "ownerReferences" not in got.object["metadata"]


def test_a_status_has_real_addresses(kinds: Kinds) -> None:
    """What is no address is refused."""
    old = _stored(kinds)
    new = {**deepcopy(old), "status": {"podIP": "x"}}
    (cause,) = kinds.write(new, old, subresource="status").causes
    assert cause == (
        'status.podIPs[0]: Invalid value: "x": must be a valid IP address, '
        "(e.g. 10.9.8.7 or 2001:db8::ffff)"
    )


@pytest.mark.parametrize(
    ("spec", "phase", "asked", "want_period"),
    [
        pytest.param({"nodeName": "n"}, "Running", None, 0, id="no period of its own"),
        pytest.param(
            {"nodeName": "n", "terminationGracePeriodSeconds": 30},
            "Running",
            None,
            30,
            id="its own",
        ),
        pytest.param(
            {"nodeName": "n", "terminationGracePeriodSeconds": 30},
            "Running",
            5,
            5,
            id="the client's",
        ),
        pytest.param({"nodeName": "n"}, "Running", -5, 1, id="never negative"),
        pytest.param({}, "Pending", 5, 0, id="a pod without a node goes at once"),
        pytest.param({"nodeName": "n"}, "Failed", 5, 0, id="a pod that has ended goes at once"),
    ],
)
def test_a_pod_on_a_node_is_given_time(
    kinds: Kinds, spec: JsonObject, phase: str, asked: int | None, want_period: int
) -> None:
    """The grace period is the client's or the pod's, where something runs."""
    pod = raw("Pod", spec=spec, status={"phase": phase})
    assert kinds.of(pod).grace_period(pod, asked) == want_period


def test_a_gate_holds_a_new_pod_back(kinds: Kinds) -> None:
    """The condition says why the pod is not scheduled."""
    gates = [{"name": "example.com/wait"}]
    got = kinds.write(raw("Pod", spec={"containers": [WEB], "schedulingGates": gates}))
    assert got.object["status"]["conditions"] == [
        {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": NOW,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
    ]


@pytest.mark.parametrize(
    ("names", "want_causes"),
    [
        pytest.param(["a", "b"], [], id="the same gates"),
        pytest.param(["b"], [], id="a gate less"),
        pytest.param([], [], id="no gates"),
        pytest.param(
            ["a", "c"],
            [
                (
                    "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found "
                    "new scheduling gate 'c'"
                )
            ],
            id="a new gate",
        ),
    ],
)
def test_gates_may_only_be_taken_away(
    kinds: Kinds, names: list[str], want_causes: list[str]
) -> None:
    """An update removes gates and adds none."""
    gates = [{"name": "a"}, {"name": "b"}]
    old = kinds.write(raw("Pod", spec={"containers": [WEB], "schedulingGates": gates})).object
    new = deepcopy(old)
    new["spec"]["schedulingGates"] = [{"name": name} for name in names]
    assert kinds.write(new, old).causes == want_causes


def test_times_of_conditions_are_written_even_when_not_given(kinds: Kinds) -> None:
    """A condition without times has none, as a real server shows it."""
    old = kinds.write(raw("Pod", spec={"containers": [WEB]})).object
    new = deepcopy(old)
    new["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    kinds.of(new).set_defaults(ObjectWrite(new))
    assert new["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}
    ]


def test_a_status_update_cannot_clear_what_was_observed(kinds: Kinds) -> None:
    """The QoS class and observed generations stay where an update leaves them out."""
    old = kinds.write(raw("Pod", spec={"containers": [WEB]})).object
    old["status"] |= {
        "observedGeneration": 2,
        "conditions": [
            {"type": "Ready", "status": "False", "observedGeneration": 1},
            {"type": "Ready", "status": "True", "observedGeneration": 2},
        ],
    }
    new = deepcopy(old)
    new["status"] = {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "Ready", "status": "True", "observedGeneration": 3},
            {"type": "Ready", "status": "Unknown"},
        ],
    }
    got = kinds.write(new, old, subresource="status")
    assert got.causes == []
    status = got.object["status"]
    assert (status["qosClass"], status["observedGeneration"]) == ("BestEffort", 2)
    assert [one.get("observedGeneration") for one in status["conditions"]] == [1, 3, None]


def test_a_status_update_may_not_say_nonsense(kinds: Kinds) -> None:
    """Generations are not negative, and the QoS class does not change."""
    old = kinds.write(raw("Pod", spec={"containers": [WEB]})).object
    new = deepcopy(old)
    new["status"] |= {
        "qosClass": "Guaranteed",
        "observedGeneration": -1,
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": -2}],
    }
    negative = "must be a non-negative integer"
    assert kinds.write(new, old, subresource="status").causes == [
        f"status.conditions[0].observedGeneration: Invalid value: -2: {negative}",
        f"status.observedGeneration: Invalid value: -1: {negative}",
        'status.qosClass: Invalid value: "Guaranteed": field is immutable',
    ]
