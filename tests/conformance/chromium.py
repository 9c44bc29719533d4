"""Headless Chromium, spoken to over the pipe of its DevTools protocol; no package and no network are needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S, ANSWER_S = 60.0, 30.0


def find_chromium() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Browser:
    """One page of a browser process. What the page's scripts throw and complain about is kept in `complaints`."""

    def __init__(self, executable: str, profile: Path) -> None:
        (child_reads, self._to), (self._from, child_writes) = high_pipe(), high_pipe()
        self._pid = os.posix_spawn(
            executable,
            [
                *(executable, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--remote-debugging-pipe", "--no-first-run", f"--user-data-dir={profile}", "--hide-scrollbars"),
                *("--host-resolver-rules=MAP * ~NOTFOUND", "about:blank"),
            ],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, child_reads, 3),
                (os.POSIX_SPAWN_DUP2, child_writes, 4),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
        os.close(child_reads)
        os.close(child_writes)
        self._number, self._unread, self._session = 0, b"", None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", {"url": "about:blank"}, START_S)["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, params: dict[str, Any] | None = None, limit_s: float = ANSWER_S) -> Any:
        """The result of a DevTools method."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + limit_s
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, address: str) -> None:
        """Loads a page and waits until it is there; a fragment of the same page is followed."""
        self.call("Page.navigate", {"url": address})
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? setTimeout(done, 50)"
            " : addEventListener('load', () => setTimeout(done, 50)))"
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        params = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", params)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window in CSS pixels, and the colour scheme that the reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", {"features": [feature]})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", {"format": "png"})["data"]))

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            os.close(self._to)
            os.close(self._from)
            os.waitpid(self._pid, 0)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            remaining = end - time.monotonic()
            is_ready, _, _ = select.select([self._from], [], [], max(0.0, remaining))
            assert is_ready, "no answer from the browser"
            read = os.read(self._from, 1 << 16)
            assert read, "the browser ended"
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        """Keeps what a page must not do: throw, complain, ask the network."""
        method, params = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


def high_pipe() -> tuple[int, int]:
    """A pipe whose descriptors are not 3 and 4, which the browser's ends become."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
