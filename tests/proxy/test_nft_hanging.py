"""Programs and libraries that hang, fail or are not what they seem."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from keepclose.proxy.nft.libnftables import LibnftablesWriter
from keepclose.proxy.nft.select_writer import NftCommandWriter
from keepclose.proxy.nft.writer import NftError, NftFailure
from support.netns import namespaces_or_skip


def script(path: Path, text: str) -> str:
    """Write a program that stands in for nft."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """The limit holds, says so, and leaves no process behind."""
    pids = tmp_path / "pids"
    program = script(tmp_path / "nft", f"sleep 60 & echo $$ $! > {pids}; wait")
    # NB: within the limit the program must have begun, on a busy machine too.
    writer = NftCommandWriter(program=program, limit=2.0)
    started = time.monotonic()
    with pytest.raises(NftError, match="did not end within 2 s and was killed") as caught:
        await writer.apply("add table ip t")
    assert time.monotonic() - started < 30
    assert caught.value.failure is NftFailure.TIMEOUT
    parent, child = pids.read_text().split()
    for _ in range(1000):
        if not _is_running(parent) and not _is_running(child):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("a process was left behind")
    await writer.close()


async def test_the_loop_lives_while_the_program_hangs(tmp_path: Path) -> None:
    """Other tasks run in the meantime."""
    go = tmp_path / "go"
    os.mkfifo(go)
    program = script(tmp_path / "nft", f"read line < {go}")
    writer = NftCommandWriter(program=program, limit=10)
    task = asyncio.create_task(writer.apply("add table ip t"))
    await asyncio.to_thread(go.write_text, "on\n")
    await task
    await writer.close()


async def test_a_program_that_fails_says_its_last_line(tmp_path: Path) -> None:
    """A fault outside nft's own format is still told."""
    program = script(tmp_path / "nft", "cat > /dev/null; echo oops >&2; exit 3")
    writer = NftCommandWriter(program=program)
    with pytest.raises(NftError, match=r"^oops$"):
        await writer.apply("add table ip t")
    silent = NftCommandWriter(program=script(tmp_path / "nft2", "kill -9 $$"))
    with pytest.raises(NftError, match=r"nft2 ended with code -9$"):
        await silent.apply("add table ip t")
    await writer.close()
    await silent.close()


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """The error names it."""
    writer = NftCommandWriter(program=str(tmp_path / "none"))
    with pytest.raises(NftError, match="none") as caught:
        await writer.apply("add table ip t")
    assert caught.value.failure is NftFailure.UNUSABLE
    await writer.close()


async def test_a_program_that_does_not_read(tmp_path: Path) -> None:
    """A text larger than a pipe does not block for ever, and the exit code decides."""
    writer = NftCommandWriter(program=script(tmp_path / "nft", "exit 0"), limit=10)
    await writer.apply("# a comment that nobody reads\n" * 20_000)
    await writer.close()


async def test_a_library_call_that_hangs_is_told_and_the_next_is_refused(tmp_path: Path) -> None:
    """Until it comes back nothing else is tried; then all is well again."""
    # The library waits for somebody to write into the pipe.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with namespaces_or_skip("nft") as [inside]:
        writer = LibnftablesWriter(namespace=inside.path, limit=0.2)
        with pytest.raises(NftError, match=r"did not come back within 0\.2 s") as caught:
            await writer.apply(f'include "{pipe}"\nadd table ip old\n')
        assert caught.value.failure is NftFailure.TIMEOUT
        with pytest.raises(NftError, match="has not come back yet") as caught:
            await writer.apply("add table ip late")
        assert caught.value.failure is NftFailure.TIMEOUT
        await asyncio.to_thread(pipe.write_text, "add table ip piped\n")
        for _ in range(3000):
            await asyncio.sleep(0.01)
            try:
                await writer.apply("add table ip late")
                break
            except NftError:
                continue
        want = "table ip piped\ntable ip old\ntable ip late\n"
        assert inside.run("nft", "list", "tables") == want
        await writer.close()


async def test_closing_while_a_call_hangs(tmp_path: Path) -> None:
    """It does not wait; the call is left behind."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with namespaces_or_skip("nft") as [inside]:
        writer = LibnftablesWriter(namespace=inside.path, limit=0.2)
        with pytest.raises(NftError, match="did not come back"):
            await writer.apply(f'include "{pipe}"\n')
        started = time.monotonic()
        await writer.close()
        assert time.monotonic() - started < 30
        await asyncio.to_thread(pipe.write_text, "\n")


async def test_a_library_that_is_not_there() -> None:
    """The error names it, and closing is still fine."""
    writer = LibnftablesWriter(library="libnone.so.9")
    with pytest.raises(NftError, match=r"libnone\.so\.9 cannot be used") as caught:
        await writer.apply("add table ip t")
    assert caught.value.failure is NftFailure.UNUSABLE
    await writer.close()


async def test_a_library_that_is_another_one() -> None:
    """A library without the functions is not called."""
    writer = LibnftablesWriter(library="libc.so.6")
    with pytest.raises(NftError, match=r"libc\.so\.6 cannot be used.*nft_ctx_new"):
        await writer.apply("add table ip t")
    await writer.close()


def _is_running(pid: str) -> bool:
    try:
        return "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
    except OSError:
        return False
