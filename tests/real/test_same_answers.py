"""The same requests to a real kube-apiserver and to ours get the same answers."""

from __future__ import annotations

from typing import Any

import pytest

from support.real.same_answers import (
    ACCOUNTS,
    APPLY,
    APPS,
    BINDINGS,
    DEPLOYMENTS,
    ENDPOINTS,
    EVENTS,
    JSON,
    JSON_PATCH,
    LEASES,
    MAPS,
    MERGE,
    NAMESPACES,
    NEW_EVENTS,
    NODES,
    PLACES,
    PODS,
    RANGES,
    REVIEWS,
    SERVICES,
    SLICES,
    STRATEGIC,
    Api,
    bound,
    deployment,
    endpoint_slice,
    endpoints,
    event,
    gates,
    lease,
    managed,
    new_event,
    node,
    plain,
    plain_answer,
    pod,
    ranges,
    rolling,
    service,
    workload,
)

Ask = tuple[Any, ...]
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u", "controller": True}
OPERATION = {"op": "replace", "path": "/spec/type", "value": "Odd"}
CASES: dict[str, list[Ask]] = {
    "a missing object": [("GET", f"{SERVICES}/none")],
    "a missing object of another group": [("GET", f"{SLICES}/none")],
    "a missing node": [("GET", "/api/v1/nodes/none")],
    "delete a missing object": [("DELETE", f"{SERVICES}/none")],
    "patch a missing object": [("PATCH", f"{SERVICES}/none", {}, MERGE)],
    "update a missing object": [("PUT", f"{SLICES}/none", endpoint_slice("none"))],
    "a namespace that is not there": [
        ("POST", "/api/v1/namespaces/none/services", service()),
    ],
    "no JSON": [("POST", SERVICES, b"{")],
    "no object": [("POST", SERVICES, b"[]")],
    "an empty body": [("POST", SERVICES, b"")],
    "another kind": [("POST", SERVICES, {**pod(), "kind": "Pod"})],
    "another version": [("POST", SERVICES, {**service(), "apiVersion": "v2"})],
    "a wrong media type": [("POST", SERVICES, service(), "text/csv")],
    "a wrong patch type": [("POST", SERVICES, service()), ("PATCH", f"{SERVICES}/web", {}, JSON)],
    "text for a number": [("POST", SERVICES, service(ports=[{"port": "80"}]))],
    "a number for text": [("POST", SERVICES, service(type=5))],
    "a list for an object": [("POST", SERVICES, service(selector=["a"]))],
    "an object for a list": [("POST", SERVICES, service(ports={"port": 80}))],
    "an unknown field": [("POST", f"{SERVICES}?fieldValidation=Strict", service(color="red"))],
    "an unknown field that is warned of": [("POST", f"{SERVICES}?dryRun=All", service(color=1))],
    "a duplicate field": [
        (
            "POST",
            f"{SERVICES}?fieldValidation=Strict",
            (
                b'{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","name":"b"},'
                b'"spec":{"ports":[{"port":80}]}}'
            ),
        )
    ],
    "an odd traffic distribution": [("POST", SERVICES, service(trafficDistribution="Random"))],
    "no ports": [("POST", SERVICES, service(ports=[]))],
    "several mistakes": [
        ("POST", SERVICES, service(ports=[{"port": 0}, {"port": 70000}], sessionAffinity="Odd"))
    ],
    "a long name": [("POST", SERVICES, service("a" * 64))],
    "a bad name": [("POST", SERVICES, service("Bad_Name"))],
    "no name": [("POST", MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})],
    "a bad label": [
        ("POST", SERVICES, {**service(), "metadata": {"name": "web", "labels": {"a": "b c"}}})
    ],
    "a version at creation": [
        ("POST", SERVICES, {**service(), "metadata": {"name": "x", "resourceVersion": "5"}})
    ],
    "another namespace": [
        ("POST", SERVICES, {**service(), "metadata": {"name": "x", "namespace": "other"}})
    ],
    "twice the same": [("POST", SERVICES, service("twice")), ("POST", SERVICES, service("twice"))],
    "a stale update": [
        ("POST", SERVICES, service("stale")),
        (
            "PUT",
            f"{SERVICES}/stale",
            {**service("stale"), "metadata": {"name": "stale", "resourceVersion": "1"}},
        ),
    ],
    "another name in the path": [
        ("POST", SERVICES, service("here")),
        ("PUT", f"{SERVICES}/here", service("there")),
    ],
    "another uid": [
        ("POST", SERVICES, service("uid")),
        ("PUT", f"{SERVICES}/uid", {**service("uid"), "metadata": {"name": "uid", "uid": "x"}}),
    ],
    "a cluster IP out of range": [("POST", SERVICES, service(clusterIP="192.168.0.1"))],
    "a cluster IP that is taken": [
        ("POST", SERVICES, service("one", clusterIP="10.96.7.7")),
        ("POST", SERVICES, service("two", clusterIP="10.96.7.7")),
    ],
    "a node port that is taken": [
        ("POST", SERVICES, service("np1", type="NodePort", ports=[{"port": 1, "nodePort": 30111}])),
        ("POST", SERVICES, service("np2", type="NodePort", ports=[{"port": 1, "nodePort": 30111}])),
    ],
    "a node port out of range": [
        ("POST", SERVICES, service(type="NodePort", ports=[{"port": 1, "nodePort": 99}]))
    ],
    "a changed cluster IP": [
        ("POST", SERVICES, service("fixed", clusterIP="10.96.8.8")),
        ("PATCH", f"{SERVICES}/fixed", {"spec": {"clusterIP": "10.96.8.9"}}, MERGE),
    ],
    "a patch to something invalid": [
        ("POST", SERVICES, service("odd")),
        ("PATCH", f"{SERVICES}/odd", [OPERATION], JSON_PATCH),
    ],
    "a patch that tests in vain": [
        ("POST", SERVICES, service("tested")),
        (
            "PATCH",
            f"{SERVICES}/tested",
            [{"op": "test", "path": "/spec/type", "value": "X"}],
            JSON_PATCH,
        ),
    ],
    "a patch that removes what is not there": [
        ("POST", SERVICES, service("nothing")),
        ("PATCH", f"{SERVICES}/nothing", [{"op": "remove", "path": "/spec/none"}], JSON_PATCH),
    ],
    "a patch that is no patch": [
        ("POST", SERVICES, service("nopatch")),
        ("PATCH", f"{SERVICES}/nopatch", {"op": "x"}, JSON_PATCH),
    ],
    "a patch to a wrong type": [
        ("POST", SERVICES, service("wrong")),
        ("PATCH", f"{SERVICES}/wrong", {"spec": {"ports": "many"}}, MERGE),
    ],
    "an apply without a manager": [("PATCH", f"{SERVICES}/applied", service("applied"), APPLY)],
    "a conflicting apply": [
        ("PATCH", f"{SERVICES}/applied?fieldManager=a", service("applied", type="NodePort"), APPLY),
        (
            "PATCH",
            f"{SERVICES}/applied?fieldManager=b",
            service("applied", type="ClusterIP"),
            APPLY,
        ),
    ],
    "an apply with an unknown field": [
        (
            "PATCH",
            f"{SERVICES}/applied2?fieldManager=a&fieldValidation=Strict",
            service("applied2", color="red"),
            APPLY,
        ),
    ],
    "nine zones": [
        (
            "POST",
            SLICES,
            endpoint_slice(
                endpoints=[
                    {
                        "addresses": ["10.1.0.1"],
                        "hints": {"forZones": [{"name": f"z{i}"} for i in range(9)]},
                    }
                ]
            ),
        )
    ],
    "an address of another family": [
        ("POST", SLICES, endpoint_slice(endpoints=[{"addresses": ["fd00::1"]}]))
    ],
    "no address": [("POST", SLICES, endpoint_slice(endpoints=[{"addresses": []}]))],
    "a changed address type": [
        ("POST", SLICES, endpoint_slice("typed")),
        (
            "PATCH",
            f"{SLICES}/typed",
            {"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}]},
            MERGE,
        ),
    ],
    "no containers": [("POST", PODS, pod(containers=[]))],
    "a container without a name": [("POST", PODS, pod(containers=[{"image": "x"}]))],
    "an odd restart policy": [("POST", PODS, pod(restartPolicy="Sometimes"))],
    "a changed pod": [
        ("POST", PODS, pod("fixed")),
        ("PATCH", f"{PODS}/fixed", {"spec": {"nodeName": "n"}}, MERGE),
    ],
    "a selector that does not match": [
        ("POST", DEPLOYMENTS, deployment(selector={"matchLabels": {"app": "other"}}))
    ],
    "no selector": [("POST", DEPLOYMENTS, deployment(selector=None))],
    "negative replicas": [("POST", DEPLOYMENTS, deployment(replicas=-1))],
    "a bad key": [
        (
            "POST",
            MAPS,
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "m"},
                "data": {"a b": "c"},
            },
        )
    ],
    "a limit that is no number": [("GET", f"{SERVICES}?limit=x")],
    "a version that is no number": [("GET", f"{SERVICES}?resourceVersion=x")],
    "a broken token": [("GET", f"{SERVICES}?continue=x")],
    "a match without a version": [("GET", f"{SERVICES}?resourceVersionMatch=Exact")],
    "an unknown field selector": [("GET", f"{PODS}?fieldSelector=spec.color%3Dred")],
    "an unknown field selector of another kind": [("GET", f"{SLICES}?fieldSelector=a%3Db")],
    "a bad dry run": [("POST", f"{SERVICES}?dryRun=Some", service())],
    "a delete with another uid": [
        ("POST", SERVICES, service("kept")),
        ("DELETE", f"{SERVICES}/kept", {"preconditions": {"uid": "x"}}),
    ],
    "an odd propagation": [
        ("POST", SERVICES, service("kept2")),
        ("DELETE", f"{SERVICES}/kept2", {"propagationPolicy": "Odd"}),
    ],
    "a namespace that may not go": [("DELETE", "/api/v1/namespaces/default")],
    "a method that is not there": [("POST", f"{SERVICES}/web")],
    "deprecated values": [
        ("POST", f"{SERVICES}?dryRun=All", service(trafficDistribution="PreferClose"))
    ],
    "a good Service": [("POST", SERVICES, service("good", trafficDistribution="PreferSameZone"))],
    "a good slice": [("POST", SLICES, endpoint_slice("good"))],
    "a good pod": [("POST", PODS, pod("good"))],
    "a good deployment": [("POST", DEPLOYMENTS, deployment())],
    "a deleted Service": [
        ("POST", SERVICES, service("gone")),
        ("DELETE", f"{SERVICES}/gone"),
    ],
    "a deleted slice": [("POST", SLICES, endpoint_slice("gone")), ("DELETE", f"{SLICES}/gone")],
    "a node": [
        ("POST", NODES, node("n1", labels={"topology.kubernetes.io/zone": "a"})),
        ("PUT", f"{NODES}/n1", node("n1", spec={"podCIDR": "10.1.0.0/24"})),
        ("PATCH", f"{NODES}/n1", {"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": None}}, MERGE),
        ("PATCH", f"{NODES}/n1", {"spec": {"unschedulable": True}}, STRATEGIC),
    ],
    "the amounts of a node": [
        ("POST", NODES, node("n2")),
        ("PATCH", f"{NODES}/n2/status", {"status": {"capacity": {"cpu": "4"}}}, STRATEGIC),
        ("PATCH", f"{NODES}/n2/status", {"status": {"allocatable": {"cpu": "-1"}}}, STRATEGIC),
        ("PATCH", f"{NODES}/n2/status", {"status": {"allocatable": {"cpu": "x"}}}, STRATEGIC),
    ],
    "the addresses of a node": [
        ("POST", NODES, node("n3")),
        (
            "PATCH",
            f"{NODES}/n3/status",
            {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}] * 2}},
            MERGE,
        ),
    ],
    "odd taints": [
        (
            "POST",
            NODES,
            node("n4", spec={"taints": [{"key": "a b", "effect": "Odd"}, {"key": "a"}]}),
        ),
    ],
    "odd ranges of pods": [
        ("POST", NODES, node("n5", spec={"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"]})),
        ("POST", NODES, node("n5", spec={"podCIDR": "x"})),
    ],
    "a namespace": [
        ("POST", NAMESPACES, plain("Namespace", "shop")),
        ("PATCH", f"{NAMESPACES}/shop", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        ("POST", NAMESPACES, plain("Namespace", "Bad")),
        ("PUT", f"{NAMESPACES}/none", plain("Namespace", "none")),
    ],
    "writes to a namespace that is not there": [
        ("POST", "/api/v1/namespaces/nowhere/services", service()),
        ("POST", "/apis/apps/v1/namespaces/nowhere/deployments", deployment()),
    ],
    "a lease": [
        ("POST", LEASES, lease("held", holderIdentity="a", leaseDurationSeconds=15)),
        ("PUT", f"{LEASES}/held", lease("held", holderIdentity="b", leaseTransitions=1)),
    ],
    "odd leases": [
        ("POST", LEASES, lease("odd", leaseDurationSeconds=0, leaseTransitions=-1)),
        ("POST", LEASES, lease("odd2", holderIdentity="")),
        ("POST", LEASES, lease("odd3", renewTime="yesterday")),
    ],
    "an event": [
        ("POST", EVENTS, event("e1", reason="Tested", message="once", type="Normal")),
        ("PATCH", f"{EVENTS}/e1", {"count": 2}, MERGE),
        ("GET", f"{NEW_EVENTS}/e1"),
    ],
    "an event about another namespace": [
        ("POST", EVENTS, event("e2", involvedObject={"kind": "Pod", "namespace": "other"})),
    ],
    "an event with a time that says too little": [
        ("POST", EVENTS, event("e3", eventTime="2026-01-02T03:04:05.000000Z")),
    ],
    "an event of the newer group": [
        ("POST", NEW_EVENTS, new_event("e4")),
        ("PATCH", f"{NEW_EVENTS}/e4", {"note": "another"}, MERGE),
        ("PATCH", f"{NEW_EVENTS}/e4", {"series": {"count": 1}}, MERGE),
        ("GET", f"{EVENTS}/e4"),
    ],
    "odd events of the newer group": [
        ("POST", NEW_EVENTS, new_event("e5", eventTime=None)),
        ("POST", NEW_EVENTS, new_event("e6", type="Odd", reportingController="a b")),
        ("POST", NEW_EVENTS, new_event("e7", reportingController="", action="a" * 129)),
        ("GET", f"{NEW_EVENTS}/none"),
        ("DELETE", f"{NEW_EVENTS}/none"),
    ],
    "a replica set": [
        ("POST", f"{APPS}/replicasets", workload("ReplicaSet", "r1", replicas=2)),
        ("GET", f"{APPS}/replicasets/r1/scale"),
        ("PATCH", f"{APPS}/replicasets/r1/scale", {"spec": {"replicas": 5}}, MERGE),
        ("PATCH", f"{APPS}/replicasets/r1/scale", {"spec": {"replicas": -5}}, MERGE),
        ("PATCH", f"{APPS}/replicasets/r1/status", {"status": {"replicas": 3}}, MERGE),
        (
            "PATCH",
            f"{APPS}/replicasets/r1/status",
            {"status": {"replicas": 1, "readyReplicas": 2, "availableReplicas": -1}},
            MERGE,
        ),
    ],
    "a daemon set": [
        ("POST", f"{APPS}/daemonsets", workload("DaemonSet", "d1")),
        (
            "PATCH",
            f"{APPS}/daemonsets/d1",
            {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}},
            MERGE,
        ),
        ("PATCH", f"{APPS}/daemonsets/d1", {"spec": {"updateStrategy": {"type": "Odd"}}}, MERGE),
        ("PATCH", f"{APPS}/daemonsets/d1/status", {"status": {"numberReady": -1}}, MERGE),
    ],
    "a changed selector": [
        ("POST", f"{APPS}/replicasets", workload("ReplicaSet", "r2")),
        (
            "PATCH",
            f"{APPS}/replicasets/r2",
            {"spec": {"selector": {"matchLabels": {"app": "x"}}}},
            MERGE,
        ),
    ],
    "the rollout of a deployment": [
        ("POST", DEPLOYMENTS, workload("Deployment", "u1", strategy=rolling(0, "0%"))),
        ("POST", DEPLOYMENTS, workload("Deployment", "u1", strategy=rolling("x", "120%"))),
        ("POST", DEPLOYMENTS, workload("Deployment", "u1", strategy=rolling(-1, "50%"))),
        ("POST", DEPLOYMENTS, workload("Deployment", "u1", strategy={"type": "Recreate"})),
        (
            "POST",
            DEPLOYMENTS,
            workload("Deployment", "u2", strategy={**rolling(1, 1), "type": "Recreate"}),
        ),
        ("POST", DEPLOYMENTS, workload("Deployment", "u2", strategy=rolling("30%", 2))),
        ("PATCH", f"{DEPLOYMENTS}/u2", {"spec": {"minReadySeconds": 700}}, MERGE),
    ],
    "the status of a deployment": [
        ("POST", DEPLOYMENTS, workload("Deployment", "u3")),
        (
            "PATCH",
            f"{DEPLOYMENTS}/u3/status",
            {"status": {"replicas": 1, "updatedReplicas": 2, "observedGeneration": 1}},
            MERGE,
        ),
        ("PATCH", f"{DEPLOYMENTS}/u3/status", {"status": {"replicas": -1}}, MERGE),
        ("GET", f"{DEPLOYMENTS}/u3/scale"),
        ("PATCH", f"{DEPLOYMENTS}/u3/scale", {"spec": {"replicas": 7}}, MERGE),
        ("GET", f"{DEPLOYMENTS}/u3"),
    ],
    "apply to elements without a name": [
        ("POST", ACCOUNTS, {**plain("ServiceAccount", "u9"), "secrets": [{}]}),
        ("PATCH", f"{ACCOUNTS}/u9?fieldManager=m", plain("ServiceAccount", "u9"), APPLY),
    ],
    "endpoints": [
        ("POST", ENDPOINTS, endpoints("web", [{"ip": "10.1.0.1"}])),
        ("POST", ENDPOINTS, endpoints("bad", [{"ip": "127.0.0.1"}, {"ip": "x"}])),
        ("POST", ENDPOINTS, endpoints("bad", [{"ip": "10.1.0.1"}], ports=[{"port": 0}] * 2)),
        ("POST", ENDPOINTS, endpoints("bad", [])),
        ("GET", f"{ENDPOINTS}/web"),
        ("GET", f"{ENDPOINTS}/none"),
        ("DELETE", f"{ENDPOINTS}/web"),
    ],
    "deprecated and with an unknown field": [
        ("POST", ENDPOINTS, {**endpoints("odd", [{"ip": "10.1.0.1"}]), "color": "red"}),
        ("GET", ENDPOINTS + "?fieldSelector=metadata.name%3Dnone"),
    ],
    "an immutable map": [
        ("POST", MAPS, {**plain("ConfigMap", "still"), "immutable": True, "data": {"a": "b"}}),
        ("PATCH", f"{MAPS}/still", {"data": {"a": "c"}}, MERGE),
        ("PATCH", f"{MAPS}/still", {"immutable": False, "binaryData": {"x": "YQ=="}}, MERGE),
        ("PATCH", f"{MAPS}/still", {"metadata": {"labels": {"a": "b"}}}, MERGE),
    ],
    "a key of both kinds of data": [
        ("POST", MAPS, {**plain("ConfigMap", "b"), "data": {"a": "b"}, "binaryData": {"a": "YQ=="}})
    ],
    "the ranges of the cluster": [
        ("PATCH", f"{RANGES}/kubernetes", {"spec": {"cidrs": ["10.97.0.0/16"]}}, MERGE),
        ("POST", RANGES, ranges("more", "10.98.0.0/24", "10.99.0.0/24")),
        ("POST", RANGES, ranges("more", "10.98.0.1/24", "x")),
        ("POST", RANGES, ranges("more")),
    ],
    "the addresses of a pod": [
        ("POST", PODS, pod("addressed")),
        ("PATCH", f"{PODS}/addressed/status", {"status": {"podIP": "x"}}, MERGE),
        (
            "PATCH",
            f"{PODS}/addressed/status",
            {"status": {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "10.1.0.2"}]}},
            MERGE,
        ),
        (
            "PATCH",
            f"{PODS}/addressed/status",
            {"status": {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}], "phase": "Running"}},
            MERGE,
        ),
    ],
    "a bound pod": [
        ("POST", PODS, pod("bound")),
        ("POST", f"{PODS}/bound/binding", bound("bound", to="n1")),
        ("GET", f"{PODS}/bound"),
        ("POST", f"{PODS}/bound/binding", bound("bound", to="n2")),
        ("POST", BINDINGS, bound("bound", to="n2")),
        ("DELETE", f"{PODS}/bound"),
        ("POST", f"{PODS}/bound/binding", bound("bound", to="n2")),
        ("DELETE", f"{PODS}/bound?gracePeriodSeconds=0"),
    ],
    "a bound pod with everything": [
        ("POST", NODES, node("placed", {f"{PLACES}/zone": "z", f"{PLACES}/region": "r", "a": "b"})),
        ("POST", PODS, {**pod("rich"), "metadata": {"name": "rich", "labels": {"x": "1"}}}),
        (
            "PATCH",
            f"{PODS}/rich/status",
            {
                "status": {
                    "nominatedNodeName": "elsewhere",
                    "conditions": [
                        {"type": "Other", "status": "True"},
                        {"type": "PodScheduled", "status": "False", "reason": "Full"},
                    ],
                }
            },
            MERGE,
        ),
        (
            "POST",
            f"{PODS}/rich/binding",
            bound(
                "rich",
                to="placed",
                annotations={"note": "a"},
                labels={"x": "2", "y": "3", f"{PLACES}/zone": "other"},
            ),
        ),
        ("GET", f"{PODS}/rich"),
        ("PATCH", f"{PODS}/rich/status", {"status": {"phase": "Running"}}, STRATEGIC),
    ],
    "a pod that is bound the old way": [
        ("POST", NODES, node("old", {f"{PLACES}/zone": "z"})),
        ("POST", PODS, pod("old")),
        ("POST", BINDINGS, bound("old", to="old", uid="odd", labels={"x": "2"})),
        ("GET", f"{PODS}/old"),
    ],
    "a binding that is only tried": [
        ("POST", PODS, pod("tried")),
        ("POST", f"{PODS}/tried/binding?dryRun=All", bound("tried")),
        ("GET", f"{PODS}/tried"),
        ("POST", f"{PODS}/tried/binding", bound("tried", to={"name": "n"})),
        ("GET", f"{PODS}/tried"),
    ],
    "bindings that are refused": [
        ("POST", PODS, pod("free")),
        ("POST", f"{PODS}/free/binding", bound("free", to="")),
        ("POST", f"{PODS}/free/binding", bound("free", to={"kind": "Minion", "name": "n"})),
        ("POST", f"{PODS}/free/binding", bound("free", to={"kind": "Minion"})),
        ("POST", BINDINGS, bound("free", to={"kind": "Minion"})),
        ("POST", f"{PODS}/free/binding", {"apiVersion": "v1", "kind": "Binding"}),
        ("POST", BINDINGS, {"apiVersion": "v1", "kind": "Binding", "target": {"name": "n"}}),
        ("POST", BINDINGS, bound("a/b%")),
        ("POST", BINDINGS, bound("..")),
        ("POST", f"{PODS}/free/binding", bound("other")),
        ("POST", f"{PODS}/free/binding", bound("free", uid="odd")),
        ("POST", f"{PODS}/free/binding", bound("free", resourceVersion="1")),
        ("POST", f"{PODS}/free/binding", bound("free", uid="odd", resourceVersion="1")),
        ("POST", BINDINGS, bound("free", resourceVersion="1")),
        ("POST", f"{PODS}/free/binding", bound("free", namespace="other")),
        ("POST", f"{PODS}/none/binding", bound("none")),
        ("POST", BINDINGS, bound("none")),
        ("POST", "/api/v1/namespaces/none/pods/free/binding", bound("free")),
        ("POST", f"{PODS}/free/binding", b"{"),
        ("POST", f"{PODS}/free/binding", pod("free")),
        ("POST", f"{PODS}/free/binding", {**bound("free"), "apiVersion": "v2"}),
        ("POST", f"{PODS}/free/binding", bound("free", to={"name": 5})),
        ("POST", PODS, bound("free")),
        ("POST", f"{PODS}/free/binding?fieldValidation=Strict", {**bound("free"), "color": "red"}),
        ("GET", f"{PODS}/free"),
        ("POST", f"{PODS}/free/binding", {**bound("free"), "color": "red"}),
    ],
    "a gate before the binding": [
        ("POST", PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}])),
        ("POST", f"{PODS}/gated/binding", bound("gated")),
        ("PATCH", f"{PODS}/gated", gates("example.com/wait", "b"), MERGE),
        ("PATCH", f"{PODS}/gated", gates("c"), MERGE),
        ("PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}}, MERGE),
        ("POST", f"{PODS}/gated/binding", bound("gated")),
        ("GET", f"{PODS}/gated"),
    ],
    "a binding in a namespace that is leaving": [
        ("POST", NAMESPACES, plain("Namespace", "leaving")),
        (
            "POST",
            f"{NAMESPACES}/leaving/pods",
            {**pod("held"), "metadata": {"name": "held", "finalizers": ["example.com/hold"]}},
        ),
        ("DELETE", f"{NAMESPACES}/leaving"),
        ("POST", f"{NAMESPACES}/leaving/pods/none/binding", bound("none")),
        ("POST", f"{NAMESPACES}/leaving/bindings", bound("none")),
    ],
    "paths of bindings": [
        ("GET", f"{PODS}/free/binding"),
        ("PUT", f"{PODS}/free/binding", bound("free")),
        ("DELETE", f"{PODS}/free/binding"),
        ("GET", BINDINGS),
        ("DELETE", BINDINGS),
        ("GET", f"{BINDINGS}/free"),
        ("POST", f"{BINDINGS}/free", bound("free")),
        ("POST", "/api/v1/bindings", bound("free")),
        ("GET", "/api/v1/bindings"),
        ("POST", f"{PODS}/free/status", pod("free")),
    ],
    "accounts": [
        ("POST", ACCOUNTS, {"metadata": {"name": "robot"}, "secrets": [{"name": "s"}]}),
        ("PATCH", f"{ACCOUNTS}/robot", {"automountServiceAccountToken": False}, MERGE),
        ("PATCH", f"{ACCOUNTS}/robot", {"secrets": [{"name": "t"}]}, STRATEGIC),
        ("PUT", f"{ACCOUNTS}/robot", {"metadata": {"name": "robot"}, "imagePullSecrets": [{}]}),
        ("POST", ACCOUNTS, {"metadata": {"name": "Robot"}}),
        ("POST", ACCOUNTS, {"metadata": {"name": "odd"}, "secrets": "x"}),
        ("GET", f"{ACCOUNTS}/robot"),
        ("DELETE", f"{ACCOUNTS}/robot"),
        ("GET", f"{ACCOUNTS}/robot"),
    ],
    "names that are no names": [
        *(
            (method, f"{SERVICES}/{name}")
            for name in ("a%22b", "%25")
            for method in ("GET", "DELETE")
        ),
        ("PATCH", f"{SERVICES}/a%22b", {"a": 1}, MERGE),
        ("PUT", f"{PODS}/%25", pod("p")),
        ("POST", SERVICES, service('a"b')),
        ("POST", SERVICES, service("-123")),
        ("POST", f"{PODS}?dryRun=All", pod("a.b")),
        ("POST", f"{PODS}?dryRun=All", pod("a" * 64)),
        ("POST", f"{DEPLOYMENTS}?dryRun=All", workload("Deployment", "a.b")),
        ("POST", f"{APPS}/daemonsets?dryRun=All", workload("DaemonSet", "a.b")),
        *(("POST", f"{EVENTS}?dryRun=All", event(name)) for name in ("A b", "a/b", "..", "50%")),
    ],
    "metadata that a server mends": [
        (
            "POST",
            f"{MAPS}?dryRun=All",
            {"metadata": {"name": "m", "ownerReferences": [OWNER, OWNER, {**OWNER, "uid": "v"}]}},
        ),
        (
            "POST",
            f"{MAPS}?dryRun=All",
            {"metadata": {"name": "m", "ownerReferences": [OWNER, {**OWNER, "name": "y"}]}},
        ),
        ("POST", f"{MAPS}?dryRun=All", {"metadata": {"name": "m", "resourceVersion": "1"}}),
        ("POST", MAPS, {"metadata": {"name": "m", "resourceVersion": "1"}}),
        ("POST", f"{NODES}?dryRun=All", {"metadata": {"name": "n", "namespace": "other"}}),
    ],
    "ranges that contradict themselves": [
        *(
            ("POST", f"{NODES}?dryRun=All", {"metadata": {"name": "n"}, "spec": spec})
            for spec in (
                {"podCIDR": "x", "podCIDRs": ["10.1.0.0/24"]},
                {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.2.0.0/24", "fd00::/64"]},
                {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]},
            )
        ),
        *(
            ("POST", f"{RANGES}?dryRun=All", {"metadata": {"name": "r"}, "spec": {"cidrs": cidrs}})
            for cidrs in (["fe80::1", "fd00::/64"], ["10.9.0.0/24", "10.8.0.0/24"])
        ),
    ],
    "warnings about addresses": [
        (
            "POST",
            f"{SERVICES}?dryRun=All",
            service(
                type="LoadBalancer",
                externalIPs=["192.0.2.1"],
                loadBalancerIP="::ffff:1.2.3.4",
                loadBalancerSourceRanges=["10.0.0.0/08", "2001:DB8::/32"],
            ),
        ),
    ],
    "a second host for a slice": [
        ("POST", SLICES, endpoint_slice("hosts", endpoints=[{"addresses": ["10.1.0.1"]}] * 2)),
        ("PATCH", f"{SLICES}/hosts", {"ports": [{"port": 70000, "protocol": "Odd"}]}, MERGE),
    ],
    "reviews of the wrong shape": [
        ("POST", REVIEWS, {"spec": "x"}),
        ("POST", REVIEWS, {"spec": 5}),
        ("POST", REVIEWS, {"spec": {"resourceAttributes": [1]}}),
        ("POST", REVIEWS, {"spec": {"resourceAttributes": {"verb": {"a": 1}}}}),
        ("POST", REVIEWS, {"spec": {"resourceAttributes": {"name": True}}}),
        ("POST", REVIEWS, {"spec": {"nonResourceAttributes": {"path": 5}}}),
    ],
    "field managers that logs would not take": [
        ("POST", MAPS, managed("m" * 129)),
        ("POST", MAPS, managed("a\nlevel=error")),
        ("POST", MAPS, managed("\u00e9" * 65)),
        ("POST", MAPS, managed("\u00e9\x1b\u200b\u2028 b\x7f")),
        ("POST", f"{MAPS}?fieldManager={'%C3%A9' * 65}", plain("ConfigMap", "managed")),
        ("POST", f"{MAPS}?fieldManager=a%1B%00", plain("ConfigMap", "managed")),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_answer(name: str, servers: tuple[Api, Api]) -> None:
    """Code, reason, message, causes, warnings and objects are those of a real kube-apiserver."""
    real, ours = servers
    for ask in CASES[name]:
        want_code, want_body, want_warnings = real.ask(*ask)
        code, body, warnings = ours.ask(*ask)
        assert plain_answer(body) == plain_answer(want_body)
        assert (code, warnings) == (want_code, want_warnings)


def test_bindings_are_announced_alike(servers: tuple[Api, Api]) -> None:
    """Clients find the two ways to bind a pod where a real kube-apiserver has them."""
    want, found = (
        [one for one in api.ask("GET", "/api/v1")[1]["resources"] if "binding" in one["name"]]
        for api in servers
    )
    assert found == want
    assert [one["name"] for one in found] == ["bindings", "pods/binding"]
