"""The command `keepclose snapshot`: what is in the file, what never is, and that answers stay."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from keepclose.advise.inventory import Inventory, admit_service
from keepclose.advise.resolution import resolve_services
from keepclose.cli.main import app
from keepclose.cli.render.resolve import resolved_document
from keepclose.cli.snapshot.allowed_fields import ALLOWED_ANNOTATIONS, ALLOWED_KINDS, allowed_part
from keepclose.cli.snapshot.anonymizing import Anonymizer
from keepclose.heuristics.discovery import find_heuristics
from keepclose.model.decoding import Rejected, convert
from keepclose.model.gates import DEFAULT_GATES, Gate
from keepclose.model.meta import OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.zone_weights import ZoneWeights, parse_zone_weights, render_zone_weights
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint, endpoint_slice, node, pod, service

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
EXAMPLE = EXAMPLES / "three-zones.yaml"
SECRET = "hunter2-s3cr3t"  # noqa: S105 - a word to look for
Raw = dict[str, Any]


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run a command where no lab runs and no kubeconfig exists."""
    env = {"COLUMNS": "100", "TERM": "dumb", "HOME": "/nonexistent", "KUBECONFIG": ""}
    return CliRunner().invoke(app, arguments, input=stdin, env=env)


def resolved(path: Path | str, *options: str) -> Any:
    """Return the answer of resolve about a file."""
    result = run("resolve", "-f", str(path), "-o", "json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["snapshot.json", "snapshot.yaml", "s.json.gz", "s.yml.gz", "s"])
def test_a_snapshot_answers_as_what_it_was_made_of(tmp_path: Path, name: str) -> None:
    """In every form; the file is the owner's alone, and the same objects give the same bytes."""
    file = tmp_path / name
    result = run("snapshot", "-f", str(EXAMPLE), "-o", str(file))
    assert result.exit_code == 0, result.output
    assert "6 Nodes, 3 Services, 14 Pods; " in result.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert resolved(file) == resolved(EXAMPLE)
    before = file.read_bytes()
    run("snapshot", "-f", str(file), "-o", str(file))
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_without_a_file_it_is_printed() -> None:
    """Standard output has YAML, for people to look at before they give it away."""
    result = run("snapshot", "-f", str(EXAMPLE))
    assert resolved_text(result.stdout) == resolved(EXAMPLE)
    assert yaml.safe_load(result.stdout)["kind"] == "List"


def resolved_text(text: str) -> Any:
    """Return the answer of resolve about standard input."""
    result = run("resolve", "-f", "-", "-o", "json", stdin=text)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "want"),
    [
        pytest.param(["--salt", "x"], 2, "no effect without --anonymize", id="a salt alone"),
        pytest.param(["-o", "json"], 2, "write -o cluster.json", id="a form in place of a file"),
        pytest.param(["-n", "nope"], 3, "there is no Service in namespace nope", id="no Service"),
        pytest.param(["-o", "/dev/null"], 74, "it exists and is no file", id="a device"),
        pytest.param(["-o", "/nonexistent/x"], 74, "No such file or directory", id="no directory"),
        pytest.param(["-A", "-n", "shop"], 2, "one namespace or all", id="one and all"),
        pytest.param(["--context", "c"], 2, "files or a cluster, not both", id="two sources"),
    ],
)
def test_what_cannot_be_done_is_an_error(arguments: list[str], code: int, want: str) -> None:
    """Each with its code, and nothing is written."""
    result = run("snapshot", "-f", str(EXAMPLE), *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert want in result.stderr


def test_a_namespace_is_cut_out(tmp_path: Path) -> None:
    """With -n only its objects and the nodes are in the file."""
    file = tmp_path / "shop.json"
    run("snapshot", "-f", str(EXAMPLE), "-n", "shop", "-o", str(file))
    items = json.loads(file.read_text())["items"]
    assert {item["metadata"].get("namespace", "") for item in items} == {"", "shop"}


def poisoned() -> list[Raw]:
    """Return objects that have a secret in every place where people put them."""
    meta: Raw = {
        "namespace": "shop",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": f'{{"env": "{SECRET}"}}',
            "vault.example/token": SECRET,
            "keepclose.dev/note": SECRET,
            "lint.keepclose.dev/KC101": f"because {SECRET}",
            f"lint.keepclose.dev/{SECRET}": "x",
        },
        "managedFields": [{"manager": SECRET, "fieldsV1": {SECRET: {}}}],
        "finalizers": [SECRET],
        "selfLink": SECRET,
    }
    container: Raw = {
        "name": "web",
        "image": f"registry/{SECRET}",
        "command": ["sh", "-c", SECRET],
        "args": [f"--password={SECRET}"],
        "env": [{"name": "PASSWORD", "value": SECRET}],
        "envFrom": [{"secretRef": {"name": SECRET}}],
        "volumeMounts": [{"name": SECRET, "mountPath": "/x"}],
        "workingDir": SECRET,
        "ports": [{"containerPort": 80, "secret": SECRET}],
        "lifecycle": {"preStop": {"exec": {"command": [SECRET]}, "sleep": {"seconds": 5}}},
        "readinessProbe": {
            "httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]},
            "exec": {"command": [SECRET]},
        },
        "securityContext": {"x": SECRET},
    }
    pod_spec: Raw = {
        "nodeName": "n1",
        "containers": [container],
        "initContainers": [container],
        "ephemeralContainers": [container],
        "volumes": [{"name": "v", "secret": {"secretName": SECRET}}],
        "imagePullSecrets": [{"name": SECRET}],
        "serviceAccountName": SECRET,
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": [SECRET]}],
    }
    template = {"metadata": {"labels": {"app": "web"}, "annotations": meta["annotations"]}}
    workload: Raw = {
        "metadata": {"name": "web", **meta},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {**template, "spec": pod_spec},
            "volumeClaimTemplates": [{"metadata": {"name": SECRET}}],
        },
        "status": {"replicas": 1, "conditions": [{"type": "A", "message": SECRET}]},
    }
    state = {"waiting": {"reason": f"Err {SECRET}", "message": SECRET}}
    objects: list[tuple[str, str, Raw]] = [
        ("v1", "Secret", {"metadata": {"name": "s"}, "data": {"x": SECRET}}),
        ("v1", "ConfigMap", {"metadata": {"name": "c"}, "data": {"x": SECRET}}),
        (
            "v1",
            "ConfigMap",
            {
                "metadata": {
                    "name": "keepclose-ack-n1",
                    "namespace": "kube-system",
                    "labels": {"keepclose.dev/acknowledgement": "true"},
                    "annotations": meta["annotations"],
                },
                "data": {"form": "2", "programmed": "7", "honors": "forZones", "x": SECRET},
            },
        ),
        ("v1", "Event", {"metadata": {"name": "e", **meta}, "message": SECRET, "reason": "R"}),
        (
            "v1",
            "Service",
            {
                "metadata": {"name": "web", **meta},
                "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}], "x": SECRET},
                "status": {"conditions": [{"type": "T", "reason": "R", "message": SECRET}]},
            },
        ),
        (
            "v1",
            "Pod",
            {
                "metadata": {"name": "web-1", "labels": {"app": "web"}, **meta},
                "spec": pod_spec,
                "status": {
                    "message": SECRET,
                    "reason": f"Evicted: {SECRET}",
                    "podIPs": [{"ip": "10.0.0.1"}],
                    "conditions": [{"type": "Ready", "status": "True", "message": SECRET}],
                    "containerStatuses": [
                        {"name": "web", "image": SECRET, "state": state, "lastState": state}
                    ],
                },
            },
        ),
        (
            "v1",
            "Node",
            {
                "metadata": {"name": "n1", "annotations": meta["annotations"]},
                "spec": {"providerID": SECRET},
                "status": {
                    "nodeInfo": {"kubeletVersion": "v1.33.0", "machineID": SECRET},
                    "images": [{"names": [SECRET]}],
                    "allocatable": {"cpu": "4", f"x.example/{SECRET}": "1"},
                },
            },
        ),
        ("v1", "Namespace", {"metadata": {"name": "shop", "annotations": meta["annotations"]}}),
        ("apps/v1", "Deployment", workload),
        ("apps/v1", "ReplicaSet", workload),
        ("apps/v1", "StatefulSet", workload),
        ("apps/v1", "DaemonSet", workload),
        (
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            {
                "metadata": {"name": "web", **meta},
                "spec": {"maxReplicas": 3, "metrics": [{"external": {"x": SECRET}}]},
            },
        ),
        (
            "policy/v1",
            "PodDisruptionBudget",
            {"metadata": {"name": "web", **meta}, "spec": {"minAvailable": 1}},
        ),
    ]
    return [
        {"apiVersion": version, "kind": kind, **msgspec.json.decode(msgspec.json.encode(obj))}
        for version, kind, obj in objects
    ]


