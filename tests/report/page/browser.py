"""Debian's Chromium without a screen, driven through two pipes by its DevTools protocol; all tests of pages share one."""

import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.report.page import pipes

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 120.0  # for one answer, of a machine that has much else to do
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip

# What a reader with good eyes reads: text, its colour and what lies behind it.
CONTRASTS = """
(() => {
  const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255).map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("svg")) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.textContent.trim().slice(0, 40)]);
  }
  return found;
})()
"""


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(eq=False)
class Browser:
    """A running browser with a page."""

    pipe: pipes.Pipe
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive before it are kept."""
        number = next(self._numbers)
        words = {"id": number, "method": method, "params": parameters}
        self.pipe.send(words | ({"sessionId": self.session} if self.session else {}))
        while True:
            message = self.pipe.receive(DEADLINE_S)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        # A page remembers its theme, and all tests share one browser: each begins as somebody's first visit.
        self.call("Page.addScriptToEvaluateOnNewDocument", source="try { localStorage.clear(); } catch {}")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, theme: str = "light", scripts: bool = True) -> None:
        """Load a file with this size of the screen and this colour scheme."""
        self.events.clear()
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.await_event("Page.loadEventFired")

    def await_event(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.pipe.receive(DEADLINE_S))

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, *, text: str = "") -> None:
        code = {"Tab": 9, "Enter": 13, " ": 32}.get(key, ord(key[0].upper()))
        extra = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    @property
    def console(self) -> list[str]:
        """Return the messages of the console: errors, violations of the page's policy, and output of scripts."""
        self.evaluate("0")  # whatever was on its way has come
        methods = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening"}
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in methods]


@contextmanager
def start_browser(command: str, home: Path) -> Iterator[Browser]:
    """Start the browser, and end it with all its processes."""
    ours, theirs = pipes.make_pipes()
    profile = [f"--user-data-dir={home}", "about:blank"]
    process = _start([command, *FLAGS, *profile], theirs, home)
    try:
        with ours:
            browser = Browser(ours)
            browser.attach()
            yield browser
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(argv: Sequence[str], ends: tuple[int, int], home: Path) -> subprocess.Popen[bytes]:
    """Start the browser with its pipes as descriptors 3 and 4."""
    reading, writing = ends
    words = f'exec "$@" 3<&{reading} 4>&{writing}'
    environment = {**os.environ, "HOME": str(home), "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
    with (home / "stderr").open("wb") as errors:
        try:
            return subprocess.Popen(
                ["bash", "-c", words, "bash", *argv], pass_fds=ends, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                env=environment, start_new_session=True,
            )  # fmt: skip
        finally:
            for end in ends:
                os.close(end)
