"""Commands that run no tests, beside files with names of standard modules or packages, which are not imported."""

import pytest

from tests.plugin.conftest import PerfTests
from tests.plugin.test_search_path import perf, run_command_beside

__all__ = ["perf"]


@pytest.mark.parametrize("command", ["baselines audit .", "doctor --cluster=local --gpus=1 --json"])
def test_command_ignores_files_with_names_of_modules(perf: PerfTests, command: str) -> None:
    """`dtfperf baselines audit` and `doctor` import none of the files in their folder."""
    run_command_beside(perf, *command.split())