@pytest.mark.parametrize("options", [[], ["--anonymize"]])
def test_secrets_never_get_into_a_snapshot(tmp_path: Path, options: list[str]) -> None:
    """Not from environments, arguments, annotations, messages, images, volumes or other objects."""
    dump, file = tmp_path / "dump.json", tmp_path / "snapshot.json"
    items = poisoned()
    assert json.dumps(items).count(SECRET) > 100
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    result = run("snapshot", "-f", str(dump), "-o", str(file), *options)
    assert result.exit_code == 0, result.output
    text = file.read_text()
    assert SECRET not in text
    assert SECRET not in result.output
    kinds = {item["kind"] for item in json.loads(text)["items"]}
    assert kinds.isdisjoint({"Secret", "Event"})
    assert {"Service", "Pod", "Node", "Deployment", "ConfigMap"} <= kinds
    again = run("resolve", "-f", str(file))
    assert (again.exit_code, "not read" in again.stderr) == (0, False)


def test_what_matters_beside_secrets_is_kept() -> None:
    """That there is a probe, how long a hook sleeps, that a finding is suppressed."""
    kept = {obj["kind"]: obj for obj in map(allowed_part, poisoned()) if obj is not None}
    container = kept["Pod"]["spec"]["containers"][0]
    assert container["readinessProbe"] == {}
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    annotations = kept["Deployment"]["metadata"]["annotations"]
    assert annotations == {"lint.keepclose.dev/KC101": "suppressed"}
    assert kept["ConfigMap"]["data"] == {
        "form": "2",
        "programmed": "7",
        "honors": "forZones",
        "exceptions": "",
    }


