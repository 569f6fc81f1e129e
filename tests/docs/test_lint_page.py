"""The pages about lint: every rule is described, and what pipelines are told to run is valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from keepclose.advise.linting.rules import RULES
from keepclose.cli.main import app
from support.commands.commandlines import Call, find_mistake

ROOT = Path(__file__).parent.parent.parent
HOWTO = (ROOT / "docs" / "howto" / "lint.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "lint.md").read_text()
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
YAML_BLOCKS = re.findall(r"^```yaml\n(.*?)^```", HOWTO, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_has_a_section_of_its_own(rule: Any) -> None:
    """With its severity, why it matters and the fix; the table links to its heading."""
    anchor = f"{rule.id} {rule.name}".lower().replace(" ", "-")
    assert f"](#{anchor}) | {rule.severity} |" in REFERENCE
    section = REFERENCE.partition(f"### {rule.id} {rule.name}\n")[2].partition("\n### ")[0]
    assert rule.why in section
    assert f"Severity: {rule.severity}." in section
    assert rule.fix[1:] in section


def test_rule_names_are_unique_and_plain() -> None:
    """A name is part of an anchor and of reports."""
    names = [rule.name for rule in RULES.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)
    assert all(re.fullmatch(r"KC[0-9]{3}", rule) for rule in RULES)


def test_rules_that_the_howto_names_exist() -> None:
    """A reader finds them in the reference."""
    named = set(re.findall(r"KC\d{3}", HOWTO))
    assert named
    assert named <= set(RULES)


def calls_in(text: str) -> list[list[str]]:
    """Return the calls of keepclose lint in the commands of a pipeline."""
    found = re.findall(r"keepclose (lint [^\n>|]*)", text)
    return [shlex.split(call) for call in found]


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=range(len(YAML_BLOCKS)))
def test_pipelines_of_the_howto_are_yaml_with_valid_calls(block: str) -> None:
    """Options that a pipeline uses exist."""
    assert yaml.safe_load(block)
    for call in calls_in(block):
        assert (find_mistake(Call(tuple(call), whole=True)), call) == (None, call)


def test_the_howto_has_both_pipelines() -> None:
    """GitHub and GitLab run the command, several times in all."""
    assert sum(len(calls_in(block)) for block in YAML_BLOCKS) >= 4


def test_the_hook_of_pre_commit_runs() -> None:
    """pre-commit appends the changed files to the entry; files without objects to lint pass."""
    (hook,) = HOOKS
    assert hook["id"] in HOWTO
    program, *arguments = shlex.split(hook["entry"])
    assert program == "keepclose"
    example = str(ROOT / "examples" / "lint" / "shop.yaml")
    result = CliRunner().invoke(app, [*arguments, example])
    assert (result.exit_code, "KC101" in result.stdout) == (1, True)
    config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}"
    assert CliRunner().invoke(app, [*arguments, "-"], input=config).exit_code == 0
