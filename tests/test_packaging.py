"""What is in the wheel, and what it needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "keepclose"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {"numba", "numpy", "uvloop"}
# What the interface of aiohttp is made of; it brings them.
BROUGHT = {"multidict", "yarl"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as `make wheel` does, by the backend alone."""
    folder = tmp_path_factory.mktemp("dist")
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return folder / done.stdout.split()[-1]


def test_everything_is_in_the_wheel(wheel: Path) -> None:
    """Modules, types of the API, manifests: each file of the package is there."""
    want = {
        f"keepclose/{file.relative_to(PACKAGE)}"
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("keepclose/")}
    assert held == want
    assert "keepclose/apiserver/schema/definitions.json" in held


def test_the_wheel_runs_without_extras(wheel: Path, tmp_path: Path) -> None:
    """The API server starts from the files of the wheel, without any package of an extra."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        f"for name in {sorted(OPTIONAL)!r}: sys.modules[name] = None\n"
        "import keepclose; print(keepclose.__file__, flush=True)\n"
        "from keepclose.cli.main import run; run()\n"
    )
    arguments = ["apiserver", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.terminate()
        assert process.wait(20) == 0
    assert lines[0].strip() == str(tmp_path / "site" / "keepclose" / "__init__.py")
    assert lines[1].startswith("keepclose apiserver ready at https://127.0.0.1:")


def test_nothing_is_needed_that_is_not_declared() -> None:
    """What is imported is a dependency of the base, unless it is optional or for tests alone."""
    declared = {_name(one) for one in PROJECT["dependencies"]}
    providers = packages_distributions()
    needed = {
        _name(providers[module][0])
        for module in set(_imported_modules())
        if module in providers and module != "keepclose"
    }
    assert needed - OPTIONAL - BROUGHT == declared


def test_extras() -> None:
    """Each extra adds what its name says, and `all` everything."""
    extras = {
        extra: {_name(one) for one in needed}
        for extra, needed in PROJECT["optional-dependencies"].items()
    }
    assert extras["server"] == {"uvloop"}
    assert extras["sim"] == {"numba", "numpy"}
    assert PROJECT["optional-dependencies"]["lab"] == ["keepclose[server]"]
    assert PROJECT["optional-dependencies"]["dask"][0] == "keepclose[sim]"
    assert extras["dask"] == {"keepclose", "distributed"}
    assert PROJECT["optional-dependencies"]["all"] == ["keepclose[dask,server,sim]"]


def test_nothing_is_to_be_installed_that_no_index_has() -> None:
    """A bare name behind pip install would be the package of others."""
    advice = re.compile(r"(?:install|--from|uvx)\s+['\"]?keepclose(?![-\w*/.])|keepclose\[\w")
    texts = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "scripts").iterdir(),
        *ROOT.glob("*.md"),
        ROOT / "Makefile",
    ]
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in texts
        if file.is_file()
        for line in file.read_text().splitlines()
        if advice.search(line)
    ]
    assert found == []


def _imported_modules() -> Iterator[str]:
    for file in set(PACKAGE.rglob("*.py")) - set((PACKAGE / "testing").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0]


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return match.group().lower().replace("_", "-")
