"""Data sets: regions, row by row, each with nodes and endpoints for every zone.

The two sets of KEP-2004 are enumerated as the simulator of the proposal did. Random rows are drawn
in chunks of fixed size whose generator is keyed by seed and chunk; so any part of any set can be
read at any time, in any order and by any thread, and is always the same. No set is ever held in
memory as a whole. Zones are in the order of their names. Only sets of given rows work without
numpy, which is imported when it is first needed.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final, NamedTuple

KEP2004_LARGE: Final = "kep2004-large"
KEP2004_SMALL: Final = "kep2004-small"
RANDOM_KINDS: Final = ("random", "random-skewed", "random-many-zones", "random-empty-zones")
DATASET_NAMES: Final = (KEP2004_LARGE, KEP2004_SMALL, *RANDOM_KINDS)
DEFAULT_ROWS: Final = 1_000_000
CHUNK_ROWS: Final = 4096
"""Random rows are drawn in chunks of this size; changing it changes every random data set."""
_BITS: Final = 2**64 - 1


class MissingExtraError(RuntimeError):
    """A feature needs packages that are not installed."""

    # NB: keepclose is on no package index, so no single command installs the extra everywhere.
    fix = "install the wheel of keepclose with its extra [sim]: docs/howto/install.md"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs numpy and numba; {self.fix}")


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

    Zone i gets the i-th number of both triples, so that large zones tend to have more endpoints.
    """

    def __init__(self, name: str, *, endpoints_up_to: int, high: bool) -> None:
        numpy = load_numpy(f"data set {name}")
        self.name = name
        self.zones = ("zone1", "zone2", "zone3")
        self._numpy = numpy
        self._triples = list(combinations_with_replacement(range(1, 11), 3))
        # Without any endpoint (the first triple) there is nothing to simulate.
        few = list(combinations_with_replacement(range(endpoints_up_to + 1), 3))[1:]
        many = list(combinations_with_replacement(range(100, 997, 7), 3)) if high else []
        self._section = len(few)
        self._nodes = numpy.array([*self._triples, (30, 30, 30)], dtype=numpy.int64)
        self._endpoints = numpy.array([*few, *many], dtype=numpy.int64)
        self.rows = len(self._triples) * len(few) + len(many)

    def read(self, start: int, stop: int) -> Block:
        """Return the rows, computed from their numbers."""
        return self.pick(self._numpy.arange(start, max(start, min(stop, self.rows))))._replace(
            start=start
        )

    def pick(self, chosen: Sequence[int]) -> Block:
        """Return the rows, computed from their numbers."""
        numpy = self._numpy
        rows = numpy.asarray(chosen, dtype=numpy.int64)
        section = numpy.minimum(rows // self._section, len(self._triples))
        # NB: the counts of the last section follow those that all others share.
        first = rows - section * self._section
        first += numpy.where(section == len(self._triples), self._section, 0)
        nodes = self._nodes[section].reshape(-1)
        return Block(0, len(rows), nodes, self._endpoints[first].reshape(-1))

    def label(self, row: int) -> str:
        """Return the label that the row has in the published lists."""
        section = min(row // self._section, len(self._triples))
        kind = str(self._triples[section]) if section < len(self._triples) else "high"
        return f"{row - section * self._section}-{kind}"


class RandomRows(DataSet):
    """Regions drawn at random; a kind says how many zones there are and how uneven they may be.

    Every row has at least one node and one endpoint.
    """

    def __init__(self, kind: str, *, rows: int, seed: int = 0) -> None:
        self._numpy = load_numpy(f"data set {kind}")
        self.name = kind
        self.rows = rows
        self.seed = seed
        width = 12 if kind == "random-many-zones" else 3
        self.zones = tuple(f"zone{number:0{len(str(width))}}" for number in range(1, width + 1))

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
    dataset: DataSet
    if name in RANDOM_KINDS:
        return RandomRows(name, rows=DEFAULT_ROWS if rows is None else rows, seed=seed)
    if name == KEP2004_LARGE:
        dataset = Kep2004(name, endpoints_up_to=100, high=True)
    elif name == KEP2004_SMALL:
        dataset = Kep2004(name, endpoints_up_to=20, high=False)
    else:
        raise UnknownDataSetError(f"no data set {name!r}; there are {', '.join(DATASET_NAMES)}")
    if rows is not None and rows < dataset.rows:
        return Sample(dataset, rows=rows, seed=seed)
    return dataset


def _scramble(seed: int, number: int) -> int:
    """Return 64 bits that look random, by the finaliser of SplitMix64."""
    bits = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _BITS
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _BITS
    return bits ^ (bits >> 31)
