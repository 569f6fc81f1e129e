"""YAML that is built to be costly is refused, by the API server, for kubeconfigs and manifests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from keepclose.apiserver.serving.request_bodies import (
    APPLY_YAML,
    YAML_NODES_MAX,
    ParsedYaml,
    parse_body,
)
from keepclose.cli.manifests.objects import load_manifests
from keepclose.kube.auth.kubeconfig import load_kubeconfig
from keepclose.kube.errors import ConfigError
from keepclose.kube.yaml_nodes import TAG_DIRECTIVES_MAX, YamlError, YamlLimits
from keepclose.kube.yaml_values import read_yaml
from keepclose.model.json_values import DEPTH_MAX
from keepclose.testing.api_server import Served, serving

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
YAML = "application/yaml"
BASE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n"


def alias_bomb(levels: int) -> str:
    """Return nine aliases to nine aliases, and so on."""
    lines = ["x0: &x0 [1,1,1,1,1,1,1,1,1]"]
    lines += [f"x{n}: &x{n} [{','.join([f'*x{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    """Return maps that merge three times the map before them."""
    lines = ["a0: &a0 {k0: v}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level}")
        lines.append(f"  <<: [*a{level - 1}, *a{level - 1}, *a{level - 1}]\n  k{level}: v")
    return "\n".join(lines)


def nested_merges(members: int) -> str:
    """Return a map that is merged into one, and that into another, almost as deep as allowed."""
    inner = ",".join(f"k{number}: v" for number in range(members))
    levels = DEPTH_MAX - 10
    return "a: " + "{<<: " * levels + "{" + inner + "}" + "}" * levels


def alias_chain(levels: int) -> str:
    """Return a value that is nested deeply by aliases alone."""
    return "x0: &x0 [1]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}]\n" for n in range(1, levels))


def repeated_text(count: int) -> str:
    """Return aliases that repeat a text of 17 kB."""
    return f"x: &x {'a' * 17_000}\ny: [{','.join(['*x'] * count)}]\n"


BOMBS = {
    "unclosed brackets": ("x: " + "[" * 80_000, f"exceeded max depth of {DEPTH_MAX}"),
    "brackets": ("x: " + "[" * 40_000 + "]" * 40_000, f"exceeded max depth of {DEPTH_MAX}"),
    "braces": ("x: " + "{a: " * 20_000, f"exceeded max depth of {DEPTH_MAX}"),
    "items": ("x:\n " + "- " * 40_000 + "1", f"exceeded max depth of {DEPTH_MAX}"),
    "aliases": (alias_bomb(10), "document contains excessive aliasing"),
    "merges": (merge_bomb(14), "document contains excessive aliasing"),
    "nested merges": (nested_merges(40_000), "document contains excessive aliasing"),
    "chained aliases": (alias_chain(2 * DEPTH_MAX), f"exceeded max depth of {DEPTH_MAX}"),
    "a text repeated": (repeated_text(2_000), "document contains excessive aliasing"),
    "itself": ("x: &x [*x]", "value contains itself"),
    "unknown anchor": ("x: *x", "unknown anchor 'x' referenced"),
}


def cpu_seconds(text: str, limits: YamlLimits) -> float:
    """Return the CPU time in which a text is read or refused."""
    start = time.process_time()
    with contextlib.suppress(YamlError):
        read_yaml(text, limits)
    return time.process_time() - start


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data") as served:
        yield served


@pytest.mark.parametrize("name", BOMBS)
async def test_a_body_that_is_a_bomb_is_refused(api: Served, name: str) -> None:
    """A create and an apply of hostile YAML get 400 with the reason, and the server goes on."""
    text, want = BOMBS[name]
    body = (BASE + text).encode()
    created = await api.call("POST", CONFIGMAPS, body, type=YAML)
    assert created.status == 400
    assert created.message.startswith(
        "the object provided is unrecognized (must be of type ConfigMap): yaml: "
    )
    assert want in created.message
    applied = await api.call("PATCH", f"{CONFIGMAPS}/one?fieldManager=me", body, type=APPLY_YAML)
    assert applied.status == 400
    assert applied.message.startswith("error decoding YAML: error converting YAML to JSON: yaml: ")
    assert want in applied.message
    assert (await api.get(CONFIGMAPS))["items"] == []


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little(name: str) -> None:
    """A hostile text is refused within a second of CPU time."""
    text, _ = BOMBS[name]
    assert cpu_seconds(text, YamlLimits()) < 1.0


@pytest.mark.parametrize("name", BOMBS)
def test_a_kubeconfig_that_is_a_bomb_is_refused(tmp_path: Path, name: str) -> None:
    """A hostile kubeconfig is an error of that file."""
    text, want = BOMBS[name]
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is not YAML") as caught:
        load_kubeconfig(file)
    assert want in str(caught.value)


@pytest.mark.parametrize("name", BOMBS)
def test_a_manifest_that_is_a_bomb_is_a_problem(tmp_path: Path, name: str) -> None:
    """A hostile manifest is a problem of its file, found within 10 s of CPU time."""
    text, _ = BOMBS[name]
    file = tmp_path / "bomb.yaml"
    file.write_text(BASE + text)
    start = time.process_time()
    manifests = load_manifests([str(file)])
    assert time.process_time() - start < 10.0
    assert len(manifests.problems) == 1
    assert manifests.objects == ()


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 900, 100_000])
def test_a_manifest_of_deep_json_is_a_problem(tmp_path: Path, depth: int) -> None:
    """JSON that is nested too deeply is a problem of its file."""
    file = tmp_path / "deep.json"
    file.write_text("[" * depth + "]" * depth)
    problems = load_manifests([str(file)]).problems
    assert [problem.text for problem in problems] == ["not valid JSON: nested too deeply"]


def test_a_key_repeated_among_many_is_found_in_linear_time(tmp_path: Path) -> None:
    """JSON with many keys, the last of which stands twice, is read within 10 s of CPU time."""
    file = tmp_path / "keys.json"
    keys = ",".join(f'"k{n}":1' for n in range(100_000))
    file.write_text(f'{{{keys},"k99999":1}}')
    start = time.process_time()
    problems = load_manifests([str(file)]).problems
    assert time.process_time() - start < 10.0
    assert "k99999" in problems[0].text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x: [" + "1," * YAML_NODES_MAX + "]", id="items"),
        pytest.param("x: {" + "".join(f"a{n}: b," for n in range(YAML_NODES_MAX)) + "}", id="map"),
        pytest.param("x:\n" + "- []\n" * YAML_NODES_MAX, id="empty lists"),
    ],
)
async def test_too_many_nodes_are_refused(api: Served, text: str) -> None:
    """YAML of more nodes than can be read in a second is refused, however short it is."""
    reply = await api.call("POST", CONFIGMAPS, (BASE + text).encode(), type=YAML)
    assert reply.status == 400
    assert f"exceeded max nodes of {YAML_NODES_MAX}" in reply.message


async def test_ordinary_aliases_and_merges_are_read(api: Served) -> None:
    """Aliases and merges within the limits give each place a value of its own."""
    text = BASE + "x: &x {a: b}\ndata:\n  <<: *x\n  c: d\nbinaryData: {}\n"
    reply = await api.call("POST", CONFIGMAPS, text.encode(), type=YAML)
    assert (reply.status, reply.json["data"]) == (201, {"a": "b", "c": "d"})
    value, _ = read_yaml("a: &a {b: [1]}\nc: *a", YamlLimits())
    assert value == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert value["a"] is not value["c"]
    assert value["a"]["b"] is not value["c"]["b"]


async def test_a_key_given_twice_is_warned_of(api: Served) -> None:
    """The last of two equal keys counts; the client is warned, or refused where it asks for it."""
    text = (BASE + "data:\n  a: first\n  a: last\n").encode()
    strict = await api.call("POST", f"{CONFIGMAPS}?fieldValidation=Strict", text, type=YAML)
    assert strict.status == 400
    assert 'strict decoding error: line 6: key "a" already set in map' in strict.message
    reply = await api.call("POST", CONFIGMAPS, text, type=YAML)
    assert (reply.status, reply.json["data"]) == (201, {"a": "last"})
    assert reply.warnings == ['299 - "line 6: key \\"a\\" already set in map"']


@pytest.mark.parametrize("body", [b"", b"# nothing", b"---\n"])
async def test_an_empty_document_is_an_empty_object(api: Served, body: bytes) -> None:
    """YAML without content is an object without fields."""
    reply = await api.call("POST", CONFIGMAPS, body, type=YAML)
    assert reply.status == 422
    assert "metadata.name: Required value" in reply.message


def test_the_cost_grows_with_the_length_of_the_text() -> None:
    """Four times the text takes about four times as long, for each kind of content."""
    contents: dict[str, Callable[[int], str]] = {
        "items": lambda n: "x: [" + "1," * n + "]",
        "keys": lambda n: "".join(f"k{i}: v\n" for i in range(n)),
        "anchors": lambda n: "".join(f"- &a{i} v\n" for i in range(n)),
        "merged maps": lambda n: "x:\n  <<: [" + ",".join(f"{{a{i}: 1}}" for i in range(n)) + "]",
        "merged one by one": lambda n: "x:\n" + "".join(f"  <<: {{a{i}: 1}}\n" for i in range(n)),
        "the same key": lambda n: "a: b\n" * n,
        "digits": lambda n: "x: " + "1" * n,
        "base 60": lambda n: "x: 1" + ":10" * n,
        "underscores": lambda n: "x: 1" + "_" * n,
        "a folded text": lambda n: "x: a\n" + " b\n" * n,
        "comments": lambda n: "# c\n" * n,
        "documents": lambda n: "---\na\n" * n,
    }
    for name, content in contents.items():
        costs = [
            min(cpu_seconds(content(size), YamlLimits()) for _ in range(3))
            for size in (5_000, 20_000)
        ]
        assert costs[1] < 10 * costs[0] + 0.05, name


def test_parsing_is_separate_from_use() -> None:
    """A body of YAML can be parsed beside the loop; JSON and other types stay what they are."""
    parsed = parse_body((BASE + "data: {a: b}").encode(), YAML)
    assert isinstance(parsed, ParsedYaml)
    assert isinstance(parsed.outcome, tuple)
    assert parsed.outcome[0]["data"] == {"a": "b"}
    broken = parse_body(b"a: b: c", YAML)
    assert isinstance(broken, ParsedYaml)
    assert isinstance(broken.outcome, YamlError)
    for body, media_type in ((b"{}", YAML), (b"a: b: c", "application/json")):
        assert parse_body(body, media_type) is body


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r", "\u2028"])
async def test_tag_directives_are_bounded(api: Served, encoding: str, line_end: str) -> None:
    """Each is compared with all before it: 3 MB of them held the server for minutes."""
    lines = [f"%TAG !a{number}! b" for number in range(TAG_DIRECTIVES_MAX + 1)]
    text = line_end.join([*lines, "---", "{apiVersion: v1, kind: ConfigMap, metadata: {name: t}}"])
    reply = await api.call("POST", CONFIGMAPS, text.encode(encoding), type=YAML)
    assert reply.status == 400
    assert "exceeded max %TAG directives" in reply.message
    with pytest.raises(YamlError, match="TAG directives"):
        read_yaml(text, YamlLimits())
    allowed = line_end.join([*lines[1:], "---", "{name: t}"])
    assert read_yaml(allowed.encode(encoding), YamlLimits())[0] == {"name": "t"}


async def test_texts_may_speak_of_tags(api: Served) -> None:
    """A directive stands at the beginning of a line, and a text does not."""
    text = BASE + "data:\n  text: |\n" + "    %TAG !a! b\n" * (2 * TAG_DIRECTIVES_MAX)
    reply = await api.call("POST", CONFIGMAPS, text.encode(), type=YAML)
    assert reply.status == 201
    assert reply.json["data"]["text"].count("%TAG") == 2 * TAG_DIRECTIVES_MAX
