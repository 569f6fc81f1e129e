"""Metrics as text, the way Prometheus reads it, under exactly the names that Kubernetes has.

Counters of Kubernetes' EndpointSlice controllers do not end in `_total`, which the library adds to
every counter; on the page it is left away where dashboards do not know it. Bounds of buckets are
labels, so they are written as Go writes them. The times at which series began are left out:
Kubernetes shows none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

_TOTAL: Final = "_total"
_CREATED: Final = "_created"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def render_metrics(registry: CollectorRegistry, *, bare: Collection[str] = ()) -> bytes:
    """Return all families of a registry; counters named in `bare` go without `_total`."""
    lines: list[str] = []
    for family in registry.collect():
        suffix = _TOTAL if family.type == "counter" and family.name not in bare else ""
        name = family.name + suffix
        lines += [f"# HELP {name} {_one_line(family)}", f"# TYPE {name} {family.type}"]
        for sample in family.samples:
            if sample.name != family.name + _CREATED:
                shown = family.name if sample.name == family.name + _TOTAL else sample.name
                lines.append(_line(name if shown == family.name else shown, sample))
    return "".join([f"{line}\n" for line in lines]).encode()


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(
        [
            f'{key}="{(_short(text) if key == "le" else text).translate(_ESCAPES)}"'
            for key, text in sorted(sample.labels.items())
        ]
    )
    shown = f"{{{labels}}}" if labels else ""
    return f"{name}{shown} {_short(repr(sample.value))}"


def _short(number: str) -> str:
    """Return a number as Go writes it, "2" and not "2.0"."""
    return number.removesuffix(".0")


def _one_line(family: Metric) -> str:
    return family.documentation.replace("\\", r"\\").replace("\n", r"\n")
