"""The browser that tests of pages share, started on first use."""

from collections.abc import Iterator

import pytest

from tests.report.page import browser as browsers
from tests.report.page.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = browsers.find_browser()
    if command is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with browsers.start_browser(command, tmp_path_factory.mktemp("chromium")) as running:
        yield running
