"""Rights and reasons: a network without root, and the kernel's word where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import keepclose
from keepclose.lab.network.privilege import (
    become_root,
    missing_tool,
    raise_file_limit,
    why_no_packets,
)
from keepclose.system.namespaces import search_path

_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_BEGIN = """
import json, os
from keepclose.system.namespaces import NetworkError
from keepclose.lab.network.privilege import become_root, why_no_packets
from keepclose.lab.network.underlay import Underlay

def tell(**what):
    print(json.dumps(what))

def become():
    try:
        become_root()
    except NetworkError as error:
        return str(error)
    return ""

"""


@contextlib.contextmanager
def _as_nobody() -> Iterator[list[str]]:
    """Give the command line for Python without any rights; it is given the script's text."""
    if os.geteuid() != 0:
        yield [sys.executable, "-c"]
        return
    # NB: nobody may look neither into this checkout nor into the folders of a test.
    with tempfile.TemporaryDirectory(prefix="keepclose-") as folder:
        Path(folder).chmod(0o755)
        package = Path(folder, "keepclose")
        package.mkdir()
        package.joinpath("__init__.py").touch()
        here = Path(keepclose.__file__).parent
        for room in ("lab/network", "system"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(here / room, package / room, ignore=ignored)
        package.joinpath("lab", "__init__.py").touch()
        path = f"PYTHONPATH={folder}"
        for python in (sys.executable, "/usr/bin/python3"):
            line = [*_NOBODY, "env", path, python, "-B", "-c"]
            trial = (
                "import sys, keepclose.lab.network.privilege; sys.exit(sys.version_info < (3, 11))"
            )
            if subprocess.run([*line, trial], cwd="/", capture_output=True, check=False).returncode:
                continue
            yield line
            return
        pytest.skip("no Python here that somebody without rights may run")


def _run(line: list[str], script: str) -> dict[str, object]:
    done = subprocess.run(
        [*line, _BEGIN + script],
        cwd="/",
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def _refused(said: object) -> bool:
    """Return whether this machine gives nobody a user namespace."""
    return str(said).startswith("not root, and the kernel")


def test_a_network_without_root() -> None:
    """Whoever has no rights gets them in a user namespace, and packets go from pod to pod there."""
    script = """
said = become()
if said:
    tell(said=said)
else:
    reason = why_no_packets()
    seen = []
    with Underlay() as underlay:
        underlay.add_nodes(["n1", "n2"])
        one, other = underlay.add_pods([("n1", "a"), ("n2", "b")])
        import socket
        for address in other.addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = other.namespace.open_socket(family)
            listener.bind((address, 80))
            listener.listen()
            caller = one.namespace.open_socket(family)
            caller.settimeout(20)
            caller.connect((address, 80))
            seen.append(listener.accept()[1][0])
    tell(said=said, user=os.geteuid(), reason=reason, seen=seen)
"""
    with _as_nobody() as line:
        answer = _run(line, script)
    if _refused(answer["said"]):
        pytest.skip(str(answer["said"]))
    assert answer == {
        "said": "",
        "user": 0,
        "reason": "",
        "seen": ["10.244.1.3", "fd00:244:1::3"],
    }


def test_the_kernel_gives_no_networks() -> None:
    """The kernel's own word is told where there is a user namespace but no network in it."""
    script = """
said = become()
if not said:
    open("/proc/sys/user/max_net_namespaces", "w").write("0")
tell(said=said, reason=why_no_packets())
"""
    with _as_nobody() as line:
        answer = _run(line, script)
    if _refused(answer["said"]):
        pytest.skip(str(answer["said"]))
    want = "the kernel makes no network namespace: No space left on device"
    assert answer == {"said": "", "reason": want}


@pytest.mark.parametrize(
    ("limit", "want"),
    [
        pytest.param("user", "user namespaces", id="no user namespaces"),
        pytest.param("net", "network namespaces", id="user namespaces without networks"),
    ],
)
def test_the_kernel_gives_no_rights(limit: str, want: str) -> None:
    """Who is refused is told why, and is what it was before."""
    script = f"""
import ctypes
said = become()
if said:
    tell(said=said)
else:
    # In here a limit can be set that holds for namespaces within.
    open("/proc/sys/user/max_{limit}_namespaces", "w").write("0")
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        # But for CAP_SETFCAP, without which root of one namespace is never root of another.
        if number != 31:
            libc.prctl(24, number, 0, 0, 0)
    os.execve("/proc/self/exe", ["python3", "-B", "-c", INNER], os.environ)
"""
    inner = (
        _BEGIN
        + """
before = os.readlink("/proc/self/ns/user")
said = become()
tell(said=said, same=before == os.readlink("/proc/self/ns/user"), reason=why_no_packets())
"""
    )
    with _as_nobody() as line:
        answer = _run(line, f"INNER = {inner!r}\n{script}")
    if "same" not in answer:
        pytest.skip(str(answer["said"]))
    assert answer == {
        "said": f"not root, and the kernel refuses {want}: No space left on device",
        "same": True,
        "reason": "the kernel makes no network namespace: Operation not permitted",
    }


def test_rights_are_taken_before_threads() -> None:
    """With other threads there is no way into a user namespace, which is told."""
    script = """
import threading
event = threading.Event()
thread = threading.Thread(target=event.wait)
thread.start()
said = become()
event.set()
tell(said=said)
"""
    with _as_nobody() as line:
        answer = _run(line, script)
    assert answer == {"said": "rights over a user namespace must be taken before there are threads"}


def test_who_has_rights_stays_what_it_is() -> None:
    """Root keeps its own user namespace."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    before = Path("/proc/self/ns/user").readlink()
    become_root()
    assert Path("/proc/self/ns/user").readlink() == before


def test_trials_leave_nothing_behind() -> None:
    """A trial changes neither the links of the machine nor the files of this process."""

    def look() -> tuple[set[str], set[str]]:
        links = {one.name for one in Path("/sys/class/net").iterdir()}
        return links, {one.name for one in Path("/proc/self/fd").iterdir()}

    why_no_packets()
    before = look()
    why_no_packets()
    assert look() == before


@pytest.mark.parametrize(
    ("tools", "want"),
    [
        pytest.param((), "ip is not installed (package iproute2)", id="nothing"),
        pytest.param(("ip",), "nft is not installed (package nftables)", id="only ip"),
        pytest.param(
            ("ip", "nft"), "nsenter is not installed (package util-linux)", id="all but nsenter"
        ),
        pytest.param(("ip", "nft", "nsenter"), "", id="all"),
    ],
)
def test_missing_tools(tmp_path: Path, tools: tuple[str, ...], want: str) -> None:
    """The first tool that is missing is told, with what brings it."""
    for tool in tools:
        tmp_path.joinpath(tool).touch(0o755)
    assert missing_tool(str(tmp_path)) == want


_NO_BRIDGES = """#!/bin/sh
lines=$(cat)
case "$lines" in *"type bridge"*)
  echo "Error: Unknown device type." >&2
  echo "Command failed -:1" >&2
  exit 1
esac
echo "$lines" | exec IP "$@"
"""
_NO_RULES = """#!/bin/sh
echo "Error: Could not process rule: Operation not supported" >&2
echo "table ip keepclose-trial {" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("tool", "script", "want"),
    [
        pytest.param(
            "ip",
            _NO_BRIDGES,
            "the kernel makes no bridges:"
            " trial: ip link add br0 type bridge: Error: Unknown device type.",
            id="bridges",
        ),
        pytest.param(
            "nft",
            _NO_RULES,
            "the kernel takes no rules of ip: nft: Error: Could not process rule:"
            " Operation not supported table ip keepclose-trial {",
            id="rules",
        ),
    ],
)
def test_the_kernel_lacks_something(
    tool: str, script: str, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be made is told with the words of the tool that tried."""
    if reason := why_no_packets():
        pytest.skip(reason)
    real = shutil.which(tool, path=search_path())
    tmp_path.joinpath(tool).write_text(script.replace("IP", real or ""))
    tmp_path.joinpath(tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert why_no_packets() == want


def test_as_many_files_as_possible() -> None:
    """The soft limit becomes the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
