"""The kernel settings of connection tracking."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from keepclose.proxy.conntrack import (
    ConntrackSettings,
    SysctlError,
    conntrack_max,
    desired_sysctls,
    set_sysctls,
)
from support.netns import namespaces_or_skip

NONE = ConntrackSettings(0, 0, 0, 0)
_AT = "net/netfilter/nf_conntrack_"


@pytest.mark.parametrize(
    ("settings", "cpus", "want"),
    [
        pytest.param(ConntrackSettings(), 2, 131072, id="the least"),
        pytest.param(ConntrackSettings(), 8, 262144, id="by cores"),
        pytest.param(ConntrackSettings(), 64, 1048576, id="the most"),
        pytest.param(ConntrackSettings(min=2000000), 1, 2000000, id="a least beyond the most"),
        pytest.param(ConntrackSettings(max_per_core=0), 8, 0, id="left alone"),
        pytest.param(ConntrackSettings(min=0), 2, 65536, id="no least"),
    ],
)
def test_how_many_flows(settings: ConntrackSettings, cpus: int, want: int) -> None:
    """Per core, at least so many, and a million at most."""
    assert conntrack_max(settings, cpus) == want


def test_what_is_written() -> None:
    """Defaults write three settings, zero none, everything six."""
    assert desired_sysctls(ConntrackSettings(), 2) == {
        f"{_AT}max": 131072,
        f"{_AT}tcp_timeout_established": 86400,
        f"{_AT}tcp_timeout_close_wait": 3600,
    }
    assert desired_sysctls(NONE, 2) == {}
    every = ConntrackSettings(1, 2, 3, 4, tcp_be_liberal=True, udp_timeout=5, udp_stream_timeout=6)
    assert desired_sysctls(every, 1) == {
        f"{_AT}max": 2,
        f"{_AT}tcp_timeout_established": 3,
        f"{_AT}tcp_timeout_close_wait": 4,
        f"{_AT}tcp_be_liberal": 1,
        f"{_AT}udp_timeout": 5,
        f"{_AT}udp_timeout_stream": 6,
    }


def machine(tmp_path: Path, maximum: int, buckets: int) -> tuple[Path, Path]:
    """Make files that stand in for a machine's settings."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "net/netfilter").mkdir(parents=True)
    (sys / "module/nf_conntrack/parameters").mkdir(parents=True)
    (proc / f"{_AT}max").write_text(f"{maximum}\n")
    (sys / "module/nf_conntrack/parameters/hashsize").write_text(f"{buckets}\n")
    return proc, sys


@pytest.mark.parametrize(
    ("maximum", "buckets", "want_written", "want_buckets"),
    [
        pytest.param(1, 1, ["max", "hashsize"], "32768", id="both grow"),
        pytest.param(1, 40000, ["max"], "40000\n", id="a larger hash stays"),
        pytest.param(131072, 32768, [], "32768\n", id="all well"),
        pytest.param(131072, 1, ["hashsize"], "32768", id="the hash alone"),
    ],
)
def test_the_table_of_flows(
    tmp_path: Path, maximum: int, buckets: int, want_written: list[str], want_buckets: str
) -> None:
    """The hash grows with the number of flows and never shrinks."""
    proc, sys = machine(tmp_path, maximum, buckets)
    settings = NONE._replace(max_per_core=32768, min=131072)
    written = set_sysctls(settings, cpus=2, proc=proc, sys=sys)
    assert [name.removeprefix(_AT) for name in written] == want_written
    assert int((proc / f"{_AT}max").read_text()) == 131072
    assert (sys / "module/nf_conntrack/parameters/hashsize").read_text() == want_buckets


def test_a_machine_without_connection_tracking(tmp_path: Path) -> None:
    """The error names the setting and the module."""
    with pytest.raises(SysctlError, match=r"cannot read .*_max: .*module nf_conntrack loaded\?"):
        set_sysctls(ConntrackSettings(), cpus=2, proc=tmp_path, sys=tmp_path)


def test_timeouts_in_a_namespace() -> None:
    """They are written where the thread is, once, and the log says from what to what."""
    settings = NONE._replace(tcp_established_timeout=4242, udp_timeout=17)
    with namespaces_or_skip("node") as [inside]:
        with capture_logs() as logs:
            first = inside.do(lambda: set_sysctls(settings))
        assert first == [f"{_AT}tcp_timeout_established", f"{_AT}udp_timeout"]
        assert [(one["name"], one["value"]) for one in logs] == [
            (f"{_AT}tcp_timeout_established", 4242),
            (f"{_AT}udp_timeout", 17),
        ]
        assert inside.do(lambda: set_sysctls(settings)) == []
        path = Path("/proc/sys", f"{_AT}udp_timeout")
        assert inside.do(path.read_text) == "17\n"
        assert path.read_text() != "17\n"


def test_a_value_that_cannot_be_written() -> None:
    """The number of flows belongs to the first namespace; the error says what to do."""
    with namespaces_or_skip("node") as [inside]:
        settings = NONE._replace(max_per_core=12345, min=0)
        with pytest.raises(SysctlError, match="; --no-tune-conntrack leaves all of them unchanged"):
            inside.do(lambda: set_sysctls(settings, cpus=1))
