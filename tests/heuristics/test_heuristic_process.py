"""Heuristics in processes of their own: limits, pauses, and no process that stays behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.heuristics.process import (
    DeferredHeuristic,
    HeuristicLimits,
    IsolatedHeuristic,
    defer_heuristics,
    fetch_answers,
)
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristic_answers import (
    MAX_MESSAGE,
    Allotment,
    FailureCause,
    HeuristicFailure,
    Postponed,
    ZoneDemand,
)
from keepclose.routing.traffic_shares import ZoneNodes

NAME = "example.dev/Tried"
DEMAND = ZoneDemand({"a": 0.5, "b": 0.5}, {"a": 2, "b": 1}, {})
STAYED = Allotment({"a": {"a": 2}, "b": {"b": 1}})
QUICK = HeuristicLimits(allocate_s=0.3, first_pause_s=3600.0)
SLOW = HeuristicLimits(allocate_s=60.0, first_pause_s=3600.0)


def isolated(which: str, limits: HeuristicLimits = QUICK) -> IsolatedHeuristic:
    """Return one of the heuristics that the tests of running controllers use."""
    return IsolatedHeuristic(NAME, f"support.live.faulty_heuristics:{which}", limits=limits)


def children() -> set[int]:
    """Return the processes that this one started and that have not ended."""
    # NB: not by the lists of our threads: one that ends hands its list to another meanwhile.
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state = (process / "stat").read_text().rpartition(")")[2].split()
            if int(state[1]) == os.getpid():
                found.add(int(process.name))
    return found


def test_answers_come_from_one_process() -> None:
    """A heuristic is started once, whatever it prints, and asked as often as wanted."""
    heuristic = isolated("stay", HeuristicLimits(allocate_s=60.0))
    before = children()
    assert heuristic.allocate(DEMAND) == STAYED
    started = children() - before
    assert len(started) == 1
    assert [heuristic.allocate(DEMAND) for _ in range(3)] == [STAYED] * 3
    assert children() - before == started
    heuristic.close()
    assert children() - before == set()
    assert heuristic.allocate(DEMAND) == STAYED
    del heuristic
    assert children() - before == set()


def test_all_of_the_question_reaches_the_process() -> None:
    """Nodes, spread and source are there, and a group of all zones comes back."""
    nodes = {"a": ZoneNodes(2, 8000), "b": ZoneNodes(1, 4000)}
    demand = replace(DEMAND, nodes=nodes, spread={"a": {1: 2}, "b": {1: 1}})
    heuristic = isolated("shares_all", SLOW)
    assert heuristic.allocate(demand) == Allotment({"a": {"a,b": 2}, "b": {"a,b": 1}})
    assert isinstance(heuristic.allocate(DEMAND), HeuristicFailure)
    assert isinstance(heuristic.allocate(replace(demand, source="x")), HeuristicFailure)


def test_a_heuristic_that_changes_its_question_answers_the_next_one() -> None:
    """What it does to nodes and spread is gone with the question."""
    nodes = {"a": ZoneNodes(2, 8000), "b": ZoneNodes(1, 4000)}
    demand = replace(DEMAND, nodes=nodes, spread={"a": {1: 2}, "b": {1: 1}})
    heuristic = isolated("scribbles", SLOW)
    assert [heuristic.allocate(demand) for _ in range(2)] == [STAYED] * 2
    assert demand.nodes == nodes
    assert demand.spread == {"a": {1: 2}, "b": {1: 1}}


def test_answers_come_however_many_files_are_open() -> None:
    """A process with more than 1,024 connections asks as any other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        heuristic = isolated("stay", SLOW)
        assert heuristic.allocate(DEMAND) == STAYED
        heuristic.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("which", "cause", "message"),
    [
        pytest.param("spins", FailureCause.TIMED_OUT, "it did not answer within 0.3 s", id="hangs"),
        pytest.param(
            "exits", FailureCause.CRASHED, "its process ended with exit code 3", id="exits"
        ),
        pytest.param(
            "kills",
            FailureCause.CRASHED,
            f"its process was ended by signal {signal.SIGRTMIN + 6}",
            id="kills itself by a signal without a name",
        ),
        pytest.param(
            "absent",
            FailureCause.NOT_LOADED,
            "cannot load support.live.faulty_heuristics:absent: "
            "module 'support.live.faulty_heuristics' has no attribute "
            "'absent'",
            id="cannot be loaded",
        ),
    ],
)
def test_a_process_that_failed_is_left_alone_for_a_while(
    which: str, cause: FailureCause, message: str
) -> None:
    """Its failure is the answer to all who ask, without a process, until the pause ends."""
    before = children()
    # NB: only the one that hangs has to reach its limit, however busy the machine is.
    limits = QUICK if cause is FailureCause.TIMED_OUT else SLOW
    heuristic = isolated(which, limits)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(heuristic.allocate, [DEMAND] * 8))
    assert answers == [HeuristicFailure(cause, message)] * 8
    assert children() == before