def test_numbers_by_which_controllers_choose_pods_are_kept() -> None:
    """A replay deletes the same pods from a snapshot as live; other texts stay out."""
    cost, revision = (
        "controller.kubernetes.io/pod-deletion-cost",
        "deployment.kubernetes.io/revision",
    )
    for texts, want in (
        ({cost: "-5", revision: "3"}, {cost: "-5", revision: "3"}),
        ({cost: SECRET, revision: ""}, None),
    ):
        raw: Raw = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "annotations": texts},
        }
        part = allowed_part(raw)
        assert part is not None
        assert part["metadata"].get("annotations") == want
        anonymous = Anonymizer([part], salt=b"x").replace(part)
        assert anonymous["metadata"].get("annotations") == want


def test_values_of_a_wrong_type_are_left_out() -> None:
    """A list in the place of labels would pass the anonymizer by."""
    odd: Raw = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}
    odd["metadata"] |= {"labels": [SECRET], "ownerReferences": SECRET, "annotations": SECRET}
    odd["spec"] = {"selector": SECRET, "replicas": [SECRET], "template": {"metadata": [SECRET]}}
    kept = allowed_part(odd)
    assert kept == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"template": {}},
    }


def plain(*objects: msgspec.Struct) -> list[Raw]:
    """Return objects as plain values."""
    return [msgspec.json.decode(msgspec.json.encode(obj)) for obj in objects]


def test_every_field_that_is_decoded_is_kept() -> None:
    """A field of a struct that decisions read must be decided on here, kept or not."""
    dropped = {
        "metadata.annotations.k",
        "metadata.finalizers",
        "status.conditions.message",
        "endpoints.targetRef.apiVersion",
        "endpoints.targetRef.resourceVersion",
        "endpoints.targetRef.fieldPath",
    }
    for path in EXAMPLES.glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            for raw in (document or {}).get("items", [document]):
                before = convert(raw) if raw else None
                if before is None or isinstance(before, Rejected) or not hasattr(before, "kind"):
                    continue
                kept = allowed_part(raw)
                if kept is not None:
                    assert convert(kept) == before, path
    for struct in (Service, type(node()), type(pod()), type(endpoint_slice())):
        full = filled(struct)
        kept = allowed_part(full)
        assert kept is not None
        assert leaves(full) - leaves(kept) <= dropped


