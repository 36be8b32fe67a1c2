"""Answers that are kept on disk."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.answer_cache import cached

HOUR_S = 3600.0


class Source:
    """Gives a new answer each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        return {"answer": self.asked}


def _only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_asks_once(tmp_path: Path) -> None:
    """A second question of the same name is answered from the disk."""
    source = Source()

    assert [cached("price g5", HOUR_S, source, folder=tmp_path) for _ in range(2)] == [{"answer": 1}] * 2
    assert source.asked == 1


def test_an_old_answer_is_asked_for_again(tmp_path: Path) -> None:
    """An answer older than it may be is replaced, on the disk too; so is one from a clock that was ahead."""
    source = Source()
    for wrong_by_s in (-2 * HOUR_S, 2 * HOUR_S):
        cached("price", HOUR_S, source, folder=tmp_path)
        path = _only_file(tmp_path)
        kept = json.loads(path.read_text())
        path.write_text(json.dumps(kept | {"at": kept["at"] + wrong_by_s}))

        assert cached("price", HOUR_S, source, folder=tmp_path) == {"answer": source.asked}

    assert source.asked == 3


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut short"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'{"name": "price"}', id="no answer"),
        pytest.param(b'{"name": "other", "at": 9e9, "value": 1}', id="of another name"),
        pytest.param(b'{"name": "price", "at": "x", "value": 1}', id="no date"),
    ],
)
def test_a_damaged_file_is_an_answer_lost(tmp_path: Path, damage: bytes) -> None:
    """Whatever a file holds that is no answer, the question is asked again and the file is whole afterwards."""
    cached("price", HOUR_S, lambda: "old", folder=tmp_path)
    _only_file(tmp_path).write_bytes(damage)

    assert cached("price", HOUR_S, lambda: "new", folder=tmp_path) == "new"
    assert cached("price", HOUR_S, lambda: "newer", folder=tmp_path) == "new"


def test_names_do_not_meet(tmp_path: Path) -> None:
    """Names that would make the same file name, or leave the folder, are kept apart inside it."""
    names = ["a/b", "a b", "../a", "x" * 300, "x" * 301]
    for name in names:
        cached(name, HOUR_S, lambda name=name: name, folder=tmp_path / "cache")  # type: ignore[misc]

    assert [cached(name, HOUR_S, lambda: "lost", folder=tmp_path / "cache") for name in names] == names
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_failed_question_leaves_nothing(tmp_path: Path) -> None:
    """What the question raises is raised, nothing is kept, and the next question is a new one."""

    def fail() -> Any:
        raise LookupError("no price")

    with pytest.raises(LookupError, match="no price"):
        cached("price", HOUR_S, fail, folder=tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert cached("price", HOUR_S, lambda: 1, folder=tmp_path) == 1


def test_an_answer_that_is_no_json_leaves_nothing(tmp_path: Path) -> None:
    """A value that is no JSON is an error of the caller, raised before a file is created."""
    with pytest.raises(TypeError):
        cached("price", HOUR_S, lambda: object(), folder=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    """Where nothing can be kept, every question is asked."""
    (tmp_path / "file").touch()
    source = Source()

    assert [cached("price", HOUR_S, source, folder=tmp_path / "file") for _ in range(2)] == [
        {"answer": 1},
        {"answer": 2},
    ]


def test_many_at_once_never_see_half_an_answer(tmp_path: Path) -> None:
    """Processes that write and read the same answer all the time each get a whole one."""
    code = (
        "import sys; from pathlib import Path; from pytest_dtfperf.clusters.answer_cache import cached\n"
        "for i in range(100):\n"
        "    assert len(cached('p', i % 2 * 3600, lambda: 'x' * 100_000, folder=Path(sys.argv[1]))) == 100_000\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(argv, stderr=subprocess.PIPE, env=os.environ) for _ in range(3)]

    assert [process.communicate()[1] for process in processes] == [b""] * 3
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
