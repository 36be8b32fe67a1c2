"""Who leaves a training when."""

from pathlib import Path

from tests.training.programs import told


def test_worker_stays_while_another_may_need_it(tmp_path: Path) -> None:
    """In collective_all_reduce, who has made its last step stays until all have: the others may still fetch its sums."""
    output = told(tmp_path / "log", "-m", "tests.training.leaving", "collective_all_reduce")
    assert output.split("\n")[:2] == ["stays", "both left"]
