"""Commands that run no tests, beside files with names of Python's own modules or of packages: none imports them."""

import pytest

from tests.plugin.conftest import PerfTests
from tests.plugin.test_search_path import perf, run_command_beside

__all__ = ["perf"]


@pytest.mark.parametrize("command", ["baselines audit .", "doctor --cluster=local --gpus=1 --json"])
def test_a_command_beside_files_of_such_names(perf: PerfTests, command: str) -> None:
    """`dtfperf baselines audit` and `doctor` start their programs beside all of them."""
    run_command_beside(perf, *command.split())
