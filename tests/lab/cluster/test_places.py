"""Names of places inside a lab, and how commands get there."""

from __future__ import annotations

import pytest

from keepclose.lab.access import LabRefusal
from keepclose.lab.cluster.handlers import find_place, is_mapped
from keepclose.system.namespaces import enter_command

FDS = {
    "outside": 3,
    "n1": 4,
    "client/n1": 5,
    "default/web-1": 6,
    "default/db": 7,
    "other/db": 8,
}


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("outside", 3, id="the outside host"),
        pytest.param("n1", 4, id="a node before the client on it"),
        pytest.param("client/n1", 5, id="the client on a node"),
        pytest.param("web-1", 6, id="a pod without its namespace"),
        pytest.param("other/db", 8, id="a pod with its namespace"),
        pytest.param("pod/web-1", 6, id="a pod as kubectl names it"),
        pytest.param("pods/web-1", 6, id="a pod as kubectl may be told of it"),
    ],
)
def test_finding(name: str, want: int) -> None:
    """A place is found by its name."""
    assert find_place(FDS, name) == want


@pytest.mark.parametrize(
    ("name", "want", "want_code"),
    [
        pytest.param(
            "db", "several pods are called 'db': default/db, other/db", 2, id="two pods of a name"
        ),
        pytest.param(
            "pod/db",
            "several pods are called 'db': default/db, other/db",
            2,
            id="two pods of a name, as kubectl names them",
        ),
        pytest.param(
            "web-2",
            "no node or pod is called 'web-2'; name a node (n1), client/NODE for its clients, "
            "a pod, or outside; did you mean default/web-1?",
            3,
            id="close to a pod",
        ),
        pytest.param(
            "x",
            "no node or pod is called 'x'; name a node (n1), client/NODE for its clients, "
            "a pod, or outside",
            3,
            id="close to nothing",
        ),
    ],
)
def test_not_finding(name: str, want: str, want_code: int) -> None:
    """Whoever names no place, or two, is told what there is."""
    with pytest.raises(LabRefusal) as refusal:
        find_place(FDS, name)
    assert (str(refusal.value), refusal.value.code) == (want, want_code)


def test_entering() -> None:
    """Namespaces are entered by the files of their process, and its user namespace before."""
    assert enter_command(["ip", "route"], pid=12, fd=7, user_namespace=False) == [
        "nsenter",
        "--net=/proc/12/fd/7",
        "--",
        "ip",
        "route",
    ]
    assert enter_command(["sh"], pid=12, fd=7, user_namespace=True) == [
        "nsenter",
        "--user=/proc/12/ns/user",
        "--preserve-credentials",
        "--net=/proc/12/fd/7",
        "--",
        "sh",
    ]


@pytest.mark.parametrize(
    ("uid_map", "want"),
    [
        pytest.param("         0          0 4294967295\n", False, id="the machine itself"),
        pytest.param("         0       1000          1\n", True, id="one user as root"),
        pytest.param("  0 1000 1\n  1 100000 65536\n", False, id="a container with many users"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_user_namespaces(uid_map: str, want: bool) -> None:
    """A process that made itself root has one user alone."""
    assert is_mapped(uid_map) is want