def filled(struct: type) -> Raw:
    """Return an object with every field of a struct, as plain values."""
    answer: Raw = _fill(msgspec.inspect.type_info(struct))
    if "kind" in answer:
        answer["kind"] = struct.__name__
        answer["apiVersion"] = "discovery.k8s.io/v1" if struct.__name__ == "EndpointSlice" else "v1"
    return answer


def _fill(info: msgspec.inspect.Type) -> Any:
    match info:
        case msgspec.inspect.StructType(fields=fields):
            return {field.encode_name: _fill(field.type) for field in fields}
        case msgspec.inspect.VarTupleType(item_type=item):
            return [_fill(item)]
        case msgspec.inspect.DictType(value_type=value):
            return {"cpu" if isinstance(value, msgspec.inspect.UnionType) else "k": _fill(value)}
        case msgspec.inspect.UnionType(types=types):
            return _fill(next(t for t in types if not isinstance(t, msgspec.inspect.NoneType)))
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 7
    return "word"


def leaves(value: Any, path: str = "") -> set[str]:
    """Return the paths of all scalars."""
    if isinstance(value, dict):
        parts = ((f"{path}.{key}".lstrip("."), part) for key, part in value.items())
        return {leaf for name, part in parts for leaf in leaves(part, name)}
    if isinstance(value, list):
        return {leaf for part in value for leaf in leaves(part, path)}
    return {path}


ZONES = ("zqalpha", "zqbravo", "zqdelta", "zqomega")
MECHANISMS: tuple[tuple[str | None, Raw], ...] = (
    (None, {}),
    ("PreferSameZone", {}),
    ("PreferSameNode", {}),
    (None, {"service.kubernetes.io/topology-mode": "Auto"}),
    ("keepclose.dev/Balanced", {}),
    ("keepclose.dev/LocalShared", {}),
    (None, {"endpointslice.kubernetes.io/subsetting": "Require"}),
)
GATES = DEFAULT_GATES.with_gates(
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.ENDPOINT_SLICE_SUBSETTING,
)
SETTINGS = PlannerSettings(gates=GATES, heuristics=find_heuristics(GATES))


@st.composite
def clusters(draw: st.DrawFn) -> list[Raw]:
    """Return nodes, Services with their mechanisms, pods, and slices of an earlier state."""
    node_names = draw(
        st.lists(st.from_regex(r"nq[a-z]{3}-[0-9]{1,2}", fullmatch=True), min_size=1, max_size=6,
                 unique=True)
    )  # fmt: skip
    nodes = [
        node(name, draw(st.sampled_from(ZONES)), cpu=draw(st.sampled_from(["2", "4"])))
        for name in node_names
    ]
    objects: list[Any] = [*nodes]
    for number in range(draw(st.integers(1, 2))):
        namespace, name, value = f"spq{number}", f"svq{number}", f"vaq{number}"
        distribution, annotations = draw(st.sampled_from(MECHANISMS))
        made = service(
            name,
            namespace=namespace,
            annotations=annotations,
            selector={"kqapp": value},
            traffic_distribution=distribution,
            cluster_ip=f"10.96.{number}.10",
            cluster_ips=(f"10.96.{number}.10",),
            type="NodePort" if draw(st.booleans()) else "ClusterIP",
            external_traffic_policy=draw(st.sampled_from(["Cluster", "Local"])),
        )
        if made.spec.type == "ClusterIP":
            spec = msgspec.structs.replace(made.spec, external_traffic_policy="")
            made = msgspec.structs.replace(made, spec=spec)
        hosts = draw(st.lists(st.integers(1, 250), min_size=1, max_size=7, unique=True))
        pods = [
            pod(
                f"pq{number}x{host}",
                draw(st.sampled_from(node_names)),
                ip=f"10.{number}.7.{host}",
                namespace=namespace,
                labels={"kqapp": value},
                ready=draw(st.integers(0, 5)) > 0,
                owner=OwnerReference("apps/v1", "ReplicaSet", f"rq{number}", "u", True),
            )
            for host in hosts
        ]
        objects += [made, *pods]
        if draw(st.booleans()):
            early = Inventory.of([*nodes, made, *pods[: draw(st.integers(1, len(pods)))]])
            (answer,) = resolve_services(early, settings=SETTINGS)
            objects += answer.slices
    return plain(*objects)


