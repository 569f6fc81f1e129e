"""Data sets: regions, row by row, each with nodes and endpoints for every zone.

The two sets of KEP-2004 are enumerated as the simulator of the proposal did, and two more in the
same way for four and five zones. Random rows are drawn in chunks of fixed size whose generator is
keyed by seed and chunk; so any part of any set can be read at any time, in any order and by any
thread or machine, and is always the same. No set is ever held in memory as a whole: a set by name
is pickled as its generator, without rows. Zones are in the order of their names. Only sets of given
rows work without numpy, which is imported when it is first needed.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from keepclose.simulate.ascending_counts import AscendingCounts

KEP2004_LARGE: Final = "kep2004-large"
KEP2004_SMALL: Final = "kep2004-small"
KEP2004_4_ZONES: Final = "kep2004-4zones"
KEP2004_5_ZONES: Final = "kep2004-5zones"
RANDOM_KINDS: Final = ("random", "random-skewed", "random-many-zones", "random-empty-zones")
DATASET_NAMES: Final = (
    KEP2004_LARGE,
    KEP2004_SMALL,
    KEP2004_4_ZONES,
    KEP2004_5_ZONES,
    *RANDOM_KINDS,
)
DEFAULT_ROWS: Final = 1_000_000
CHUNK_ROWS: Final = 4096
"""Random rows are drawn in chunks of this size; changing it changes every random data set."""
# Zones, most endpoints of a zone outside of the part of equal zones, and whether that part exists.
_ENUMERATED: Final = {
    KEP2004_LARGE: (3, 100, True),
    KEP2004_SMALL: (3, 20, False),
    KEP2004_4_ZONES: (4, 100, True),
    KEP2004_5_ZONES: (5, 100, True),
}
_BITS: Final = 2**64 - 1


class MissingExtraError(RuntimeError):
    """A feature needs packages that are not installed."""

    # NB: keepclose is on no package index, so no single command installs the extra everywhere.
    fix = "install the wheel of keepclose with its extra [sim]: docs/howto/install.md"

    def __init__(self, what: str, packages: str = "numpy and numba", *, extra: str = "sim") -> None:
        self.fix = MissingExtraError.fix.replace("[sim]", f"[{extra}]")
        super().__init__(f"{what} needs {packages}; {self.fix}")


class UnknownDataSetError(ValueError):
    """The name of a data set that does not exist."""


class Block(NamedTuple):
    """Consecutive rows, flat: `nodes[row*zones+zone]`, and endpoints likewise."""

    start: int
    rows: int
    nodes: Sequence[int]
    endpoints: Sequence[int]


class DataSet(ABC):
    """Rows that can be read in any order; `zones` are names in byte order."""

    name: str
    zones: tuple[str, ...]
    rows: int
    is_generated: bool = False
    """Whether a pickled copy holds no rows, because a few numbers define all of them."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Block:
        """Return the rows from `start` up to `stop`, at most to the last row."""

    @abstractmethod
    def pick(self, chosen: Sequence[int]) -> Block:
        """Return single rows by their numbers, in that order, as a block that starts at 0."""

    @abstractmethod
    def label(self, row: int) -> str:
        """Return the label of a row."""

    def blocks(self, size: int) -> Iterator[Block]:
        """Return all rows in blocks of `size`, the last one shorter."""
        for start in range(0, self.rows, size):
            yield self.read(start, start + size)


def load_numpy(what: str) -> Any:
    """Return numpy; raises MissingExtraError with the feature that needs it."""
    if importlib.util.find_spec("numpy") is None:
        raise MissingExtraError(what)
    return importlib.import_module("numpy")


class InMemoryRows(DataSet):
    """Rows in memory, as flat sequences in the order of the zones' names."""

    def __init__(
        self,
        zones: Sequence[str],
        nodes: Sequence[int],
        endpoints: Sequence[int],
        *,
        labels: Sequence[str] | None = None,
        name: str = "rows",
    ) -> None:
        self.name = name
        self.zones = tuple(zones)
        self.rows = len(nodes) // max(1, len(self.zones))
        self._nodes = nodes
        self._endpoints = endpoints
        self._labels = labels

    def read(self, start: int, stop: int) -> Block:
        """Return the rows as slices of the given sequences."""
        stop = min(stop, self.rows)
        width = len(self.zones)
        part = slice(start * width, stop * width)
        return Block(start, stop - start, self._nodes[part], self._endpoints[part])

    def pick(self, chosen: Sequence[int]) -> Block:
        """Return copies of the rows."""
        width = len(self.zones)
        cells = [row * width + zone for row in chosen for zone in range(width)]
        nodes = [int(self._nodes[cell]) for cell in cells]
        return Block(0, len(chosen), nodes, [int(self._endpoints[cell]) for cell in cells])

    def label(self, row: int) -> str:
        """Return the given label, or the number of the row where there are none."""
        return str(row) if self._labels is None else self._labels[row]


