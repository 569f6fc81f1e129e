"""The connection of a sweep to a Dask scheduler, on which nothing waits without a limit.

Dask limits the time of some calls and not of others: a port that accepts and says nothing, or a
scheduler that stands still, would hold its client for good. Each question therefore has a limit
from outside, and so have the goodbyes. An address is checked before Dask is imported; no message
shows a password that is in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, Final, TypeVar

from keepclose.model.plain_text import make_plain
from keepclose.simulate.datasets import MissingExtraError
from keepclose.simulate.sweep_task import describe_differences
from keepclose.system.threads import call_within

SCHEDULER_ANSWER_S: Final = 10.0
"""A scheduler must accept the connection within this time, or the next one if that is shorter."""
WORKER_WAIT_S: Final = 60.0
"""By default a sweep ends when there has been no worker for this time; it is also the longest that
a sweep waits for an answer of its scheduler."""
_MARGIN_S: Final = 1.0
_CANCEL_S: Final = 3.0
_CLOSE_S: Final = 2.0
_CLUSTER_PACKAGES: Final = ("dask", "distributed")
_SCHEMES: Final = ("tcp", "tls")
_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>[^:/]*)://)?(?P<host>\[[0-9a-fA-F:.]+(?:%\w+)?\]|[\w.-]+)?(?::(?P<port>[0-9]{1,5}))?"
)
_TLS_FIX: Final = (
    "start dask scheduler with TLS, and name the certificates to both: docs/howto/sweeps.md"
)
_HIGHEST_PORT: Final = 65535

_T = TypeVar("_T")


class SweepFault(StrEnum):
    """Why a sweep could not be run."""

    UNREACHABLE = "Unreachable"
    NO_WORKERS = "NoWorkers"
    OTHER_VERSIONS = "OtherVersions"
    FAILED = "Failed"
    BAD_REQUEST = "BadRequest"


class SweepError(RuntimeError):
    """A sweep that could not be run or finished; `fix` says what to do."""

    def __init__(self, fault: SweepFault, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fault = fault
        self.fix = fix


class SweepCluster:
    """A scheduler that is connected; `client` is for calls that wait for no answer."""

    def __init__(self, client: Any, scheduler: str, *, answer_s: float) -> None:
        self.client = client
        self._scheduler = scheduler
        self._answer_s = min(answer_s, WORKER_WAIT_S)
        self._is_silent = False

    def count_threads(self) -> int:
        """Return the threads of all workers, 0 without workers."""
        return sum(self._ask(self.client.nthreads).values())

    def check_versions(self) -> None:
        """Raise SweepError if scheduler or workers run other versions of Dask or Python."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._ask(lambda: self.client.get_versions(packages=["keepclose"]))
        want = _pick_versions(found["client"])
        others = {f"the scheduler at {self._scheduler}": found["scheduler"]}
        others |= {f"the worker at {name}": versions for name, versions in found["workers"].items()}
        for name, versions in others.items():
            differences = describe_differences(want, _pick_versions(versions))
            if differences:
                raise refuse_versions(f"{name} has {differences}")

    def cancel(self, futures: list[Any]) -> None:
        """Cancel tasks, none if there are none; a scheduler that does not answer is not asked.

        It drops the tasks of a client whose connection ends.
        """
        if futures and not self._is_silent:
            with suppress(Exception):
                call_within(_CANCEL_S, lambda: self.client.cancel(futures, force=True), _go_on)

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Return the answer of the scheduler; raises SweepError when there is none in time."""
        answers: list[_T] = []
        try:
            call_within(self._answer_s, lambda: answers.append(question()), _go_on)
        except TimeoutError as error:
            self._is_silent = True
            raise SweepError(
                SweepFault.UNREACHABLE,
                f"the scheduler at {self._scheduler} has gone: it has not answered for "
                f"{self._answer_s:g} s",
                "start it again, and run the sweep again",
            ) from error
        return answers[0]


def check_address(scheduler: str) -> None:
    """Raise SweepError if this cannot be the address of a scheduler; Dask is not needed for it."""
    match = _ADDRESS.fullmatch(scheduler)
    if "@" in scheduler:
        problem = "it has a user or a password"
    elif match is None:
        problem = "it is no address"
    elif match["scheme"] not in {None, *_SCHEMES}:
        problem = f"unknown scheme {match['scheme']}"
    elif match["host"] is None:
        problem = "missing host"
    elif match["port"] is None:
        problem = "missing port"
    elif not 0 < int(match["port"]) <= _HIGHEST_PORT:
        problem = f"no port {match['port']}"
    else:
        return
    raise _refuse_address(scheduler, problem)


def load_distributed() -> Any:
    """Return the module of Dask; raises MissingExtraError without it."""
    if importlib.util.find_spec("distributed") is None:
        raise MissingExtraError("--scheduler", "dask and distributed", extra="dask")
    distributed = importlib.import_module("distributed")
    # What its log says of lost connections and killed workers, an error or a retry says here.
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return distributed


@contextmanager
def connected_cluster(
    distributed: Any, scheduler: str, *, answer_s: float
) -> Iterator[SweepCluster]:
    """Connect to a scheduler; raises SweepError when that fails or takes too long."""
    connect_s = min(SCHEDULER_ANSWER_S, answer_s)
    # NB: a client whose constructor fails or never returns must be closed too.
    client = distributed.Client.__new__(distributed.Client)

    def connect() -> None:
        client.__init__(scheduler, timeout=connect_s, set_as_default=False)

    try:
        try:
            # Differences between versions are checked, with words of our own.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call_within(connect_s + _MARGIN_S, connect, _go_on)
        except (OSError, MemoryError) as error:
            # NB: Dask takes the first bytes of another program for the size of a message.
            is_other = isinstance(error, MemoryError)
            why = "another program listens there" if is_other else in_words(error)
            raise SweepError(
                SweepFault.UNREACHABLE,
                f"no Dask scheduler answers at {scheduler}: {why}",
                _TLS_FIX
                if scheduler.startswith("tls:")
                else "start one with dask scheduler, and pass the address that it prints",
            ) from error
        except Exception as error:
            raise _refuse_address(scheduler, in_words(error)) from error
        yield SweepCluster(client, scheduler, answer_s=answer_s)
    finally:
        try:
            with suppress(Exception):
                call_within(_CLOSE_S, lambda: client.close(timeout=_CLOSE_S), _go_on)
        finally:
            # NB: a client that is not closed waits for its scheduler when it is deleted.
            client.status = "closed"


def refuse_versions(what: str) -> SweepError:
    """Return the error for a machine with other versions."""
    return SweepError(
        SweepFault.OTHER_VERSIONS,
        what,
        "install the same wheel of keepclose with its extra [dask] on all machines: "
        "docs/howto/sweeps.md",
    )


def in_words(error: BaseException | None) -> str:
    """Return the text of an error in one visible line, its type if it has none."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an error of a worker has any text, or fails to have one
        text = ""
    return make_plain(text, most=300) or type(error).__name__


def _refuse_address(scheduler: str, problem: str) -> SweepError:
    # A password may hold any character, so all up to the last @ is hidden.
    shown = re.sub(r"^([a-zA-Z0-9+.-]*://)?.*@", r"\1***@", scheduler, flags=re.DOTALL)
    return SweepError(
        SweepFault.UNREACHABLE,
        f"{shown} cannot be used as a scheduler: {problem}",
        _TLS_FIX
        if scheduler.startswith("tls:") and "@" not in scheduler
        else "pass an address such as tcp://HOST:8786, as dask scheduler prints it",
    )


def _pick_versions(found: Any) -> dict[str, str]:
    packages = found.get("packages") if isinstance(found, dict) else None
    if not isinstance(packages, dict):
        packages = {}
    versions = {name: str(packages.get(name) or "") for name in (*_CLUSTER_PACKAGES, "keepclose")}
    return versions | {"python": ".".join(str(packages.get("python") or "").split(".")[:2])}


def _go_on() -> None:
    """Leave a late call to its thread, which does not keep the process from ending."""
