"""Files in which everything is wrong: the first hundred problems are told, the rest is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.inputs.object_files import MAX_PROBLEMS
from keepclose.cli.main import app

MANY = 2000
SERVICE = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}\n"


@pytest.mark.parametrize(
    ("each", "code", "last"),
    [
        pytest.param(SERVICE, 2, "error: and {:,} more problems", id="duplicates"),
        pytest.param(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s{0}}}, spec: {{ports: 7}}}}\n",
            2,
            "error: and {:,} more problems",
            id="wrong types",
        ),
        pytest.param(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n{0}}}}}\n",
            0,
            "warning: and {:,} more Nodes without a zone",
            id="Nodes without a zone",
        ),
        pytest.param(
            "{{apiVersion: v1, kind: Kind{0}, metadata: {{name: n}}}}\n",
            0,
            "warning: and {:,} more kinds that are not read",
            id="unknown kinds",
        ),
    ],
)
def test_no_file_prints_without_end(tmp_path: Path, each: str, code: int, last: str) -> None:
    """The command says how many it does not tell."""
    file = tmp_path / "many.yaml"
    texts = [each if each is SERVICE else each.format(number) for number in range(MANY)]
    file.write_text("---\n".join([SERVICE, *texts]))
    done = CliRunner().invoke(app, ["resolve", "-f", str(file)])
    assert done.exit_code == code
    assert last.format(MANY - MAX_PROBLEMS) in done.stderr.splitlines()
    assert len(done.stderr.splitlines()) <= 3 * MAX_PROBLEMS + 10
