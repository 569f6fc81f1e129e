"""Check the layout of the code: `python scripts/rooms.py`, part of `make check`.

No folder holds more than 22 modules, the package at most 620; a public name is defined in one
module, with at most 20 exceptions; sentences name the component that acts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src" / "keepclose"
MAX_MODULES: Final = 620
MAX_IN_A_FOLDER: Final = 22
MAX_DOUBLE_NAMES: Final = 20
_VAGUE: Final = re.compile(
    r"\b(?:whoever|somebody|someone|nobody|anybody|anew)\b(?!['\"])", re.IGNORECASE
)
# The user without rights that Unix systems have.
_USER_NOBODY: Final = re.compile(r"\"nobody\"|'nobody'|user nobody")


def main() -> int:
    """Print what breaks a rule, and return 1 when anything does."""
    modules = sorted(SOURCE.rglob("*.py"))
    broken = [
        *check_folders(modules),
        *check_double_names(modules),
        *(problem for module in modules for problem in check_prose(module)),
    ]
    for problem in broken:
        sys.stderr.write(f"{problem}\n")
    if not broken:
        folders = {module.parent for module in modules}
        double = len(find_double_names(modules))
        sys.stdout.write(
            f"{len(modules)} modules in {len(folders)} folders, {double} names defined twice\n"
        )
    return 1 if broken else 0


def check_folders(modules: list[Path]) -> Iterator[str]:
    """Yield the folders that hold too many modules."""
    if len(modules) > MAX_MODULES:
        yield f"{len(modules)} modules; at most {MAX_MODULES}"
    in_folder: defaultdict[Path, int] = defaultdict(int)
    for module in modules:
        in_folder[module.parent] += module.name != "__init__.py"
    for folder, number in sorted(in_folder.items()):
        if number > MAX_IN_A_FOLDER:
            yield f"{_shown(folder)}: {number} modules; at most {MAX_IN_A_FOLDER}"


def check_double_names(modules: list[Path]) -> Iterator[str]:
    """Yield the public names with several definitions, when there are too many."""
    double = find_double_names(modules)
    if len(double) > MAX_DOUBLE_NAMES:
        yield f"{len(double)} public names are defined twice; at most {MAX_DOUBLE_NAMES}"
        for name, places in sorted(double.items()):
            yield f"  {name}: {', '.join(map(_shown, places))}"


def find_double_names(modules: list[Path]) -> dict[str, list[Path]]:
    """Return the public names that several modules define at their top level."""
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for module in modules:
        for name in _public_names(ast.parse(module.read_text())):
            places[name].append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def check_prose(module: Path) -> Iterator[str]:
    """Yield the lines whose words leave open which component acts."""
    for number, line in enumerate(module.read_text().splitlines(), 1):
        vague = _VAGUE.search(line)
        if vague and not _USER_NOBODY.search(line):
            yield f"{_shown(module)}:{number}: {vague[0]!r}: name the component that acts"


def _public_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def _shown(path: Path) -> str:
    return str(path.relative_to(SOURCE.parent))


if __name__ == "__main__":
    sys.exit(main())
