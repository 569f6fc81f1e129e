"""The page about the architecture: its names exist, its map is up to date, its examples run."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEPS = re.findall(r"^\d+\. `([\w.]+)`:", PAGE, re.MULTILINE)
ROOMS = sorted(set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PAGE)) - set(STEPS))
sys.path.insert(0, str(ROOT / "scripts"))
import map as room_map  # noqa: E402 - scripts are no package

TESTING = (ROOT / "docs" / "howto" / "testing.md").read_text()


def find(name: str) -> object:
    """Return the module, class or function of a dotted name below keepclose."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(("keepclose", *parts[:length])))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"no module {name}")


@pytest.mark.parametrize("name", STEPS)
def test_the_function_of_a_walk_exists(name: str) -> None:
    """Every step names a function, a method or a property."""
    found = find(name)
    assert callable(found) or isinstance(found, property)


@pytest.mark.parametrize("name", ROOMS)
def test_the_module_that_is_named_exists(name: str) -> None:
    """Every module of the page can be imported."""
    assert find(name) is sys.modules[f"keepclose.{name}"]


def test_there_are_five_walks() -> None:
    """Each of ten steps or nearly so."""
    walks = PAGE.split("\n### ")[1:]
    counts = [len(re.findall(r"^\d+\. `", walk, re.MULTILINE)) for walk in walks]
    assert len(counts) == 5
    assert min(counts) >= 9
    assert sum(counts) == len(STEPS)


def test_the_map_is_drawn_from_the_imports() -> None:
    """A room or an import that is new changes the picture."""
    command = [sys.executable, str(ROOT / "scripts" / "map.py"), "--check"]
    subprocess.run(command, check=True)


def test_an_import_of_the_package_alone_leads_to_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports of rooms beside it are found."""
    for room in ("model", "routing"):
        (tmp_path / room).mkdir()
    imports = "import keepclose\nimport keepclose.model\nfrom keepclose import __version__\n"
    (tmp_path / "routing" / "topology.py").write_text(imports)
    monkeypatch.setattr(room_map, "SOURCE", tmp_path)
    assert room_map.read_imports() == {"routing": {"model"}}


def test_every_room_is_on_the_map() -> None:
    """All folders with code are there, except the fakes of tests."""
    picture = (ROOT / "docs" / "pictures" / "rooms.svg").read_text()
    folders = {path.parent.name for path in (ROOT / "src" / "keepclose").glob("*/__init__.py")}
    drawn = set(re.findall(r'class="name"[^>]*>(\w+)<', picture))
    assert drawn == folders - {"testing"}


def test_the_examples_of_the_fakes_run(tmp_path: Path) -> None:
    """The tests on the page about testing pass as they stand."""
    examples = re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)
    assert len(examples) == 3
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    [settings] = re.findall(r"```ini\n# pytest.ini\n(.*?)```", TESTING, re.DOTALL)
    (tmp_path / "pytest.ini").write_text(settings)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)], check=True
    )
