"""The documentation says what is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keepclose.model import well_known
from keepclose.model.gates import Gate
from keepclose.routing.reasons import ReasonCode

ROOT = Path(__file__).parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
]
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_the_reference_is_up_to_date() -> None:
    """What `make docs` would write is what is there."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link points to a file or folder that exists."""
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_all_pages_are_among_all_pages() -> None:
    """A how-to that docs/README.md does not list is found by chance alone."""
    folder = ROOT / "docs"
    listed = {
        (folder / target).resolve() for target in LINK.findall((folder / "README.md").read_text())
    }
    assert {page.name for page in (folder / "howto").glob("*.md") if page not in listed} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_puts_data_where_every_user_can_write(page: Path) -> None:
    """A directory below /tmp may have been there before, with files of another user."""
    suggested = re.findall(r"--data-dir[ =](\S+)", page.read_text())
    assert [path for path in suggested if path.startswith(("/tmp", "/var/tmp", "/dev/shm"))] == []  # noqa: S108


def test_tests_that_pages_name_exist() -> None:
    """Each test file that a page names as a proof is there."""
    named = {
        name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())
    }
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_commands_in_the_readme_exist(tmp_path: Path) -> None:
    """Each way to read a dump of a cluster runs on one, and each make target is there."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
    dump = tmp_path / "cluster.yaml"
    dump.write_text((ROOT / "examples" / "three-zones.yaml").read_text())
    calls = re.findall(r"^(keepclose [^#\n]*-f cluster\.yaml[^#\n]*)", README, re.MULTILINE)
    assert len(calls) == 2
    for call in calls:
        script, *arguments = call.replace("cluster.yaml", str(dump)).split()
        done = subprocess.run(
            [Path(sys.executable).parent / script, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_two_commands_are_two() -> None:
    """The block has two lines, and tells of `make test` how long it takes, as that does itself."""
    block = README.partition("## Two commands\n\n```sh\n")[2].partition("```")[0]
    up, test = block.splitlines()
    assert up.startswith("make up ")
    told = re.search(r"^make test +# all tests, (about \d+ minutes on two cores)$", test)
    assert told is not None
    say = subprocess.run(
        # NB: the tests may run by make themselves, which would tell of directories then, and with
        # arguments of their own.
        ["make", "--no-print-directory", "--dry-run", "--old-file=.venv/.ready", "test"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={
            name: value
            for name, value in os.environ.items()
            if name not in ("MAKEFLAGS", "PYTEST_ARGS")
        },
    )
    assert say.stdout.startswith(f'echo "running all tests: {told[1]}"\n')


def test_the_simulations_in_the_readme_run(tmp_path: Path) -> None:
    """Each way to call the simulator runs, here on a sample of the inputs."""
    calls = re.findall(r"^\.venv/bin/(keepclose simulate[^#\n]*)", README, re.MULTILINE)
    assert len(calls) == 6
    for call in calls:
        script, *arguments = call.split()
        takes_rows = not {"churn", "few"} & set(arguments)
        sample = ["--sample", "300"] if takes_rows else []
        done = subprocess.run(
            [Path(sys.executable).parent / script, *arguments, *sample],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert "balanced" in done.stdout.lower()
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_every_gate_reason_and_annotation_is_documented() -> None:
    """Nothing that a user can meet is missing from the reference."""
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    annotations = [
        value for name, value in vars(well_known).items() if name.endswith("_ANNOTATION") and value
    ]
    of_services = [
        value
        for value in annotations
        if value.startswith(("keepclose.dev/", "service.kubernetes.io/"))
    ]
    for word in (*Gate, *ReasonCode, *of_services):
        assert f"`{word}`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_that_pages_name_exist(page: Path) -> None:
    """Every metric in any page is one of the reference; a name may be cut short by a star."""
    known = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text()))
    named = re.findall(
        r"\b((?:keepclose|kubeproxy|endpoint_slice\w*_controller|workqueue|apiserver)_\w+)(\*?)",
        page.read_text(),
    )
    for name, cut in named:
        assert any(one.startswith(name) for one in known) if cut else name in known, name
