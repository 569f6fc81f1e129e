"""Kubeconfigs whose addresses and programs are odd: the file and the field are named, soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.kube.auth.exec_plugin import ExecCredentials, ExecSpec
from keepclose.kube.auth.kubeconfig import load_kubeconfig
from keepclose.kube.clock import SystemClock
from keepclose.kube.errors import ConfigError

VERSION = "client.authentication.k8s.io/v1"


def write_kubeconfig(path: Path, cluster: dict[str, Any]) -> Path:
    """Write a kubeconfig of one cluster."""
    path.write_bytes(
        msgspec.json.encode(
            {
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": cluster}],
                "contexts": [{"name": "c", "context": {"cluster": "k"}}],
            }
        )
    )
    return path


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://",
        "http://[::1",
        "http://127.0.0.1:1\n\x1b[31m",
        "http://\u202eexample.invalid",
    ],
)
@pytest.mark.parametrize("field", ["server", "proxy-url"])
def test_an_address_that_cannot_be_is_named(tmp_path: Path, field: str, url: str) -> None:
    """No address ends in an error of the library that reads it."""
    cluster = {"server": "https://127.0.0.1", field: url}
    path = write_kubeconfig(tmp_path / "config", cluster)
    with pytest.raises(ConfigError, match="is not an HTTP URL; write it as https://HOST") as found:
        load_kubeconfig(path)
    assert found.value.file == str(path)
    assert found.value.field == f"clusters[k].cluster.{field}"


@pytest.mark.parametrize("stream", ["", ">&2"])
async def test_a_program_that_prints_without_end_is_ended(stream: str) -> None:
    """Neither of its pipes is read for as long as it may run."""
    spec = ExecSpec(VERSION, "sh", args=("-c", f"exec cat /dev/zero {stream}"))
    with pytest.raises(ConfigError, match="printed more than 1 MiB; run it by hand"):
        await ExecCredentials(spec, clock=SystemClock()).proof()


async def test_a_program_that_cannot_be_called_is_named() -> None:
    """Variables and arguments that no program can be given are told."""
    for spec in (
        ExecSpec(VERSION, "sh", args=("a\0b",)),
        ExecSpec(VERSION, "sh", env=(("A", "\0"),)),
    ):
        with pytest.raises(ConfigError, match="cannot run"):
            await ExecCredentials(spec, clock=SystemClock()).proof()


async def test_nested_answers_of_a_program_are_refused() -> None:
    """Depth alone makes no error of Python's."""
    program = "import sys; sys.stdout.write('{\"status\":' + '[' * 100000)"
    spec = ExecSpec(VERSION, "python3", args=("-c", program))
    with pytest.raises(ConfigError, match="did not print JSON"):
        await ExecCredentials(spec, clock=SystemClock()).proof()
