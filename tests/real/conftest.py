"""Whole runs, as users have them."""

from pathlib import Path

import pytest

from tests.plugin.conftest import PerfTests, whole_tests_in


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """Perf tests on a machine that has no baselines yet."""
    return whole_tests_in(tmp_path)
