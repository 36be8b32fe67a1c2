"""Test of `dtfperf make-data imagenet`, with pictures by TensorFlow."""

import sys
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.training.inputs.shards import find_shards, iterate_records
from tests.real import imported


def test_imagenet_has_all_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards with the original's names have all pictures, and nothing else is left in or beside the folder."""
    monkeypatch.setattr(sys, "executable", imported.python())
    made = tmp_path / "made"
    wanted = {"images": 10, "test-images": 3, "shards": 4, "size": "24x16", "out": made}
    assert main(["make-data", "imagenet", *(f"--{name}={value}" for name, value in wanted.items())]) == 0
    output = capsys.readouterr()
    assert output.out == (
        f"dtfperf: {made}: 10 training images in 4 shards and 3 validation images in 1, "
        "JPEGs of 24 x 16 in TFRecord files, 0.0 MB\n"
    )
    assert output.err == ""
    train, validation = (find_shards(made, part) for part in ("train", "validation"))
    assert [len(list(iterate_records(path))) for path in train] == [2, 3, 2, 3]
    assert [len(list(iterate_records(path))) for path in validation] == [3]
    assert sorted(tmp_path.iterdir()) == [made]
    assert len(list(made.iterdir())) == 5
