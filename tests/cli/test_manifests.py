"""Tests of how objects are loaded from files."""

from __future__ import annotations

import gc
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.cli.manifests.objects import (
    Manifests,
    describe_problem,
    load_manifests,
    name_object,
    place_of_object,
)
from keepclose.cli.manifests.problems import InputPlace, InputProblem, render
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.field_errors import not_supported
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from support import builders

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n"


def load(text: str | bytes) -> Manifests:
    """Return what is read from a text on standard input."""
    return load_manifests(["-"], stdin=io.BytesIO(text.encode() if isinstance(text, str) else text))


def names(manifests: Manifests) -> list[str]:
    """Return the names of all objects."""
    return [name_object(one.object) for one in manifests.objects]


def test_objects_keep_their_places(tmp_path: Path) -> None:
    """Each object comes with its file, document, item and line."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        f"---\n{SERVICE}---\napiVersion: v1\nkind: List\nitems:\n- kind: Pod\n"
        "  apiVersion: v1\n  metadata:\n    name: p\n"
    )
    manifests = load_manifests([str(file)])

    assert manifests.problems == ()
    assert [(name_object(one.object), one.place) for one in manifests.objects] == [
        ("shop/web", InputPlace(str(file), document=1, line=2)),
        ("Pod default/p", InputPlace(str(file), document=2, item=0, line=9)),
    ]


def test_objects_are_picked_by_kind() -> None:
    """Objects of one kind are given in their order."""
    manifests = load(f"{SERVICE}---\n{NODE}---\n{SERVICE.replace('web', 'api')}")

    assert [one.metadata.name for one in manifests.of(Service)] == ["web", "api"]
    assert [one.name for one in manifests.of(Node)] == ["n1"]
    assert manifests.of(EndpointSlice) == ()


def test_no_paths_give_nothing() -> None:
    """Nothing to read is nothing, and no problem."""
    assert load_manifests([]) == Manifests()
    assert load("") == Manifests()


def test_standard_input_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stream of its own the loader reads the standard input of the process."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NODE.encode())))

    assert names(load_manifests(["-"])) == ["Node n1"]


def test_directory_is_read_in_order(tmp_path: Path) -> None:
    """Of a directory all manifests are read by name, and neither other files nor folders below."""
    (tmp_path / "b.yml").write_text(NODE.replace("n1", "b"))
    (tmp_path / "a.yaml").write_text(NODE.replace("n1", "a"))
    (tmp_path / "c.json").write_text(
        '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c"}}'
    )
    (tmp_path / "notes.txt").write_text("no manifest")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.yaml").write_text(NODE.replace("n1", "d"))
    manifests = load_manifests([str(tmp_path)])

    assert names(manifests) == ["Node a", "Node b", "Node c"]
    assert manifests.problems == ()


def test_directory_without_manifests_is_a_problem(tmp_path: Path) -> None:
    """A directory from which nothing can be read is most likely the wrong one."""
    want = InputProblem(
        InputPlace(str(tmp_path)), "the directory has no manifests (*.yaml, *.yml, *.json)"
    )

    assert load_manifests([str(tmp_path)]).problems == (want,)


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    """A file that is not there is told, and the others are read."""
    there, missing = tmp_path / "there.yaml", tmp_path / "missing.yaml"
    there.write_text(NODE)
    manifests = load_manifests([str(missing), str(there)])

    assert names(manifests) == ["Node n1"]
    assert manifests.problems == (
        InputProblem(InputPlace(str(missing)), "cannot be read: No such file or directory"),
    )


def test_name_that_no_file_can_have_is_a_problem() -> None:
    """A path with a null byte is told like any other that cannot be read."""
    (problem,) = load_manifests(["nul\0l"]).problems

    assert problem.place == InputPlace("nul\0l")
    assert problem.text.startswith("cannot be read: ")


def test_directory_that_looks_like_a_manifest_is_a_problem(tmp_path: Path) -> None:
    """A folder named like a manifest inside of a directory cannot be read as one."""
    (tmp_path / "a.yaml").mkdir()
    want = InputProblem(InputPlace(str(tmp_path / "a.yaml")), "cannot be read: Is a directory")

    assert load_manifests([str(tmp_path)]).problems == (want,)


@pytest.mark.parametrize(
    ("text", "want_rendered"),
    [
        pytest.param(
            b"a: 1\nb: \xff",
            "error: not UTF-8 text\n"
            "       in standard input, line 2\n"
            "       save the file as UTF-8",
            id="another encoding",
        ),
        pytest.param(
            "a:\n\tb: c",
            "error: not valid YAML: a tab is not allowed here\n"
            "       in standard input, document 1, line 2, column 1\n"
            "       indent with spaces",
            id="malformed YAML",
        ),
        pytest.param(
            "- a",
            "error: expected a Kubernetes object: a map with apiVersion, kind and metadata, "
            "got a list\n"
            "       in standard input, document 1, line 1",
            id="a list",
        ),
        pytest.param(
            "hello",
            "error: expected a Kubernetes object: a map with apiVersion, kind and metadata, "
            "got a plain value\n"
            "       in standard input, document 1, line 1",
            id="a text",
        ),
        pytest.param(
            "kind: List\nitems:\n-",
            "error: expected a Kubernetes object: a map with apiVersion, kind and metadata, "
            "got nothing\n"
            "       in standard input, document 1, items[0], line 3",
            id="an empty item",
        ),
        pytest.param(
            "metadata: {name: web}",
            "error: web: apiVersion: Required value\n       in standard input, document 1, line 1",
            id="no apiVersion",
        ),
        pytest.param(
            "apiVersion: v1\nkind: [a]\nmetadata: {name: web}",
            'error: web: kind: Invalid value: ["a"]: expected a string, got a list\n'
            "       in standard input, document 1, line 2",
            id="a kind that is no text",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Service\nspec: {}",
            "error: Service: metadata.name: Required value\n"
            "       in standard input, document 1, line 1",
            id="no metadata",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  generateName: web-",
            "error: Pod: metadata.name: Required value\n"
            "       in standard input, document 1, line 3\n"
            "       give it a name: generateName is for the API server",
            id="no name yet",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Service\nmetadata: web",
            'error: Service: metadata: Invalid value: "web": expected a map, got a string\n'
            "       in standard input, document 1, line 3",
            id="metadata that is none",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels:\n    a: b\n    v: 1.10",
            "error: Pod default/web: metadata.labels[v]: Invalid value: 1.1: "
            "expected a string, got a number\n"
            "       in standard input, document 1, line 7\n"
            "       put it in quotes, otherwise it is a number",
            id="a number as label",
        ),
        pytest.param(
            f'{SERVICE}spec:\n  ports:\n  - port: 80\n  - name: b\n    port: "80"',
            'error: shop/web: spec.ports[1].port: Invalid value: "80": '
            "expected a number, got a string\n"
            "       in standard input, document 1, line 8\n"
            "       write it without quotes: 80",
            id="a quoted port",
        ),
        pytest.param(
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: a}",
            "error: EndpointSlice default/a: apiVersion: "
            'Invalid value: "discovery.k8s.io/v1beta1": '
            "keepclose reads EndpointSlice discovery.k8s.io/v1\n"
            "       in standard input, document 1, line 1\n"
            "       write apiVersion: discovery.k8s.io/v1",
            id="an old version",
        ),
        pytest.param(
            "apiVersion: apps/v1\nkind: Service\nmetadata: {name: a}",
            'error: default/a: apiVersion: Invalid value: "apps/v1": keepclose reads Service v1\n'
            "       in standard input, document 1, line 1\n"
            "       write apiVersion: v1",
            id="a wrong group",
        ),
    ],
)
def test_problem_is_told(text: str | bytes, want_rendered: str) -> None:
    """What is wrong is told with its place, and the object is left out."""
    manifests = load(text)

    assert [render(problem) for problem in manifests.problems] == [want_rendered]
    assert manifests.objects == ()


def test_same_object_twice_is_a_problem(tmp_path: Path) -> None:
    """Of two objects with one name the first is kept, and the problem names both places."""
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(f"{SERVICE}spec: {{type: NodePort}}\n")
    second.write_text(f"{NODE}---\n{SERVICE}")
    manifests = load_manifests([str(first), str(second)])

    assert [one.spec.type for one in manifests.of(Service)] == ["NodePort"]
    want_rendered = (
        'error: shop/web: metadata.name: Duplicate value: "web"\n'
        f"       in {second}, document 2, line 8\n"
        f"       the first one is in {first}, document 1, line 1; remove or rename one of them"
    )
    assert [render(problem) for problem in manifests.problems] == [want_rendered]


def test_same_name_in_another_namespace_or_kind_is_fine() -> None:
    """Objects are the same only if kind, namespace and name are."""
    other = SERVICE.replace("shop", "other")
    manifests = load("---\n".join([SERVICE, other, SERVICE.replace("Service", "Endpoints")]))

    assert names(manifests) == ["shop/web", "other/web", "Endpoints shop/web"]
    assert manifests.problems == ()


def test_other_kinds_are_counted() -> None:
    """Kinds that are not used are no problem, nor are kinds of others with a known name."""
    kinds = [
        ("apps/v1", "Deployment"),
        ("v1", "ConfigMap"),
        ("apps/v1", "Deployment"),
        ("serving.knative.dev/v1", "Service"),
        ("events.k8s.io/v1", "Event"),
    ]
    manifests = load("---\n".join(f"apiVersion: {v}\nkind: {k}\n" for v, k in kinds))

    assert (manifests.objects, manifests.problems) == ((), ())
    assert manifests.ignored == {"ConfigMap": 1, "Deployment": 2, "Event": 1, "Service": 1}
    assert manifests.ignored_at["Service"] == InputPlace("-", 4, line=10)


@pytest.mark.parametrize(
    ("metadata", "want_namespace"),
    [
        pytest.param("{name: a}", "default", id="none is default"),
        pytest.param("{name: a, namespace: }", "default", id="null is default"),
        pytest.param('{name: a, namespace: ""}', "default", id="empty is default"),
        pytest.param("{name: a, namespace: shop}", "shop", id="one is kept"),
    ],
)
def test_namespace_of_pod(metadata: str, want_namespace: str) -> None:
    """A namespaced object without a namespace is in the default one."""
    pods = load(f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}").of(Pod)

    assert [pod.metadata.namespace for pod in pods] == [want_namespace]


def test_node_has_no_namespace() -> None:
    """An object of the whole cluster gets no namespace."""
    assert [node.metadata.namespace for node in load(NODE).of(Node)] == [""]


def test_times_stay_text() -> None:
    """Times are not turned into something else."""
    pods = load(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  deletionTimestamp: 2026-01-01T00:00:00Z"
    ).of(Pod)

    assert [pod.metadata.deletion_timestamp for pod in pods] == ["2026-01-01T00:00:00Z"]


def test_byte_order_mark_is_passed_over() -> None:
    """A file that an editor marked as UTF-8 is read like any other."""
    assert names(load(b"\xef\xbb\xbf" + NODE.encode())) == ["Node n1"]


def test_rule_is_reported_at_its_field() -> None:
    """A rule that fails after the loading is reported with the line of its field."""
    (located,) = load(f"# shop\n{SERVICE}spec:\n  trafficDistribution: PreferZone\n").objects
    cause = not_supported("spec.trafficDistribution", "PreferZone", ("PreferSameZone",))

    assert render(describe_problem(located, cause)) == (
        'error: shop/web: spec.trafficDistribution: Unsupported value: "PreferZone": '
        'supported values: "PreferSameZone"\n'
        "       in standard input, document 1, line 6\n"
        "       did you mean PreferSameZone?"
    )


def test_place_without_text_is_that_of_the_object() -> None:
    """Without lines a field is where its object is."""
    pad = " " * (1 << 20)
    (located,) = load(
        f'{pad}{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "n"}}}}'
    ).objects

    assert place_of_object(located, "metadata.name") == InputPlace("-", document=1, line=1)


@pytest.mark.parametrize(
    ("index", "want_name"),
    [
        pytest.param(0, "shop/web", id="a Service is what it is all about"),
        pytest.param(1, "Pod default/p1", id="others are named with their kind"),
        pytest.param(2, "Node n1", id="without a namespace where there is none"),
    ],
)
def test_name_of_object(index: int, want_name: str) -> None:
    """Objects are named as people name them."""
    objects = (builders.service(namespace="shop"), builders.pod(), builders.node())

    assert name_object(objects[index]) == want_name


def test_collector_runs_again_after_loading() -> None:
    """Loading pauses the garbage collector and leaves it as it was."""
    load(NODE)
    assert gc.isenabled()
    gc.disable()
    try:
        load(NODE)
        assert not gc.isenabled()
    finally:
        gc.enable()


_line = st.sampled_from(
    [
        "---",
        "apiVersion: v1",
        "kind: Service",
        "kind: List",
        "items:",
        "- a",
        "  name: b",
        "\t",
        "{",
        "metadata:",
        "metadata: {name: x}",
        "}",
        '{"a": 1}',
        "spec: &x",
        "<<: *x",
        "? [",
        "...",
        "%A",
    ]
)


@given(st.lists(_line, max_size=10).map("\n".join) | st.text(max_size=30))
@settings(deadline=None, max_examples=200)
def test_loading_never_raises(text: str) -> None:
    """Any text gives objects and problems, and every problem can be shown."""
    manifests = load(text)

    assert all(render(problem).startswith("error: ") for problem in manifests.problems)
    assert all(one.place.file == "-" for one in manifests.objects)
