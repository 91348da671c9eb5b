"""A page in headless Chromium, driven over its debugging pipe with the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser to test with: THINWIRE_CHROMIUM, else the first of the usual names that is installed."""
    named = os.environ.get("THINWIRE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """One browser process; `page` opens files in it."""

    def __init__(self, program: str, profile: Path, patience_s: float = 60) -> None:
        self.patience_s = patience_s
        self.number = 0
        self.buffer = b""
        self.events: list[dict[str, Any]] = []
        theirs_in, self.to_browser = os.pipe()
        self.from_browser, theirs_out = os.pipe()
        # the browser reads from 3 and writes to 4; higher copies, so that putting one there cannot close the other
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]

        def place() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [program, *FLAGS, f"--user-data-dir={profile}"]
        none = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, close_fds=False, preexec_fn=place, stdin=none, stdout=none, stderr=none
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come meanwhile are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.patience_s
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.from_browser, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser did not answer" if not ready else "the browser is gone")
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (TimeoutError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)


class Page:
    """One open file at one width and colour scheme."""

    def __init__(self, browser: Chromium, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        height = 844 if width < 500 else 900
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.readyState === 'complete' && document.querySelector('script')")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited, errors raised."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + self.browser.patience_s
        while not self.run(f"!!({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.02)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, " ": 32}
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def complaints(self) -> list[str]:
        """Errors and warnings of this page so far: uncaught, in the console or in the browser's log."""
        told = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            details = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                told.append(str(details["exceptionDetails"].get("exception", {}).get("description")))
            elif event["method"] == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
                told.append(str(details["args"]))
            elif event["method"] == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                told.append(details["entry"]["text"])
        return told

    def screenshot(self, path: Path, whole: bool = True) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)
