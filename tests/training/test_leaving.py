"""Who leaves a training when."""

import subprocess
import sys
from pathlib import Path


def test_worker_stays_while_another_may_need_it() -> None:
    """In collective_all_reduce, who has made its last step stays until all have: the others may still fetch its sums."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.training.leaving", "collective_all_reduce"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert ended.stdout.split("\n")[:2] == ["stays", "both left"]
