"""Tests of credentials from a program, with real programs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.kube.auth.credentials import ClientCertificate, Proof
from keepclose.kube.auth.exec_plugin import ExecCredentials, ExecSpec
from keepclose.kube.clock import SystemClock
from keepclose.kube.errors import ConfigError
from keepclose.testing.fake_clock import FakeClock

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def answer(version: str = V1, **status: Any) -> str:
    """Return what a good program prints."""
    found = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return msgspec.json.encode(found).decode()


class Program:
    """A shell script that prints what it is told to and notes each run."""

    def __init__(self, folder: Path, script: str) -> None:
        self.path = folder / "login"
        self._runs = folder / "runs"
        self.path.write_text(f"#!/bin/sh\necho run >> {self._runs}\n{script}\n")
        self.path.chmod(0o755)

    @property
    def runs(self) -> int:
        """How often it ran."""
        return self._runs.read_text().count("run") if self._runs.exists() else 0


def prints(text: str) -> str:
    """Return a script that prints a text."""
    return f"cat <<'END'\n{text}\nEND"


class WallClock(SystemClock):
    """The machine's clock with a wall time that a test sets."""

    def __init__(self, now: float) -> None:
        self.time = now

    def now(self) -> float:
        """Return the time that was set."""
        return self.time


def spec(program: Program, **more: Any) -> ExecSpec:
    """Return the entry of a program."""
    found = {"api_version": V1, "source": "/kc", "field": "users[a].user.exec", **more}
    return ExecSpec(command=str(program.path), **found)


def credentials(program: Program, **more: Any) -> ExecCredentials:
    """Return credentials from a program by the machine's clock."""
    return ExecCredentials(spec(program, **more), clock=SystemClock())


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_a_token_comes_from_the_program(tmp_path: Path, version: str) -> None:
    """Both versions are understood, and an answer without an end is kept."""
    program = Program(tmp_path, prints(answer(version, token="abc")))  # noqa: S106
    found = credentials(program, api_version=version)
    assert await found.proof() == Proof("Bearer abc")
    assert await found.proof() == Proof("Bearer abc")
    assert program.runs == 1


async def test_a_certificate_comes_from_the_program(tmp_path: Path) -> None:
    """Instead of a token, or beside it, a certificate with its key."""
    text = answer(clientCertificateData="CHAIN", clientKeyData="KEY")
    found = credentials(Program(tmp_path, prints(text)))
    assert await found.proof() == Proof("", ClientCertificate(b"CHAIN", b"KEY"))


async def test_the_program_runs_again_when_its_answer_expires(tmp_path: Path) -> None:
    """Five seconds before the end the program is asked anew."""
    program = Program(
        tmp_path,
        prints(answer(token="t", expirationTimestamp="2026-01-31T12:00:00Z")),  # noqa: S106
    )
    clock = WallClock(1769860794.0)  # 11:59:54
    found = ExecCredentials(spec(program), clock=clock)
    await found.proof()
    await found.proof()
    assert program.runs == 1
    clock.time += 1
    await found.proof()
    assert program.runs == 2


async def test_a_401_makes_the_program_run_again(tmp_path: Path) -> None:
    """After forgetting, the next proof is a new one."""
    program = Program(tmp_path, prints(answer(token="t")))  # noqa: S106
    found = credentials(program)
    await found.proof()
    assert found.forget() is True
    await found.proof()
    assert program.runs == 2


async def test_many_requests_wait_for_one_run(tmp_path: Path) -> None:
    """Requests that come together share one run."""
    program = Program(tmp_path, prints(answer(token="t")))  # noqa: S106
    found = credentials(program)
    proofs = await asyncio.gather(*(found.proof() for _ in range(5)))
    assert proofs == [Proof("Bearer t")] * 5
    assert program.runs == 1


