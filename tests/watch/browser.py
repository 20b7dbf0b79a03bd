"""A headless Chromium that opens a page of ours and tells what a reader would see; driven over a pipe (CDP)."""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
# As root it has no sandbox of its own; the rest keeps it from looking for its maker's servers.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars "
    "--remote-debugging-pipe"
)
SECONDS = 120


@dataclass
class View:
    """What a page came to in a window."""

    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # of the console, security policy included
    scroll_width: int = 0
    text: str = ""
    screenshot: bytes = b""
    answers: dict[str, Any] = field(default_factory=dict)


class Browser:
    """One running Chromium."""

    def __init__(self, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, replies = os.pipe()
        line = f"exec {shlex.quote(CHROMIUM or '')} {FLAGS} --user-data-dir={shlex.quote(str(profile))} about:blank"
        self._process = subprocess.Popen(
            ["bash", "-c", f"{line} 3<&{commands} 4>&{replies}"],
            pass_fds=(commands, replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self._buffer = b""
        self._number = 0

    def close(self) -> None:
        """Ends it and waits for it."""
        self._process.terminate()
        self._process.wait(SECONDS)
        os.close(self._to)
        os.close(self._from)

    def look(
        self,
        page: Path,
        *,
        width: int,
        height: int = 844,
        dark: bool = False,
        whole: bool = False,
        ask: tuple[str, ...] = (),
    ) -> View:
        """Opens a file in a window of `width` CSS pixels; `ask`: expressions to evaluate in it.

        The picture is of the window, or of the `whole` page.
        """
        view = View()
        target = self._call("Target.createTarget", {"url": "about:blank"}, view)["targetId"]
        session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, view)[
            "sessionId"
        ]

        def call(method: str, **parameters: Any) -> dict[str, Any]:
            return self._call(method, parameters, view, session)

        for domain in ("Page", "Network", "Log", "Runtime"):
            call(f"{domain}.enable")
        call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        call("Emulation.setEmulatedMedia", features=[scheme])
        call("Page.navigate", url=page.resolve().as_uri())
        self._wait("Page.loadEventFired", view)

        def evaluate(expression: str) -> Any:
            return call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

        view.scroll_width = evaluate("document.documentElement.scrollWidth")
        view.text = evaluate("document.body.innerText")
        view.answers = {expression: evaluate(expression) for expression in ask}
        picture = call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")["data"]
        view.screenshot = base64.b64decode(picture)
        self._call("Target.closeTarget", {"targetId": target}, view)
        return view

    def _call(
        self, method: str, parameters: dict[str, Any], view: View, session: str | None = None
    ) -> dict[str, Any]:
        self._number += 1
        call = {"id": self._number, "method": method, "params": parameters}
        os.write(self._to, json.dumps(call | ({"sessionId": session} if session else {})).encode() + b"\0")
        for message in self._messages(view):
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
        raise AssertionError

    def _wait(self, event: str, view: View) -> None:
        next(message for message in self._messages(view) if message.get("method") == event)

    def _messages(self, view: View) -> Iterator[dict[str, Any]]:
        """Each message as it comes; requests and complaints are noted in `view`."""
        deadline = time.monotonic() + SECONDS
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
                assert ready, "Chromium says nothing"
                text = os.read(self._from, 2**20)
                assert text, "Chromium has ended"
                self._buffer += text
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            match message.get("method"), message.get("params"):
                case "Network.requestWillBeSent", {"request": {"url": url}}:
                    view.requests.append(url)
                case "Log.entryAdded", {"entry": {"text": said}}:
                    view.messages.append(said)
                case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown", said:
                    view.messages.append(json.dumps(said))
            yield message


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a new, empty profile; it is ended in any case."""
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
