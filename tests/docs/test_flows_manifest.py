"""The DaemonSet of the flows agents works as it is shipped."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepclose.cli.options import AGENT_NAMESPACE
from keepclose.demand.agent_pages import AGENT_LABEL, find_agents
from support.netns import namespaces_or_skip

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
DOCUMENTS = list(yaml.safe_load_all((HOWTO / "flows.yaml").read_text()))
ACCT = "/proc/sys/net/netfilter/nf_conntrack_acct"
# What a container runtime does: one file of the node is mounted, and /proc/sys is read-only.
CONTAINER = """
mount -t tmpfs none /run
touch "$1"
mount --bind "$2" "$1"
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
shift 2
setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def daemon_set() -> dict[str, Any]:
    """Return the DaemonSet."""
    [found] = [document for document in DOCUMENTS if document["kind"] == "DaemonSet"]
    spec: dict[str, Any] = found["spec"]
    return spec


def agent() -> dict[str, Any]:
    """Return the container of the agent."""
    [container] = daemon_set()["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def option(name: str) -> str:
    """Return the value of an option of the agent."""
    [value] = [word for word in agent()["command"] if word.startswith(f"--{name}=")]
    return str(value.partition("=")[2])


def test_commands_find_the_agents() -> None:
    """Pods have the label that `flows top` and `verify` select, and the port that they read."""
    template = daemon_set()["template"]
    labels = template["metadata"]["labels"]
    name, _, value = AGENT_LABEL.partition("=")
    assert labels.get(name) == value
    assert daemon_set()["selector"]["matchLabels"].items() <= labels.items()
    pod = {
        "metadata": {"name": "flows-x", "namespace": "kube-system"},
        "spec": template["spec"] | {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    found = find_agents(json.dumps({"items": [pod]}).encode(), namespace=AGENT_NAMESPACE)
    [path] = found.paths.values()
    host, _, port = option("metrics-bind-address").rpartition(":")
    assert path == f"/api/v1/namespaces/kube-system/pods/flows-x:{port}/proxy/flows"
    assert host == "0.0.0.0"  # noqa: S104
    assert agent()["ports"] == [{"name": "metrics", "containerPort": int(port)}]


def test_the_node_name_is_the_name_of_the_node() -> None:
    """The agent gets the name of its Node from the pod, as a host name may be another one."""
    assert option("node-name") == "$(NODE_NAME)"
    [variable] = [one for one in agent()["env"] if one["name"] == "NODE_NAME"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_no_annotation_makes_another_job_scrape_the_agents() -> None:
    """A second job would count every byte twice, in the namespace of the agents."""
    assert "prometheus.io/scrape" not in daemon_set()["template"]["metadata"].get("annotations", {})


def test_the_manifest_lets_the_kernel_count_bytes() -> None:
    """The init container sets the switch with one writable file and no capability at all."""
    spec = daemon_set()["template"]["spec"]
    [container] = spec["initContainers"]
    [mount] = container["volumeMounts"]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert volume["hostPath"] == {"path": ACCT, "type": "File"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["runAsUser"] == 0
    assert spec["hostNetwork"]
    with namespaces_or_skip("node") as [node]:
        node.set_values({"netfilter/nf_conntrack_acct": 0})
        node.run("sh", "-euc", CONTAINER, "sh", mount["mountPath"], ACCT, *container["command"])
        assert node.do(Path(ACCT).read_text).strip() == "1"


def test_a_node_that_denies_the_write_still_gets_an_agent() -> None:
    """The init container succeeds, and the agent then counts connections alone."""
    [container] = daemon_set()["template"]["spec"]["initContainers"]
    [mount] = container["volumeMounts"]
    with namespaces_or_skip("node") as [node]:
        script = f"{CONTAINER.replace('mount --bind', 'mount -o ro --bind', 1)}"
        node.set_values({"netfilter/nf_conntrack_acct": 0})
        node.run("sh", "-euc", script, "sh", mount["mountPath"], ACCT, *container["command"])
        assert node.do(Path(ACCT).read_text).strip() == "0"


@pytest.mark.parametrize("page", ["flows.md", "install.md"])
def test_pages_say_how_to_get_the_image(page: str) -> None:
    """The page of the agent names the page of images, and that names the agent."""
    text = (HOWTO / page).read_text()
    if page == "flows.md":
        assert "install.md#in-an-image" in text
    else:
        [section] = re.findall(r"^## In an image\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        assert "`keepclose flows`" in section
        assert "flows.yaml" in section
    images = {
        container["image"]
        for kind in ("containers", "initContainers")
        for container in daemon_set()["template"]["spec"][kind]
    }
    assert images == {"registry.example/keepclose"}


def test_the_roles_of_readers_are_enough() -> None:
    """The page has the rights that a user of `flows top` and `verify` needs, and no more."""
    text = (HOWTO / "flows.md").read_text()
    roles = [
        document
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        for document in yaml.safe_load_all(block)
    ]
    rights = {
        (role["kind"], group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == {
        ("ClusterRole", "", "nodes", "list"),
        ("ClusterRole", "", "pods", "list"),
        ("ClusterRole", "", "services", "list"),
        ("ClusterRole", "discovery.k8s.io", "endpointslices", "list"),
        ("Role", "", "pods/proxy", "get"),
    }
    [role] = [role for role in roles if role["kind"] == "Role"]
    [agents] = [document for document in DOCUMENTS if document["kind"] == "DaemonSet"]
    assert role["metadata"]["namespace"] == agents["metadata"]["namespace"]
    scheduled = list(yaml.safe_load_all((HOWTO / "verify.yaml").read_text()))
    named = {(role["kind"], role["metadata"]["name"]): role["rules"] for role in roles}
    assert named == {
        (one["kind"], one["metadata"]["name"]): one["rules"] for one in scheduled if "rules" in one
    }
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"]) for one in scheduled if "roleRef" in one
    }
    assert bound == set(named)


@pytest.mark.parametrize(
    ("code", "fails"), [(0, False), (1, True), (2, True), (3, False), (4, True)]
)
def test_the_scheduled_job_fails_by_the_exit_code(tmp_path: Path, code: int, fails: bool) -> None:
    """A Service that is not honoured fails the Job; a cluster without traffic does not."""
    [job] = [
        one["spec"]["jobTemplate"]["spec"]
        for one in yaml.safe_load_all((HOWTO / "verify.yaml").read_text())
        if one["kind"] == "CronJob"
    ]
    [container] = job["template"]["spec"]["containers"]
    program = tmp_path / "keepclose"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(container["command"], env=environment, check=False)
    assert (done.returncode != 0) is fails
    assert job["backoffLimit"] == 0


def test_the_role_that_measured_demand_needs_is_shipped() -> None:
    """The page about demand binds a Role that lets the controller read the pages of agents."""
    page = (HOWTO / "demand.md").read_text()
    shipped = list(yaml.safe_load_all((HOWTO / "verify.yaml").read_text()))
    [role] = [
        document
        for document in shipped
        if document["kind"] == "Role" and document["metadata"]["name"] == "keepclose-flows-reader"
    ]
    assert role["metadata"]["namespace"] == AGENT_NAMESPACE
    assert {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]} in role["rules"]
    assert "--role=keepclose-flows-reader" in page
    for name in ("controller", "webhook"):
        documents = list(yaml.safe_load_all((HOWTO / f"{name}.yaml").read_text()))
        [account] = [item["metadata"] for item in documents if item["kind"] == "ServiceAccount"]
        assert f"{account['namespace']}:{account['name']}" in page