CRASHED, RAISED = FailureCause.CRASHED, FailureCause.RAISED
PATIENT = HeuristicLimits(allocate_s=60.0, first_pause_s=0.0)


@pytest.mark.parametrize(
    ("which", "failure"),
    [
        pytest.param(
            "leaves", HeuristicFailure(CRASHED, "its process ended with exit code 4"), id="sys.exit"
        ),
        pytest.param(
            "signals",
            HeuristicFailure(CRASHED, f"its process was ended by signal {signal.SIGRTMIN + 6}"),
            id="real-time signal",
        ),
        pytest.param(
            "closes",
            HeuristicFailure(CRASHED, "its process ended with exit code 1"),
            id="closes all files",
        ),
        pytest.param(
            "nests",
            HeuristicFailure(CRASHED, "its process sent something that is no answer"),
            id="writes what is nested too deep",
        ),
        pytest.param(
            "hoards",
            HeuristicFailure(RAISED, "allocate raised MemoryError"),
            id="takes too much memory",
        ),
        pytest.param(
            "mumbles",
            HeuristicFailure(RAISED, "allocate raised ValueError: is no letter"),
            id="raises what has no bytes",
        ),
    ],
)
def test_whatever_a_heuristic_does_is_told_as_a_failure(
    which: str, failure: HeuristicFailure
) -> None:
    """The caller gets a Failure with the true cause, and loses no file or process each time."""
    heuristic = isolated(which, PATIENT)
    assert heuristic.allocate(DEMAND) == failure
    files, before = len(list(Path("/proc/self/fd").iterdir())), children()
    assert heuristic.allocate(DEMAND) == failure
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert len(children()) == len(before)


def test_a_failure_that_a_heuristic_words_itself_is_short_and_plain() -> None:
    """What becomes an Event and a condition has one line that an API server takes."""
    failure = isolated("rambles", PATIENT).allocate(DEMAND)
    assert isinstance(failure, HeuristicFailure)
    assert len(failure.message) <= MAX_MESSAGE
    assert failure.message.startswith("[2Jno idea [2Jno idea")
    assert failure.message.isprintable()