def resolve_plain(objects: Iterable[Raw]) -> Any:
    """Return the answer about plain objects, without the names of new slices."""
    typed = [convert(raw) for raw in objects]
    given_names = {raw["metadata"]["name"] for raw in objects if raw["kind"] == "EndpointSlice"}
    inventory = Inventory.of(typed)
    admitted = []
    for each in inventory.services:
        result = admit_service(each, inventory.families())
        assert isinstance(result, Service)
        admitted.append(result)
    inventory = msgspec.structs.replace(inventory, services=tuple(admitted))
    document = resolved_document(resolve_services(inventory, settings=SETTINGS))
    for each in document["services"]:
        for one in each["slices"]:
            one["metadata"].pop("generateName", None)
            if one["metadata"]["name"] not in given_names:
                del one["metadata"]["name"]
    return json.loads(msgspec.json.encode(document))


def translate(document: Any, anonymizer: Anonymizer) -> Any:
    """Return an answer with tokens in place of all names and addresses, in texts too."""
    words = anonymizer.words | anonymizer.addresses
    pattern = re.compile(
        r"(?<![A-Za-z0-9.-])("
        + "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
        + r")(?![A-Za-z0-9-]|\.[0-9])"
    )

    def walk(value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            return {pattern.sub(replaced, key): walk(part, key) for key, part in value.items()}
        if isinstance(value, list):
            return [walk(part, field) for part in value]
        if field == "uid":
            return anonymizer._uid(value)
        return pattern.sub(replaced, value) if isinstance(value, str) else value

    def replaced(match: re.Match[str]) -> str:
        return words[match[0]]

    return walk(document)


@given(clusters(), st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_anonymized_answers_are_the_same(objects: list[Raw], salt: bytes) -> None:
    """Resolve of the anonymized objects is the anonymized answer, in every mechanism."""
    kept = [part for part in map(allowed_part, objects) if part is not None]
    anonymizer = Anonymizer(kept, salt=salt)
    hidden = [anonymizer.replace(obj) for obj in kept]
    assert resolve_plain(hidden) == translate(resolve_plain(objects), anonymizer)


@given(clusters(), st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=30)
def test_no_name_or_address_stays(objects: list[Raw], salt: bytes) -> None:
    """Nothing of the names, labels and addresses is in the anonymized objects."""
    kept = [part for part in map(allowed_part, objects) if part is not None]
    anonymizer = Anonymizer(kept, salt=salt)
    before, after = texts_of(kept), texts_of([anonymizer.replace(obj) for obj in kept])
    own = re.compile(r"(?:zq|nq|svq|spq|pq|vaq|kq|rq|uid-).*|10\.[0-9]\.7\..*").fullmatch
    assert len([text for text in before if own(text)]) >= 5
    assert not [text for text in after & before if own(text)]


def texts_of(value: Any) -> set[str]:
    """Return all keys and texts in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(texts_of, value.values()))
    if isinstance(value, list):
        return set().union(*map(texts_of, value))
    return {value} if isinstance(value, str) else set()


def test_the_same_salt_gives_the_same_file(tmp_path: Path) -> None:
    """A salt makes the names come out alike again; without one they never do."""
    texts = []
    for name, options in (("a", ["--salt", "x"]), ("b", ["--salt", "x"]), ("c", []), ("d", [])):
        file = tmp_path / name
        result = run("snapshot", "-f", str(EXAMPLE), "-o", str(file), "--anonymize", *options)
        assert result.exit_code == 0, result.output
        texts.append(file.read_text())
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    # NB: by chance a hash with a random salt has such a word in it.
    assert not re.search(r"shop|web|zone-[abc]|10\.1\.", texts[0])


def test_names_of_the_api_stay() -> None:
    """Well-known namespaces, keys and managers mean something, so they are no secret."""
    parts = [
        part
        for part in map(
            allowed_part,
            plain(
                service("kubernetes"),
                endpoint_slice(endpoint(zone="zone-a")),
                node("n1", "zone-a"),
            ),
        )
        if part is not None
    ]
    anonymizer = Anonymizer(parts, salt=b"x")
    made, piece, machine = map(anonymizer.replace, parts)
    assert (made["metadata"]["namespace"], made["metadata"]["name"]) == ("default", "kubernetes")
    assert "endpointslice-controller.k8s.io" in piece["metadata"]["labels"].values()
    zone = machine["metadata"]["labels"]["topology.kubernetes.io/zone"]
    assert piece["endpoints"][0]["zone"] == zone != "zone-a"


def test_weights_by_zone_follow_the_zones() -> None:
    """The annotation names zones, so it names their tokens."""
    text = render_zone_weights(ZoneWeights(weights={"zone-a": {"zone-a": 3, "zone-b": 1}}))
    raw = plain(
        endpoint_slice(endpoint(zone="zone-a"), annotations={"keepclose.dev/zone-weights": text}),
        node("n1", "zone-a"),
    )
    anonymizer = Anonymizer(raw, salt=b"x")
    weights = anonymizer.replace(raw[0])["metadata"]["annotations"]["keepclose.dev/zone-weights"]
    first, second = anonymizer.words["zone-a"], anonymizer.words["zone-b"]
    assert parse_zone_weights(weights).weights == {first: {first: 3, second: 1}}


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"\x1f\x8b\x08nonsense", "it is a damaged gzip file", id="damaged"),
        pytest.param(
            gzip.compress(b"kind: List")[:-9], "it is a gzip file that ends early", id="cut off"
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, data: bytes, want: str) -> None:
    """A file that was not copied whole is an error, not a traceback."""
    file = tmp_path / "snapshot.json.gz"
    file.write_bytes(data)
    result = run("resolve", "-f", str(file))
    assert result.exit_code == 2
    assert want in result.stderr


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """Where the directory cannot be written the file stays as it was, and no part of a new one."""
    taken = tmp_path / "taken"
    taken.mkdir()
    result = run("snapshot", "-f", str(EXAMPLE), "-o", str(taken))
    assert result.exit_code == 74
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


MARKED = ("hunter2-s3cr3t", "kubernetes.io/hunter2-s3cr3t", "10.1.2.3 hunter2", "fe80::1%hunter2")


def marked(allowed: Any, text: str) -> Any:
    """Return a value that has a text in every field that a filter allows."""
    variables = inspect.getclosurevars(allowed).nonlocals
    if allowed.__name__ == "filter_object":
        return {name: marked(part, text) for name, part in variables["allowed"].items()}
    if allowed.__name__ == "filter_list":
        return [marked(variables["allowed"], text)]
    shapes = {
        "_labels": {"app": text, text: "on"},
        "_annotations": dict.fromkeys(ALLOWED_ANNOTATIONS, text),
        "_texts": [text],
    }
    return shapes.get(allowed.__name__, text)


@pytest.mark.parametrize("text", MARKED)
@pytest.mark.parametrize("kind", sorted(ALLOWED_KINDS))
def test_no_field_keeps_what_it_has(kind: tuple[str, str], text: str) -> None:
    """A file may have a name in any field, also where an API server expects a word or a number."""
    raw = {**marked(ALLOWED_KINDS[kind], text), "apiVersion": kind[0], "kind": kind[1]}
    part = allowed_part(raw)
    assert part is not None
    assert any(text in each for each in texts_of(part))
    hidden = Anonymizer([part], salt=b"x").replace(part)
    assert not [each for each in texts_of(hidden) if "hunter2" in each]


def test_ports_protocols_and_releases_name_nobody() -> None:
    """Usual names of ports stay, with what refers to them; others and vendors do not."""
    ports = [
        {"name": "http", "port": 80, "targetPort": "http"},
        {"name": "acme-pay", "port": 81, "targetPort": "acme-pay", "appProtocol": "acme"},
    ]
    own = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    release = {"kubeletVersion": "v1.31.2-acme.7"}
    machine = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    parts = [{**own, "spec": {"ports": ports}}, {**machine, "status": {"nodeInfo": release}}]
    anonymizer = Anonymizer(parts, salt=b"x")
    made, hidden = map(anonymizer.replace, parts)
    usual, named = made["spec"]["ports"]
    assert usual == ports[0]
    assert named["name"] == named["targetPort"] == anonymizer.words["acme-pay"]
    assert len(named["name"]) <= 15
    assert "acme" not in json.dumps(made)
    assert hidden["status"]["nodeInfo"] == {"kubeletVersion": "v1.31.2"}
