"""The directory of a cluster: who has it, and what is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keepclose.lab.cluster.data_dir import (
    BusyError,
    ClusterDirectory,
    ClusterDirectoryError,
    ClusterState,
    claim_data_dir,
    clear_unheld,
    holder_of,
    identify_self,
    is_held,
    parse_holder,
)

STATE = ClusterState(7, "https://127.0.0.1:6443", "/k", {"zone-a": ["n1"]}, True)


def test_nothing_is_left_of_a_directory_that_is_not_kept(tmp_path: Path) -> None:
    """Everything in it goes with the cluster, whatever that wrote."""
    home = ClusterDirectory(tmp_path / "home")
    claim = claim_data_dir(home)
    (home.directory / "pki").mkdir()
    (home.directory / "pki" / "key").touch()
    assert is_held(home)
    claim.release()
    assert not home.directory.exists()
    assert not is_held(home)


def test_objects_stay_in_a_directory_that_is_kept(tmp_path: Path) -> None:
    """Only what tells of a running cluster goes."""
    home = ClusterDirectory(tmp_path / "home", is_kept=True)
    claim = claim_data_dir(home)
    (home.directory / "objects.db").touch()
    home.write_state(STATE)
    home.socket.touch()
    claim.release()
    assert sorted(path.name for path in home.directory.iterdir()) == ["logs", "objects.db"]


def test_two_clusters_cannot_have_one_directory(tmp_path: Path) -> None:
    """The second is told who has it."""
    home = ClusterDirectory(tmp_path / "home")
    claim = claim_data_dir(home)
    assert holder_of(home) == parse_holder(identify_self())
    with pytest.raises(BusyError, match=rf"already \(process {os.getpid()}\)"):
        claim_data_dir(home)
    home.write_state(STATE)
    with pytest.raises(BusyError, match=r"already \(process 7, https://127.0.0.1:6443\)"):
        claim_data_dir(home)
    claim.release()
    assert holder_of(home) is None
    claim_data_dir(home).release()


def test_a_command_that_stops_the_holder_names_its_directory(tmp_path: Path) -> None:
    """The directory was given by name, so keepclose down would not find it by itself."""
    home = ClusterDirectory(tmp_path / "my home", is_kept=True)
    claim = claim_data_dir(home)
    want = re.escape(f"stop it with keepclose down --data-dir '{home.directory}', or choose")
    with pytest.raises(BusyError, match=want):
        claim_data_dir(home)
    claim.release()


def test_files_of_others_are_never_removed(tmp_path: Path) -> None:
    """A directory with other things in it is refused, and they stay."""
    (tmp_path / "thesis.txt").touch()
    home = ClusterDirectory(tmp_path)
    with pytest.raises(ClusterDirectoryError, match="holds files that no cluster created"):
        claim_data_dir(home)
    home.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """With what to do about it."""
    (tmp_path / "file").touch()
    with pytest.raises(ClusterDirectoryError, match=r"Not a directory; choose another directory"):
        claim_data_dir(ClusterDirectory(tmp_path / "file" / "home"))


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """What it left is removed by the next one."""
    home = ClusterDirectory(tmp_path / "home")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from keepclose.lab.cluster.data_dir import ClusterDirectory, claim_data_dir\n"
        "home = ClusterDirectory(Path(sys.argv[1])); claim = claim_data_dir(home)\n"
        "(home.directory / 'left').touch(); print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.directory)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(BusyError):
            claim_data_dir(home)
        os.kill(process.pid, signal.SIGKILL)
    assert not is_held(home)
    claim = claim_data_dir(home)
    assert not (home.directory / "left").exists()
    claim.release()


def test_a_state_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """As if there were no cluster."""
    home = ClusterDirectory(tmp_path)
    assert home.read_state() is None
    (tmp_path / "lab.json").write_text("{")
    assert home.read_state() is None
    home.write_state(STATE)
    assert home.read_state() == STATE


def test_looking_changes_nothing(tmp_path: Path) -> None:
    """Whoever only asks makes no directory and takes nothing from one who claims it."""
    home = ClusterDirectory(tmp_path / "home")
    assert not is_held(home)
    clear_unheld(home)
    assert not home.directory.exists()
    assert not is_held(ClusterDirectory(tmp_path / "home" / "lab.lock" / "deeper"))
    claim = claim_data_dir(home)
    clear_unheld(home)
    assert is_held(home)
    claim.release()


def test_the_holder_is_named_before_anything_else(tmp_path: Path) -> None:
    """A number that a killed holder left is never told as that of the next one."""
    home = ClusterDirectory(tmp_path / "home")
    home.directory.mkdir()
    (home.directory / "made-by-keepclose-up").touch()
    (home.directory / "lab.lock").write_text("4242 and more digits than the next one has")
    claim = claim_data_dir(home)
    assert holder_of(home) == parse_holder(identify_self())
    claim.release()


def test_a_directory_that_somebody_keeps_is_never_emptied(tmp_path: Path) -> None:
    """Also when a cluster that was killed had made it for itself."""
    fleeting, kept = (
        ClusterDirectory(tmp_path / "home"),
        ClusterDirectory(tmp_path / "home", is_kept=True),
    )
    # As the kernel does for one that is killed.
    os.close(claim_data_dir(fleeting)._file)
    claim = claim_data_dir(kept)
    (kept.directory / "store.db").touch()
    claim.release()
    clear_unheld(fleeting)
    fleeting.clear()
    assert (kept.directory / "store.db").exists()