class Kep2004(DataSet):
    """Ascending counts of nodes times ascending counts of endpoints, and a part of equal zones.

    Zone i gets the i-th number of both tuples, so that large zones tend to have more endpoints.
    """

    is_generated = True

    def __init__(self, name: str, *, endpoints_up_to: int, high: bool, zones: int = 3) -> None:
        numpy = load_numpy(f"data set {name}")
        self.name = name
        self.zones = tuple(f"zone{number}" for number in range(1, zones + 1))
        self._numpy = numpy
        nodes = AscendingCounts(numpy, range(1, 11), zones)
        self._sections = nodes.total
        self._nodes = numpy.concatenate(
            [nodes.pick(numpy.arange(nodes.total)), numpy.full((1, zones), 30)]
        )
        self._few = AscendingCounts(numpy, range(endpoints_up_to + 1), zones)
        self._many = AscendingCounts(numpy, range(100, 997, 7) if high else (), zones)
        # Without any endpoint (the first tuple) there is nothing to simulate.
        self._section = self._few.total - 1
        self.rows = self._sections * self._section + self._many.total

    def __reduce__(self) -> tuple[Callable[[str], DataSet], tuple[str]]:
        """Return how to open the set again, which is all that a copy needs."""
        return open_again, (self.name,)

    def read(self, start: int, stop: int) -> Block:
        """Return the rows, computed from their numbers."""
        return self.pick(self._numpy.arange(start, max(start, min(stop, self.rows))))._replace(
            start=start
        )

    def pick(self, chosen: Sequence[int]) -> Block:
        """Return the rows, computed from their numbers."""
        numpy = self._numpy
        rows = numpy.asarray(chosen, dtype=numpy.int64)
        section = numpy.minimum(rows // self._section, self._sections)
        first = rows - section * self._section
        high = section == self._sections
        if not high.any():
            endpoints = self._few.pick(first + 1)
        elif high.all():
            endpoints = self._many.pick(first)
        else:
            endpoints = numpy.empty((len(rows), len(self.zones)), dtype=numpy.int64)
            endpoints[~high] = self._few.pick(first[~high] + 1)
            endpoints[high] = self._many.pick(first[high])
        return Block(0, len(rows), self._nodes[section].reshape(-1), endpoints.reshape(-1))

    def label(self, row: int) -> str:
        """Return the label that the row has in the published lists."""
        section = min(row // self._section, self._sections)
        is_high = section == self._sections
        kind = "high" if is_high else str(tuple(self._nodes[section].tolist()))
        return f"{row - section * self._section}-{kind}"


class RandomRows(DataSet):
    """Regions drawn at random; a kind says how many zones there are and how uneven they may be.

    Every row has at least one node and one endpoint.
    """

    is_generated = True

    def __init__(self, kind: str, *, rows: int, seed: int = 0) -> None:
        self._numpy = load_numpy(f"data set {kind}")
        self.name = kind
        self.rows = rows
        self.seed = seed
        width = 12 if kind == "random-many-zones" else 3
        self.zones = tuple(f"zone{number:0{len(str(width))}}" for number in range(1, width + 1))

    def __reduce__(self) -> tuple[Callable[..., DataSet], tuple[str, int, int]]:
        """Return how to draw the rows again, which is all that a copy needs."""
        return _draw_again, (self.name, self.rows, self.seed)

    def read(self, start: int, stop: int) -> Block:
        """Return the rows from the chunks they belong to."""
        return self.pick(self._numpy.arange(start, max(start, min(stop, self.rows))))._replace(
            start=start
        )

    def pick(self, chosen: Sequence[int]) -> Block:
        """Return the rows; each chunk that holds any of them is drawn once."""
        numpy = self._numpy
        rows = numpy.asarray(chosen, dtype=numpy.int64)
        nodes = numpy.empty((len(rows), len(self.zones)), dtype=numpy.int64)
        endpoints = numpy.empty_like(nodes)
        chunks = rows // CHUNK_ROWS
        for chunk in numpy.unique(chunks):
            in_chunk = chunks == chunk
            drawn_nodes, drawn_endpoints = self._draw(int(chunk))
            nodes[in_chunk] = drawn_nodes[rows[in_chunk] % CHUNK_ROWS]
            endpoints[in_chunk] = drawn_endpoints[rows[in_chunk] % CHUNK_ROWS]
        return Block(0, len(rows), nodes.reshape(-1), endpoints.reshape(-1))

    def label(self, row: int) -> str:
        """Return kind, seed and number of the row."""
        return f"{self.name}-{self.seed}-{row}"

    def _draw(self, chunk: int) -> tuple[Any, Any]:
        numpy = self._numpy
        key = (self.seed % 2**64, chunk)
        draw = numpy.random.Generator(numpy.random.Philox(key=numpy.array(key, dtype="uint64")))
        shape = (CHUNK_ROWS, len(self.zones))
        nodes = draw.integers(1, 51, shape)
        # Small services are as frequent as large ones: the range of each row is drawn first.
        largest = 2 ** draw.integers(1, 8, (CHUNK_ROWS, 1))
        endpoints = draw.integers(0, largest + 1, shape)
        favoured = draw.integers(0, shape[1], CHUNK_ROWS)
        all_rows = numpy.arange(CHUNK_ROWS)
        if self.name == "random-skewed":
            nodes[all_rows, favoured] *= draw.integers(4, 21, CHUNK_ROWS)
        elif self.name == "random-empty-zones":
            # A third of the zones has neither nodes nor endpoints, another third has no endpoints.
            state = draw.integers(0, 3, shape)
            nodes[state == 0] = 0
            endpoints[state <= 1] = 0
        without_nodes = nodes.sum(axis=1) == 0
        nodes[without_nodes, favoured[without_nodes]] = 1
        without_endpoints = endpoints.sum(axis=1) == 0
        endpoints[without_endpoints, favoured[without_endpoints]] = 1
        return nodes, endpoints


class Sample(DataSet):
    """Rows of another data set in its order: one row is drawn from each of its equal parts.

    The row depends on the seed and the number of the part alone.
    """

    def __init__(self, source: DataSet, *, rows: int, seed: int = 0) -> None:
        self.name = source.name
        self.zones = source.zones
        self.rows = max(0, min(rows, source.rows))
        self.source = source
        self.seed = seed
        self.is_generated = source.is_generated

    def read(self, start: int, stop: int) -> Block:
        """Return the drawn rows, each read from the source."""
        chosen = [self._choose(row) for row in range(start, min(stop, self.rows))]
        return self.source.pick(chosen)._replace(start=start)

    def pick(self, chosen: Sequence[int]) -> Block:
        """Return the drawn rows of these numbers."""
        return self.source.pick([self._choose(row) for row in chosen])

    def label(self, row: int) -> str:
        """Return the label the row has in the source."""
        return self.source.label(self._choose(row))

    def _choose(self, row: int) -> int:
        first = row * self.source.rows // self.rows
        behind = (row + 1) * self.source.rows // self.rows
        return first + _scramble(self.seed, row) % (behind - first)


def open_dataset(name: str, *, rows: int | None = None, seed: int = 0) -> DataSet:
    """Return a data set by name, cut down to a sample of `rows` where it has more.

    Random sets have a million rows by default. Raises UnknownDataSetError for other names.
    """
    if name in RANDOM_KINDS:
        return RandomRows(name, rows=DEFAULT_ROWS if rows is None else rows, seed=seed)
    dataset = open_again(name)
    if rows is not None and rows < dataset.rows:
        return Sample(dataset, rows=rows, seed=seed)
    return dataset


def open_again(name: str) -> DataSet:
    """Return an enumerated data set, one object for each name.

    Raises UnknownDataSetError for other names.
    """
    if name not in _ENUMERATED:
        raise UnknownDataSetError(f"no data set {name!r}; there are {', '.join(DATASET_NAMES)}")
    # NB: a set that was opened before is not served without numpy.
    load_numpy(f"data set {name}")
    return _open_enumerated(name)


@lru_cache(maxsize=2)
def _open_enumerated(name: str) -> DataSet:
    zones, endpoints_up_to, high = _ENUMERATED[name]
    return Kep2004(name, endpoints_up_to=endpoints_up_to, high=high, zones=zones)


def _draw_again(kind: str, rows: int, seed: int) -> DataSet:
    return RandomRows(kind, rows=rows, seed=seed)


def _scramble(seed: int, number: int) -> int:
    """Return 64 bits that look random, by the finaliser of SplitMix64."""
    bits = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _BITS
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _BITS
    return bits ^ (bits >> 31)
