"""Headless Chromium, driven over a pipe with the Chrome DevTools Protocol
(https://chromedevtools.github.io/devtools-protocol/): messages are JSON, a zero byte between two.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

SECONDS = 300
"""After which a browser that hangs is ended."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1600",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """Return the path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. ``requests``: the addresses that it asked for. ``problems``: what its console says,
    and what was refused or failed.
    """

    def __init__(self, program: str) -> None:
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        read, self._out = os.pipe()
        back, write = os.pipe()
        # The browser reads from 3 and writes to 4: the shell puts high numbers there.
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read, write)]
        script = f'exec "$@" 3<&{given[0]} 4>&{given[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "-", program, *FLAGS, f"--user-data-dir={self._folder}"],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._alarm = threading.Timer(SECONDS, self._process.kill)
        self._alarm.daemon = True
        self._alarm.start()
        for fd in (read, write, *given):
            os.close(fd)
        self._in = os.fdopen(back, "rb")

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._session = None
        with suppress(AssertionError, OSError):  # it may have ended
            self.call("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        self._alarm.cancel()
        os.close(self._out)
        self._in.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path | str) -> None:
        """Load a page, of a file or an address; return when all of it is there."""
        self._events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self._events):
            self._next()

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression of JavaScript on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._note(message["method"], message["params"])
            self._events.append(message)
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Network.loadingFailed":
            self.problems.append(event["errorText"])
        elif method == "Log.entryAdded":
            self.problems.append(event["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.problems.append(json.dumps(event))
