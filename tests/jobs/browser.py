"""A real headless browser, driven by Chromium's DevTools protocol: what a page shows, and says."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from fakes.patience import stretched

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SIZE = (1400, 1800)
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--no-first-run",
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader",  # WebGL without a GPU
    f"--window-size={SIZE[0]},{SIZE[1]}", "--disable-background-networking",
)  # fmt: skip
_LISTENS = re.compile(r"DevTools listening on ws://([\d.:]+)/")
_ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


class Page:
    """A page that is open.

    Attributes:
        errors: what its console was told, of level error.
    """

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self.errors: list[str] = []
        self._connection, self._number = connection, 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the browser's answer to a command of its protocol."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        await self._connection.write_message(json.dumps(request))
        while True:
            message = json.loads(await self._connection.read_message() or "null")
            assert message is not None, "the browser has closed the page"
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    async def value(self, script: str) -> Any:
        """Returns the value of a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def value_when(self, script: str, is_there: Callable[[Any], object] = bool) -> Any:
        """Returns an expression's value once it is as wanted."""
        async with asyncio.timeout(stretched(90.0)):
            while not is_there(value := await self.value(script)):
                await asyncio.sleep(0.2)
        return value

    async def box(self, selector: str) -> tuple[int, int, int, int]:
        """Returns where the first such element is: left, top, right, bottom, in pixels."""
        found = f"document.querySelector('{selector}').getBoundingClientRect()"
        box = json.loads(await self.value(f"JSON.stringify({found})"))
        return tuple(round(box[side]) for side in ("left", "top", "right", "bottom"))

    async def until(self, is_there: Callable[[bytes], object], file: Path) -> None:
        """Take pictures until one is as wanted."""
        async with asyncio.timeout(stretched(90.0)):
            while not is_there(await self.picture(file)):
                await asyncio.sleep(0.5)

    async def picture(self, file: Path) -> bytes:
        """Write what is seen as a PNG; returns it."""
        shot = base64.b64decode((await self.call("Page.captureScreenshot"))["data"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(shot)
        return shot

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        told = told.get("entry", told)
        level = told.get("level", told.get("type", "error"))
        if message.get("method") in _ERRORS and level == "error":
            self.errors.append(json.dumps(told)[:400])


def look(url: str, folder: Path, see: Callable[[Page], Awaitable[None]]) -> None:
    """Open a page and look at it.

    Args:
        url: of the page; other hosts than this one are not found.
        folder: for the browser's own files.
        see: looks.
    """
    assert CHROMIUM is not None
    command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={folder}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as browser:
        try:
            assert browser.stderr is not None
            host = next(match[1] for line in browser.stderr if (match := _LISTENS.search(line)))
            asyncio.run(_look(host, url, see))
        finally:
            browser.terminate()


async def _look(host: str, url: str, see: Callable[[Page], Awaitable[None]]) -> None:
    request = urllib.request.Request(f"http://{host}/json/new?about:blank", method="PUT")
    with urllib.request.urlopen(request) as answer:
        target = json.load(answer)["webSocketDebuggerUrl"]
    connection = await websocket_connect(target, max_message_size=1 << 26)
    try:
        page = Page(connection)
        for part in ("Runtime", "Log", "Page"):
            await page.call(f"{part}.enable")
        await page.call("Page.navigate", url=url)
        await see(page)
    finally:
        connection.close()
        while await connection.read_message() is not None:
            pass
