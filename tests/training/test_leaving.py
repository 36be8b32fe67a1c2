"""The order in which workers leave a training."""

from pathlib import Path

from tests.training.programs import run_program


def test_worker_stays_while_another_may_need_it(tmp_path: Path) -> None:
    """A worker in collective_all_reduce stays until all have made their last step, because others may fetch its sums."""
    output = run_program(tmp_path / "log", "-m", "tests.training.leaving", "collective_all_reduce")
    assert output.split("\n")[:2] == ["stays", "both left"]
