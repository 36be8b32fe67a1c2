"""What tests of pages share: one browser, started by the first that wants it."""

from collections.abc import Iterator

import pytest

from tests.report.page import browser as browsers
from tests.report.page.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = browsers.found()
    if command is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with browsers.running(command, tmp_path_factory.mktemp("chromium")) as running:
        yield running
