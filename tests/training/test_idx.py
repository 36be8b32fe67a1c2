"""MNIST's file format: what is wrong with a file is said before training, by name."""

import gzip
import struct
from pathlib import Path

import pytest

from perf_tests import digits
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.inputs.idx import open_idx, open_pair

NAME = "train-images-idx3-ubyte"
IMAGES = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 28, 28) + bytes(2 * 784)
LABELS = bytes((0, 0, 8, 1)) + struct.pack(">I", 2) + bytes(2)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_a_good_file_is_opened_compressed_or_not(tmp_path: Path, compressed: bool) -> None:
    """Shape, header and record size come from the file's own header."""
    path = tmp_path / (f"{NAME}.gz" if compressed else NAME)
    path.write_bytes(gzip.compress(IMAGES) if compressed else IMAGES)
    file = open_idx(tmp_path, NAME, dimensions=3)
    assert (file.path, file.shape, file.header_bytes, file.record_bytes) == (path, (2, 28, 28), 16, 784)


@pytest.mark.parametrize(
    "content, complaint",
    [
        (LABELS, r"begins with 00 00 08 01, an idx file of 3 dimensions with 00 00 08 03"),
        (b"<html>", r"begins with 3c 68 74 6d"),
        (b"", r"begins with "),
        (IMAGES[:10], r"ends within its header, after 10 of 16 bytes"),
        (IMAGES[:-1], r"promises 1584 bytes for its shape \(2, 28, 28\), and holds 1583"),
        (IMAGES + b"x", r"and holds 1585"),
    ],
    ids=["labels", "a web page", "empty", "cut in the header", "cut short", "too long"],
)
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str, compressed: bool) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / (f"{NAME}.gz" if compressed else NAME)
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(SpecError, match=complaint) as refused:
        open_idx(tmp_path, NAME, dimensions=3)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(IMAGES)[:14]], ids=["not gzip", "cut"])
def test_a_broken_gzip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """What cannot be decompressed is said to be unreadable."""
    (tmp_path / f"{NAME}.gz").write_bytes(content)
    with pytest.raises(SpecError, match=r"cannot be read: .* Fetch or make it again"):
        open_idx(tmp_path, NAME, dimensions=3)


def test_a_missing_file_says_where_it_was_sought(tmp_path: Path) -> None:
    """The message names the folder, both spellings and the setting."""
    with pytest.raises(SpecError, match=r"has neither train-images-idx3-ubyte nor train-images-idx3-ubyte\.gz.*data_dir"):
        open_idx(tmp_path, NAME, dimensions=3)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    """A set with more images than labels is refused."""
    (tmp_path / NAME).write_bytes(IMAGES)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS[:4] + struct.pack(">I", 1) + bytes(1))
    with pytest.raises(SpecError, match=r"holds 2 images, .* 1 labels"):
        open_pair(tmp_path, "train", (28, 28, 1))


def test_images_must_fit_the_network(tmp_path: Path) -> None:
    """Images of another size than the network's are refused."""
    (tmp_path / NAME).write_bytes(IMAGES)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS)
    with pytest.raises(SpecError, match=r"holds images of \(28, 28\), the network looks at \(32, 32, 3\)"):
        open_pair(tmp_path, "train", (32, 32, 3))


def test_the_digits_are_such_a_set(digit_files: Path) -> None:
    """The offline data set has MNIST's shape, 1,500 digits to learn and 297 to be asked about."""
    assert [file.shape for file in open_pair(digit_files, "train", (28, 28, 1))] == [(1500, 28, 28), (1500,)]
    assert [file.shape for file in open_pair(digit_files, "t10k", (28, 28, 1))] == [(297, 28, 28), (297,)]


def test_the_digits_are_the_same_every_time(digit_files: Path, tmp_path: Path) -> None:
    """A second set has the same bytes; making it again touches nothing."""
    again = digits.make(tmp_path / "again")
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in digit_files.iterdir()
    }
    stamps = {path: path.stat().st_mtime_ns for path in again.iterdir()}
    digits.make(again)
    assert {path: path.stat().st_mtime_ns for path in again.iterdir()} == stamps
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]
