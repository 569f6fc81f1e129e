"""A file of rates, which another program writes, as a source of demand.

It is read whole, within a limit, when it has changed. What is wrong with one Service is a note and
rejects that Service; a file that cannot be read at all is a `DemandReadError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from keepclose.demand.rates import MAX_DEMAND_BYTES, FileRates, parse_rates
from keepclose.demand.sources import DemandReadError, DemandReading
from keepclose.kube.clock import Clock
from keepclose.model.plain_text import make_plain
from keepclose.system.files import InputError, read_input
from keepclose.system.threads import ask_in_thread

_MOST_AHEAD_S: Final = 60.0
"""How far the time of a file may be ahead of the clock, as on a file server."""
_FIX: Final = "name a file with the columns namespace,service,zone,rate, or one of JSON"


class FileSource:
    """A file of rates, which is read again when it changes; its time is that of the change."""

    def __init__(self, path: str, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._content = FileRates({})

    def check(self) -> None:
        """Raise DemandReadError if the file cannot be read, or has other columns."""
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise self._explain(error) from error

    async def read(self) -> DemandReading:
        """Return the rates of the file; raise DemandReadError."""
        try:
            changed_at = await ask_in_thread(self._load)
        except (OSError, ValueError) as error:
            raise self._explain(error) from error
        age_s = self._clock.now() - changed_at
        if age_s < -_MOST_AHEAD_S:
            message = (
                f"--demand-file {make_plain(self._path, most=200)} was changed in the future; "
                "set the clock, or write the file again"
            )
            raise DemandReadError(message)
        rates, rejected, notes = self._content
        return DemandReading(rates, max(0.0, age_s), notes, rejected)

    def _explain(self, error: Exception) -> DemandReadError:
        name = make_plain(self._path, most=200)
        if isinstance(error, OSError):
            why = make_plain(error.strerror or str(error), most=200)
            fix = (isinstance(error, InputError) and error.fix) or _FIX
            return DemandReadError(f"--demand-file {name} cannot be read: {why}; {fix}")
        # NB: what is wrong in the file is said with its name.
        return DemandReadError(f"--demand-file {make_plain(str(error), most=500)}")

    def _load(self) -> float:
        status = Path(self._path).stat()
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            data = read_input(self._path, most=MAX_DEMAND_BYTES, takes_pipes=False)
            name = make_plain(self._path, most=200)
            self._content = parse_rates(data, name=name)
            self._seen = seen
        return status.st_mtime
