"""Recognizes kustomizations and Helm charts, which are not manifests until a program renders them.

Read as they are, their files would give a wrong answer: patches, prefixes, namespaces and values
are missing. The problem names the command that renders them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, NamedTuple

KUSTOMIZATION_NAMES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""The names by which kustomize finds its file in a directory."""
CHART_NAME: Final = "Chart.yaml"
_TEMPLATES: Final = "templates"
_READ_ON: Final = "| keepclose ... -f -"


class Unrendered(NamedTuple):
    """What a path is, and the command that renders it."""

    text: str
    fix: str


def find_unrendered(path: Path) -> Unrendered | None:
    """Return what must be rendered before it can be read; None for manifests."""
    try:
        directory = path if path.is_dir() else path.parent
        if path.name in KUSTOMIZATION_NAMES or (directory == path and _has_kustomization(path)):
            return Unrendered(
                "this is a kustomization, whose manifests must be built first",
                f"kubectl kustomize {_quote(directory)} {_READ_ON}",
            )
        chart = directory.parent if _is_below_chart(directory) else directory
        if path.name == CHART_NAME or (
            (directory == path or chart != directory) and (chart / CHART_NAME).is_file()
        ):
            return Unrendered(
                "this is a Helm chart, whose templates must be rendered first",
                f"helm template {_quote(chart)} {_READ_ON}",
            )
    except (OSError, ValueError):
        # A path that cannot be looked at is reported when it is read.
        return None
    return None


def _has_kustomization(directory: Path) -> bool:
    return any((directory / name).is_file() for name in KUSTOMIZATION_NAMES)


def _is_below_chart(directory: Path) -> bool:
    return directory.name == _TEMPLATES and (directory.parent / CHART_NAME).is_file()


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
