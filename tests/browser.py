"""A headless Chromium, spoken to in its own protocol through two pipes: pages are looked at, not guessed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60.0  # for an answer; a page of 5 MB takes two
# The browser reads descriptor 3 and writes descriptor 4.
MOVED = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def chromium() -> str | None:
    """The browser that is installed, if one is."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Page:
    """A page that was opened. errors: exceptions, console errors and refusals of its policy. fetched: addresses that it
    asked for beside its own."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, a promise in the end."""
        how = {"returnByValue": True, "awaitPromise": True}
        answer = self.browser.call("Runtime.evaluate", self.session, expression=expression, **how)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def waits_for(self, condition: str) -> None:
        """Until a JavaScript condition holds, frame by frame."""
        look = f"const look = () => ({condition}) ? done(true) : requestAnimationFrame(look); look();"
        assert self.value(f"new Promise((done) => {{ {look} }})")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.browser.call("Page.captureScreenshot", self.session, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """One process; `browsing` ends it."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, of: int) -> None:
        self.process, self.to, self.of = process, to, of
        self.number, self.rest, self.events = 0, b"", list[dict[str, Any]]()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self.to, data) :]
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def open(self, path: Path, width: int, height: int, dark: bool = False) -> Page:
        """A file in a window of that size, once it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", page.session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", page.session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", page.session, features=[scheme])
        self.events.clear()
        address = path.absolute().as_uri()
        self.call("Page.navigate", page.session, url=address)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())
        for event in self.events:
            _noted(page, event, address)
        return page

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.of], [], [], max(deadline - time.monotonic(), 0))
            got = os.read(self.of, 1 << 20) if ready else b""
            assert got, "the browser does not answer"
            self.rest += got
        message, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(message))


def _noted(page: Page, event: dict[str, Any], address: str) -> None:
    match event:
        case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
            page.errors.append(str(details.get("exception", {}).get("description") or details["text"]))
        case {"method": "Runtime.consoleAPICalled", "params": {"type": "error", "args": args}}:
            page.errors.append(str([a.get("value") or a.get("description") for a in args]))
        case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text}}}:
            page.errors.append(text)
        case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}} if url != address:
            if not url.startswith("data:"):
                page.fetched.append(url)


def _pipe() -> tuple[int, int]:
    """Out of the way of the descriptors that the protocol wants."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """folder: new and empty; the browser writes what it likes there."""
    (their_in, our_out), (our_in, their_out) = _pipe(), _pipe()
    words = [chromium() or "", *OPTIONS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", MOVED, str(their_in), str(their_out), *words], pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(their_in)
    os.close(their_out)
    try:
        yield Browser(process, our_out, our_in)
    finally:
        os.close(our_out)
        os.close(our_in)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
