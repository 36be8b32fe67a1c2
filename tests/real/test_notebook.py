"""Tests of JupyterLab through the tunnel of `dtfperf notebook`, in a browser."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests.cli.test_notebook import Notebook, assert_nothing_left, folder, list_processes, start_command
from tests.report.page import browser as browsers
from tests.report.page.browser import Browser

__all__ = ["folder"]

PATIENCE_S = 240.0  # of a machine that has much else to do
SHIFT = 8  # of the DevTools protocol's modifiers


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """Start a separate browser, since a page of JupyterLab asks before it is left."""
    command = browsers.find_browser()
    if command is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with browsers.start_browser(command, tmp_path) as running:
        yield running


def is_shown(browser: Browser, selector: str) -> bool:
    return bool(browser.evaluate(f"!!document.querySelector('{selector}')"))


def wait_until_shown(browser: Browser, selector: str) -> None:
    wait_until(f"{selector} is shown", lambda: is_shown(browser, selector), PATIENCE_S)


def has_cell_run(browser: Browser, output: str) -> bool:
    """Type into the first cell, run it, and return whether there is output: a busy page may ignore it."""
    cell = "document.querySelector('.jp-Notebook .jp-Cell .cm-content')"
    browser.evaluate(f"{cell}.focus()")
    if "6 * 7" not in browser.evaluate(f"{cell}.textContent"):
        browser.call("Input.insertText", text="import sys, os; print(6 * 7, sys.executable, os.getcwd())")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": SHIFT}
    browser.call("Input.dispatchKeyEvent", type="keyDown", **enter)
    browser.call("Input.dispatchKeyEvent", type="keyUp", **enter)
    time.sleep(2.0)
    return is_shown(browser, output)


def test_cell_runs_in_the_browser(folder: Path, browser: Browser) -> None:
    """The URL opens the launcher without the user's certificate, a kernel computes, and Ctrl-C ends all processes."""
    (folder / ".jupyter").mkdir()
    # A user who has switched tokens off elsewhere has one here, and one who has a certificate has none.
    settings = ['c.IdentityProvider.token = ""', 'c.ServerApp.token = ""']
    settings += [f'c.ServerApp.{name} = "/no/such.pem"' for name in ("certfile", "keyfile", "client_ca")]
    (folder / ".jupyter" / "jupyter_server_config.py").write_text("\n".join(settings))
    with start_command(folder, HOME=str(folder)) as process:
        notebook = Notebook(folder, process)
        assert notebook.get("/api/contents", token="")[0] == 403
        assert notebook.get("/api/status")[0] == 200
        browser.call("Page.navigate", url=notebook.printed["url"])
        wait_until_shown(browser, '.jp-Launcher .jp-LauncherCard[data-category="Notebook"]')
        browser.evaluate("document.querySelector('.jp-LauncherCard[data-category=\"Notebook\"]').click()")
        wait_until_shown(browser, ".jp-Notebook .jp-Cell .cm-content")
        wait_until_shown(browser, '.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        output = ".jp-Notebook .jp-OutputArea-output"
        wait_until("a cell has run", lambda: has_cell_run(browser, output), PATIENCE_S)
        assert browser.evaluate(f"document.querySelector('{output}').textContent") == f"42 {sys.executable} {folder}\n"
        kernels = [pid for pid in list_processes(folder) if b"ipykernel_launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(kernels) == 1
        os.kill(process.pid, signal.SIGINT)
        assert notebook.ends() == 130
    assert_nothing_left(folder)
    assert notebook.printed["token"] not in (folder / notebook.printed["log"]).read_text()