async def test_the_program_is_told_what_it_needs(tmp_path: Path) -> None:
    """Arguments, variables and the cluster reach it; ours too, and stdin is empty."""
    script = (
        f'printf "%s\\n" "$1" "$REGION" "$OURS" "$KUBERNETES_EXEC_INFO" > {tmp_path}/told; '
        f"cat > {tmp_path}/input\n" + prints(answer(token="t"))  # noqa: S106
    )
    found = ExecCredentials(
        spec(
            Program(tmp_path, script),
            args=("--quiet please",),
            env=(("REGION", "eu"),),
            cluster={"server": "https://x"},
        ),
        clock=SystemClock(),
        environ={**os.environ, "OURS": "yes", "REGION": "us"},
    )
    await found.proof()
    *told, info = (tmp_path / "told").read_text().splitlines()
    assert told == ["--quiet please", "eu", "yes"]
    assert msgspec.json.decode(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://x"}},
    }
    assert (tmp_path / "input").read_text() == ""


FIX = f"it must print an ExecCredential of {V1} with a status"


@pytest.mark.parametrize(
    ("script", "want"),
    [
        pytest.param(
            "echo 'no  such\nprofile' >&2; exit 3",
            "users[a].user.exec: {path} failed with exit code 3: no such profile; run it by hand",
            id="fails with a word",
        ),
        pytest.param(
            "exit 1",
            "users[a].user.exec: {path} failed with exit code 1; run it by hand",
            id="fails silently",
        ),
        pytest.param(
            "echo secret",
            "users[a].user.exec: {path} did not print JSON: JSON is malformed: "
            "invalid character (byte 0); " + FIX,
            id="prints no JSON",
        ),
        pytest.param(
            prints('{"kind":"Status"}'),
            "users[a].user.exec: {path} printed Status of no version; " + FIX,
            id="prints something else",
        ),
        pytest.param(
            prints(answer(V1BETA1, token="t")),  # noqa: S106
            "users[a].user.exec: {path} printed ExecCredential of " + V1BETA1 + "; " + FIX,
            id="prints another version",
        ),
        pytest.param(
            prints(answer()),
            "users[a].user.exec: {path} returned neither a token nor a certificate with its key; "
            + FIX,
            id="gives nothing",
        ),
        pytest.param(
            prints(answer(clientCertificateData="C")),
            "users[a].user.exec: {path} returned neither a token nor a certificate with its key; "
            + FIX,
            id="gives a certificate without a key",
        ),
        pytest.param(
            prints(answer(token="t", expirationTimestamp="soon")),  # noqa: S106
            "users[a].user.exec: {path} returned an expirationTimestamp of 'soon'; "
            "it must be like 2026-01-31T12:00:00Z",
            id="gives a strange time",
        ),
    ],
)
async def test_a_program_that_fails_is_an_error(tmp_path: Path, script: str, want: str) -> None:
    """What the program did wrong is said with the field that names it."""
    program = Program(tmp_path, script)
    with pytest.raises(ConfigError) as raised:
        await credentials(program).proof()
    assert str(raised.value) == "/kc: " + want.replace("{path}", str(program.path))


async def test_a_missing_program_comes_with_its_hint(tmp_path: Path) -> None:
    """The kubeconfig's own hint says how to get the program."""
    program = Program(tmp_path, "")
    program.path.unlink()
    with pytest.raises(ConfigError) as raised:
        await credentials(program, install_hint="brew install login").proof()
    assert str(raised.value) == (
        f"/kc: users[a].user.exec.command: the program '{program.path}' was not found; "
        "brew install login"
    )
    with pytest.raises(ConfigError, match="install it, or name another user in the context"):
        await credentials(program).proof()


async def test_a_program_that_is_none_is_an_error(tmp_path: Path) -> None:
    """A file that may be run but cannot be is told apart from a missing one."""
    program = Program(tmp_path, "")
    program.path.write_bytes(b"\x7fELFnothing")
    with pytest.raises(ConfigError, match=r"cannot run .*: Exec format error; check that it is"):
        await credentials(program).proof()


async def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """After a minute the program is killed and the caller told."""
    clock = FakeClock()
    program = Program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    task = asyncio.create_task(ExecCredentials(spec(program), clock=clock).proof())
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await clock.advance(60)
    with pytest.raises(ConfigError, match="did not answer within 60 s; run it by hand"):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_s_variables_do_not_show(tmp_path: Path) -> None:
    """The repr of an entry has its command only."""
    entry = spec(Program(tmp_path, ""), env=(("KEY", "hidden"),), args=("hidden",))
    assert repr(entry) == f"ExecSpec('{tmp_path}/login')"
