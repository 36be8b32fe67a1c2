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
    """A source that returns a new answer for each query."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        return {"answer": self.asked}


def _only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_second_query_is_answered_from_the_disk(tmp_path: Path) -> None:
    """A second query with the same name is answered from the disk."""
    source = Source()

    assert [cached("price g5", HOUR_S, source, folder=tmp_path) for _ in range(2)] == [{"answer": 1}] * 2
    assert source.asked == 1


def test_old_answer_is_replaced(tmp_path: Path) -> None:
    """An answer that is too old, or is dated in the future, is replaced, on the disk too."""
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
def test_damaged_file_is_replaced(tmp_path: Path, damage: bytes) -> None:
    """A file without a valid answer causes a new query and is replaced."""
    cached("price", HOUR_S, lambda: "old", folder=tmp_path)
    _only_file(tmp_path).write_bytes(damage)

    assert cached("price", HOUR_S, lambda: "new", folder=tmp_path) == "new"
    assert cached("price", HOUR_S, lambda: "newer", folder=tmp_path) == "new"


def test_names_have_files_of_their_own(tmp_path: Path) -> None:
    """Names that would make the same file name, or leave the folder, are kept apart inside it."""
    names = ["a/b", "a b", "../a", "x" * 300, "x" * 301]
    for name in names:
        cached(name, HOUR_S, lambda name=name: name, folder=tmp_path / "cache")  # type: ignore[misc]

    assert [cached(name, HOUR_S, lambda: "lost", folder=tmp_path / "cache") for name in names] == names
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_failed_query_leaves_nothing(tmp_path: Path) -> None:
    """A query that fails raises its error, stores nothing, and is repeated by the next one."""

    def fail() -> Any:
        raise LookupError("no price")

    with pytest.raises(LookupError, match="no price"):
        cached("price", HOUR_S, fail, folder=tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert cached("price", HOUR_S, lambda: 1, folder=tmp_path) == 1


def test_answer_that_is_no_json_leaves_nothing(tmp_path: Path) -> None:
    """A value that is no JSON is an error of the caller, raised before a file is created."""
    with pytest.raises(TypeError):
        cached("price", HOUR_S, lambda: object(), folder=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_unusable_folder_causes_queries_only(tmp_path: Path) -> None:
    """Each query is sent if the folder for answers cannot be made."""
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
