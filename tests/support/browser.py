"""A real Chromium without a window, driven by the DevTools protocol.

    async with open_browser(folder) as browser:
        await browser.open("http://127.0.0.1:7070/")
        await browser.until("document.title === 'keepclose'")

It starts with an empty profile, so nothing of the user is read, and every request that it makes is
in `requests`. Scripts are run in the page and must return JSON values.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from keepclose.model.json_values import JsonObject
from keepclose.testing.api_server import PATIENCE

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless",
    # Tests run as root in containers, where Chromium's own sandbox cannot be set up.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find_browser() -> str:
    """Return the path of Chromium; skip the test where there is none."""
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("the browser test needs chromium, as from apt-get install chromium")


class PageError(AssertionError):
    """A script of the test failed in the page."""


class Browser:
    """One page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[JsonObject]] = {}
        self.requests: list[str] = []
        """The URLs of all requests, in their order."""
        self.errors: list[str] = []
        """What pages logged as errors, refusals of their security policy among them."""

    async def listen(self) -> None:
        """Read answers and events until the browser ends."""
        async for message in self._socket:
            event = msgspec.json.decode(message.data)
            if "id" in event:
                answer = self._answers.pop(event["id"])
                if not answer.done():
                    answer.set_result(event)
                continue
            match event.get("method"):
                case "Network.requestWillBeSent":
                    self.requests.append(event["params"]["request"]["url"])
                case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                    self.errors.append(event["params"]["entry"]["text"])
                case "Runtime.exceptionThrown":
                    self.errors.append(str(event["params"]["exceptionDetails"]))

    async def call(self, method: str, **params: object) -> JsonObject:
        """Return the result of a command of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": params}
        await self._socket.send_str(msgspec.json.encode(command).decode())
        async with asyncio.timeout(PATIENCE):
            event = await answer
        if "error" in event:
            raise PageError(f"{method}: {event['error']}")
        result: JsonObject = event["result"]
        return result

    async def open(self, url: str) -> None:
        """Load a page."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        result = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise PageError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    async def until(self, condition: str) -> None:
        """Return when an expression is true in the page, which judges after each drawn frame."""
        script = (
            "new Promise((resolve) => { const look = () => { let is; try { is = ("
            f"{condition}"
            "); } catch { is = false; } if (is) resolve(true); else setTimeout(look, 10); };"
            " look(); })"
        )
        try:
            await self.run(script)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise PageError(f"never true: {condition}\n{text}\n{self.errors}") from None

    async def press(self, key: str) -> None:
        """Press a key, with its name as pages know it."""
        codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35}
        texts = {"Enter": "\r", "/": "/"}
        press = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        if key in texts:
            press["text"] = texts[key]
        await self.call("Input.dispatchKeyEvent", type="keyDown", **press)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def click(self, selector: str) -> None:
        """Click the middle of an element, as a mouse does."""
        quoted = msgspec.json.encode(selector).decode()
        await self.until(f"document.querySelector({quoted})")
        x, y = await self.run(
            f"(() => {{ const e = document.querySelector({quoted}); "
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.left + r.width / 2, r.top + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Set the size of the page in pixels of CSS."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    async def emulate(self, **features: str) -> None:
        """Set media features, such as prefers_color_scheme="dark"."""
        listed = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        await self.call("Emulation.setEmulatedMedia", features=listed)

    async def screenshot(self) -> bytes:
        """Return a picture of what is visible, as PNG."""
        result = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(result["data"])


@asynccontextmanager
async def open_browser(profile: Path) -> AsyncIterator[Browser]:
    """Run Chromium with an empty profile in a new folder for the time of the block."""
    program = find_browser()
    process = await asyncio.create_subprocess_exec(
        program,
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            port = await _read_port(process.stderr)
        drain = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                targets = await response.json()
            url = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                browser = Browser(socket)
                listening = asyncio.create_task(browser.listen())
                for domain in ("Page", "Runtime", "Network", "Log"):
                    await browser.call(f"{domain}.enable")
                yield browser
                with suppress(PageError, TimeoutError):
                    await browser.call("Browser.close")
                await listening
        await drain
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _read_port(stream: asyncio.StreamReader) -> int:
    """Return the port at which Chromium answers, which it prints."""
    seen: list[bytes] = []
    while line := await stream.readline():
        seen.append(line)
        _, found, url = line.partition(b"DevTools listening on ws://127.0.0.1:")
        if found:
            return int(url.partition(b"/")[0])
    raise PageError(f"chromium has ended: {b''.join(seen[-5:])!r}")
