"""Every call of keepclose in any page is one that the command line understands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.commands.commandlines import Call, find_calls, find_mistake

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

PAGE = """
`keepclose proxy` and `keepclose-proxy`, also `kubectl keepclose resolve ...`.
```sh
.venv/bin/keepclose apiserver --data-dir /tmp/x &   # a comment
keepclose controller \\
  --mode=webhook
kubectl exec a -- keepclose proxy status
curl x | keepclose resolve -f - > out; sudo FOO=1 keepclose proxy --cleanup
```
```text
keepclose nothing
```
```console
$ keepclose resolve -f a.yaml
keepclose nothing
```
"""


BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BACKGROUND = re.compile(r"(?<!&)&[ \t]*(?:#.*)?$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_uses_a_program_before_it_is_ready(page: Path) -> None:
    """A block can be pasted: none starts a program in the background and goes on at once."""
    for block in BLOCK.findall(page.read_text()):
        assert not BACKGROUND.search(block), block


def test_calls_are_found() -> None:
    """Those in blocks for a shell count as whole, those in the text as mentioned."""
    assert list(find_calls(PAGE)) == [
        Call(("apiserver", "--data-dir", "/tmp/x"), whole=True),  # noqa: S108
        Call(("controller", "--mode=webhook"), whole=True),
        Call(("proxy", "status"), whole=True),
        Call(("resolve", "-f", "-"), whole=True),
        Call(("proxy", "--cleanup"), whole=True),
        Call(("resolve", "-f", "a.yaml"), whole=True),
        Call(("proxy",), whole=False),
        Call(("resolve",), whole=False),
    ]


@pytest.mark.parametrize(
    ("arguments", "whole", "want"),
    [
        (("proxy", "status", "-o", "json"), True, None),
        (("controller", "--leader-elect=false"), True, None),
        (("--version",), True, None),
        (("resolve", "-h"), True, None),
        (("resolve",), False, None),
        (("completion",), True, "Missing parameter: shell"),
        (("reslove",), False, "no such command: reslove"),
        (("proxy", "stats"), False, "no such command: stats"),
        (("proxy", "--nodename", "n1"), False, "No such option: --nodename"),
        (("proxy", "--writer", "iptables"), True, "'iptables' is not one of"),
        (("apiserver", "--data-dir", "x", "--port", "70000"), True, "not in the range 0<=x<=65535"),
    ],
)
def test_mistakes_are_found(arguments: tuple[str, ...], whole: bool, want: str | None) -> None:
    """Commands, options and values are checked; only what is merely mentioned may be incomplete."""
    mistake = find_mistake(Call(arguments, whole))
    assert (mistake is None) if want is None else (want in str(mistake))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_call_is_understood(page: Path) -> None:
    """Nobody is told to type what does not exist."""
    for call in find_calls(page.read_text()):
        assert (find_mistake(call), call) == (None, call)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "docs" / "howto").rglob("*.yaml")), ids=lambda file: file.name
)
def test_every_container_is_understood(file: Path) -> None:
    """The commands in manifests are whole calls too, also those of a shell."""
    resources = list(yaml.safe_load_all(file.read_text()))
    specs = [spec for resource in resources for spec in pod_specs(resource)]
    rights = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert specs or {resource["kind"] for resource in resources} <= rights
    for spec in specs:
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            program, *arguments = container["command"]
            if program == "sh":
                calls = list(find_calls(f"```sh\n{arguments[-1]}\n```"))
                assert calls or "initContainers" in spec
            else:
                assert program == "keepclose"
                calls = [Call(tuple(arguments), whole=True)]
            for call in calls:
                assert (find_mistake(call), call) == (None, call)


def pod_specs(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the specs of the pods that a workload creates."""
    spec = resource.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    if "template" in spec:
        yield spec["template"]["spec"]
