"""Requests to a running cluster by its socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.errors import (
    Conflict,
    ConnectionRefused,
    KubeError,
    ServerError,
    TimedOut,
)
from keepclose.lab.access import LabRefusal
from keepclose.lab.cluster.control import (
    CallError,
    ControlHandler,
    ControlServer,
    ReportProgress,
    call_lab,
)

JsonObject = dict[str, Any]


async def test_a_request_is_answered_with_news_on_the_way(tmp_path: Path) -> None:
    """Parameters get there, news come in order, and the result last."""

    async def count(params: JsonObject, tell: ReportProgress) -> JsonObject:
        for number in range(params["to"]):
            tell({"at": number})
        return {"counted": params["to"]}

    # NB: an address of a socket has 107 characters at most; directories may be deeper.
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    server = ControlServer(deep / "lab.sock", {"count": count})
    await server.start()
    told: list[JsonObject] = []
    try:
        done = await asyncio.to_thread(call_lab, deep, "count", {"to": 3}, on_tell=told.append)
    finally:
        await server.stop()
    assert done == {"counted": 3}
    assert told == [{"at": 0}, {"at": 1}, {"at": 2}]


async def test_refusals_and_failures_are_told(tmp_path: Path) -> None:
    """Each with the exit code that a command should end with."""

    async def refuse(_params: JsonObject, _tell: ReportProgress) -> JsonObject:
        raise LabRefusal("no such node", code=3)

    async def fail(_params: JsonObject, _tell: ReportProgress) -> JsonObject:
        raise RuntimeError("what is this")

    server = ControlServer(tmp_path / "lab.sock", {"refuse": refuse, "fail": fail})
    await server.start()
    try:
        for name, want, code in (
            ("refuse", "no such node", 3),
            ("fail", "the lab failed: what is this", 1),
            ("dance", "unknown request", 2),
        ):
            with pytest.raises(CallError, match=want) as caught:
                await asyncio.to_thread(call_lab, tmp_path, name, {})
            assert caught.value.code == code
    finally:
        await server.stop()


async def test_nobody_works_for_those_who_went_away(tmp_path: Path) -> None:
    """When the asking command is ended, what it asked for is cancelled."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(_params: JsonObject, _tell: ReportProgress) -> JsonObject:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    server = ControlServer(tmp_path / "lab.sock", {"work": work})
    await server.start()
    try:
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "lab.sock"))
        writer.write(b'{"do":"work"}\n')
        await begun.wait()
        writer.close()
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        await server.stop()


async def test_the_end_waits_for_what_is_cleaned_up(tmp_path: Path) -> None:
    """Whoever has work under way is told to end, and comes to an end of its own."""
    begun, cleaned = asyncio.Event(), []

    async def work(_params: JsonObject, _tell: ReportProgress) -> JsonObject:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("all of it")
        return {}

    server = ControlServer(tmp_path / "lab.sock", {"work": work})
    await server.start()
    calling = asyncio.create_task(asyncio.to_thread(call_lab, tmp_path, "work", {}))
    await begun.wait()
    await server.stop()
    assert cleaned == ["all of it"]
    with pytest.raises(CallError, match="the cluster ended before it answered") as caught:
        await calling
    assert caught.value.code == 4


async def test_an_api_server_that_is_gone_ends_every_command_alike(tmp_path: Path) -> None:
    """No answer of the API server is told as such, with the exit code for it; a refusal is not."""

    def failing(error: KubeError) -> ControlHandler:
        async def fail(_params: JsonObject, _tell: ReportProgress) -> JsonObject:
            raise error

        return fail

    refused = ConnectionRefused("127.0.0.1:6443", "connection refused")
    handlers = {
        "refused": failing(refused),
        "timeout": failing(TimedOut("127.0.0.1:6443", "no answer in 10 s")),
        "broken": failing(ServerError(500, "InternalError", "the disk is full")),
        "conflict": failing(Conflict(409, "Conflict", "it was changed")),
    }
    server = ControlServer(tmp_path / "lab.sock", handlers)
    await server.start()
    try:
        for name, want, code in (
            ("refused", "the API server does not answer: 127.0.0.1:6443: connection refused", 4),
            ("timeout", "the API server does not answer: ", 4),
            ("broken", "the API server does not answer: ", 4),
            ("conflict", "it was changed", 2),
        ):
            with pytest.raises(CallError, match=want) as caught:
                await asyncio.to_thread(call_lab, tmp_path, name, {})
            assert caught.value.code == code
    finally:
        await server.stop()


async def test_a_server_whose_start_is_cancelled_listens_no_more(tmp_path: Path) -> None:
    """Whenever the start is cancelled, stopping ends all that listens."""
    for turns in range(1, 100):
        server = ControlServer(tmp_path / f"{turns}.sock", {})
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = starting.done()
        starting.cancel()
        await asyncio.wait([starting])
        await server.stop()
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            await asyncio.open_unix_connection(tmp_path / f"{turns}.sock")
        if is_over:
            return
    pytest.fail("the server never started")


def test_where_no_cluster_runs(tmp_path: Path) -> None:
    """The message says how to start one."""
    with pytest.raises(
        CallError, match=r"no cluster runs in .*; start one with keepclose up"
    ) as no:
        call_lab(tmp_path, "count", {})
    assert no.value.code == 4