@pytest.mark.parametrize("which", ["forks", "forks_and_spins"])
def test_processes_that_a_heuristic_starts_end_with_it(which: str) -> None:
    """Neither closing nor a limit on time leaves a process behind."""
    heuristic = isolated(which)
    heuristic.allocate(DEMAND)
    heuristic.close()
    deadline = time.monotonic() + 60.0
    while found := _workers_of(f"support.live.faulty_heuristics:{which}"):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def _workers_of(value: str) -> list[str]:
    """Return the processes that run the heuristic, or were forked by one that does."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _runs(process):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if value.encode() in words and str(json.dumps(sys.path)).encode() in words:
                    found.append(process.name)
    return found


@pytest.mark.parametrize("which", ["returns_twice", "answers_first"])
def test_an_answer_too_many_is_none_to_the_next_question(which: str) -> None:
    """Each question gets the answer that was given to it, or none."""
    heuristic = isolated(which, PATIENT)
    demands = [ZoneDemand({"a": 1.0}, {"a": number}, {}) for number in range(1, 7)]
    for number, demand in enumerate(demands, start=1):
        answer = heuristic.allocate(demand)
        if number > 1:
            is_failure = isinstance(answer, HeuristicFailure) and answer.cause is CRASHED
            assert is_failure or answer == Allotment({"a": {"a": number}})


def test_files_of_any_number_are_waited_for() -> None:
    """A process that holds more than a thousand files asks heuristics like any other."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this machine lets no process open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert isolated("stay", PATIENT).allocate(DEMAND) == STAYED
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_after_the_pause_a_heuristic_is_asked_again(tmp_path: Path) -> None:
    """One that was repaired meanwhile answers, and its failures are forgotten."""
    marker = tmp_path / "repaired"
    (tmp_path / "mended_heuristic.py").write_text(
        "import os, support.live.faulty_heuristics\n"
        f"if not os.path.exists({str(marker)!r}): os._exit(1)\n"
        "heuristic = support.live.faulty_heuristics.stay\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        limits = HeuristicLimits(allocate_s=60.0, first_pause_s=0.0)
        heuristic = IsolatedHeuristic(NAME, "mended_heuristic:heuristic", limits=limits)
        first = heuristic.allocate(DEMAND)
        assert first == HeuristicFailure(FailureCause.CRASHED, "its process ended with exit code 1")
        marker.touch()
        assert heuristic.allocate(DEMAND) == STAYED
        assert heuristic._failures == 0
    finally:
        sys.path.remove(str(tmp_path))


def test_pauses_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer a heuristic fails, the more seldom it is tried."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    heuristic = IsolatedHeuristic(NAME, "none:none", limits=HeuristicLimits(start_s=60.0))
    monkeypatch.setattr(
        heuristic, "_ask", lambda _demand: HeuristicFailure(FailureCause.CRASHED, f"at {now:g}")
    )
    pauses = []
    for _ in range(8):
        assert heuristic.allocate(DEMAND) == HeuristicFailure(FailureCause.CRASHED, f"at {now:g}")
        pauses.append(heuristic._backoff_until - now)
        before, now = now, heuristic._backoff_until - 0.1
        assert heuristic.allocate(DEMAND) == HeuristicFailure(
            FailureCause.CRASHED, f"at {before:g}"
        )
        now += 0.1
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize("which", ["raises", "abuses"])
def test_an_answer_that_is_wrong_pauses_nothing(which: str) -> None:
    """What is wrong for one Service may be right for another, so the heuristic is asked again."""
    heuristic = isolated(which, SLOW)
    assert isinstance(heuristic.allocate(DEMAND), HeuristicFailure)
    assert heuristic._failure is None


def test_a_hung_heuristic_ends_without_its_parent() -> None:
    """Even when the parent is killed, the kernel ends the process at its limit."""
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_heuristic_process import DEMAND, HeuristicLimits, isolated\n"
        "from keepclose.heuristics.process import _WorkerProcess\n"
        "import msgspec, os\n"
        "limits = HeuristicLimits(allocate_s=1.0)\n"
        "worker = _WorkerProcess('example.dev/X', 'support.live.faulty_heuristics:spins', limits)\n"
        "assert worker.read_line(60.0) == b'ready'\n"
        "worker.write(b'1 ' + msgspec.json.encode(DEMAND) + b'\\n', 60.0)\n"
        "print(worker._popen.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    here = Path(__file__).parent
    paths = [*(path for path in sys.path if path), str(here), str(here.parent)]
    done = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    process = Path("/proc") / done.stdout.strip()
    deadline = time.monotonic() + 60.0
    while _runs(process):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(process: Path) -> bool:
    try:
        state = (process / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def test_a_deferred_heuristic_answers_only_when_fetched() -> None:
    """Asking costs nothing; fetching goes on in a thread until it is closed."""
    registry = defer_heuristics(
        {NAME: isolated("stay", HeuristicLimits(allocate_s=60.0)), "x/B": BALANCED}
    )
    assert registry["x/B"] is BALANCED
    deferred = registry[NAME]
    assert isinstance(deferred, DeferredHeuristic)
    assert deferred.allocate(DEMAND) == Postponed()
    assert await fetch_answers(registry, NAME, [DEMAND]) == [(DEMAND, STAYED)]
    assert await fetch_answers(registry, "x/B", [DEMAND]) == []


def test_closing_ends_an_answer_that_is_waited_for() -> None:
    """A controller that stops does not wait for a heuristic that hangs."""
    heuristic = isolated("spins", HeuristicLimits(allocate_s=3600.0))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(heuristic.allocate, DEMAND)
        deadline = time.monotonic() + 60.0
        while heuristic._process is None:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        heuristic.close()
        assert answer.result(60.0) == HeuristicFailure(
            FailureCause.CRASHED, "its process was ended by SIGKILL"
        )
