"""MNIST's file format: errors in a file are reported before training, with its name."""

import gzip
import struct
from pathlib import Path

import pytest

from perf_tests import digits
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.inputs.formats import open_idx, open_mnist

NAME = "train-images-idx3-ubyte"
IMAGES = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 28, 28) + bytes(2 * 784)
LABELS = bytes((0, 0, 8, 1)) + struct.pack(">I", 2) + bytes(2)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_a_good_file_is_opened_compressed_or_not(tmp_path: Path, compressed: bool) -> None:
    """Shape, header and record size come from the file's own header."""
    path = tmp_path / (f"{NAME}.gz" if compressed else NAME)
    path.write_bytes(gzip.compress(IMAGES) if compressed else IMAGES)
    file = open_idx(tmp_path, NAME, dimensions=3)
    assert (file.path, file.shape, file.header_bytes) == (path, (2, 28, 28), 16)


@pytest.mark.parametrize(
    "content, problem",
    [
        (LABELS, r"begins with 00 00 08 01, an idx file of 3 dimensions with 00 00 08 03"),
        (b"<html>", r"begins with 3c 68 74 6d"),
        (b"", r"is empty: fetch or make it again"),
        (IMAGES[:4] + struct.pack(">3I", 0, 28, 28), r"is a set of nothing: its header counts 0 items"),
        (IMAGES[:10], r"ends within its header, after 10 of 16 bytes"),
        (IMAGES[:-1], r"promises 1584 bytes for its shape \(2, 28, 28\), and holds 1583"),
        (IMAGES + b"x", r"and holds 1585"),
    ],
    ids=["labels", "a web page", "empty", "no images", "cut in the header", "cut short", "too long"],
)
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: bytes, problem: str, compressed: bool) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / (f"{NAME}.gz" if compressed else NAME)
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(SpecError, match=problem) as refused:
        open_idx(tmp_path, NAME, dimensions=3)
    assert str(path) in str(refused.value)


ZIPPED = gzip.compress(IMAGES)


@pytest.mark.parametrize(
    "content, problem",
    [
        (ZIPPED[:2] + b"\0" + ZIPPED[3:], r"what begins at byte 0 is no gzip, or damaged \(.*unknown compression method\)"),
        (ZIPPED[:14], r"the gzip that begins at byte 0 is cut short"),
        (ZIPPED[:-1], r"the gzip that begins at byte 0 is cut short"),
        (
            ZIPPED[:-5] + bytes((ZIPPED[-5] ^ 1,)) + ZIPPED[-4:],
            r"what begins at byte 0 is no gzip, or damaged \(.*incorrect data check\)",
        ),
        (ZIPPED + b"more", rf"what begins at byte {len(ZIPPED)} is no gzip"),
    ],
    ids=["of another method", "cut", "cut at the end", "wrong checksum", "too long"],
)
def test_broken_gzip_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    """A file that cannot be decompressed is refused with the byte where the damage begins."""
    path = tmp_path / f"{NAME}.gz"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=rf"cannot be read: {problem}.*Fetch or make it again") as refused:
        open_idx(tmp_path, NAME, dimensions=3)
    assert str(refused.value).startswith(f"{path} ")


def test_a_gzip_file_may_have_several_members(tmp_path: Path) -> None:
    """One after the other they hold one file, as `cat` and parallel compressors write it."""
    (tmp_path / f"{NAME}.gz").write_bytes(gzip.compress(IMAGES[:900]) + gzip.compress(IMAGES[900:]))
    assert open_idx(tmp_path, NAME, dimensions=3).shape == (2, 28, 28)


@pytest.mark.parametrize("compressed, where", [(False, "byte 9"), (True, "byte 9 of its content")], ids=["plain", "gzip"])
def test_labels_must_be_classes_of_the_network(tmp_path: Path, compressed: bool, where: str) -> None:
    """A label outside the network's classes is refused with the file and its byte."""
    (tmp_path / NAME).write_bytes(IMAGES)
    labels = LABELS[:-1] + b"\x0a"
    path = tmp_path / f"train-labels-idx1-ubyte{'.gz' * compressed}"
    path.write_bytes(gzip.compress(labels) if compressed else labels)
    assert open_mnist(tmp_path, "train", (28, 28, 1), 11)
    with pytest.raises(SpecError) as refused:
        open_mnist(tmp_path, "train", (28, 28, 1), 10)
    assert str(refused.value).startswith(f"{path} has label 10 at {where}, where the network tells 0 to 9 apart")


def test_missing_file_is_reported_with_its_folder(tmp_path: Path) -> None:
    """The message names the folder, both spellings and the setting."""
    with pytest.raises(
        SpecError, match=r"has neither train-images-idx3-ubyte nor train-images\.idx3-ubyte, with or without \.gz.*data_dir"
    ):
        open_idx(tmp_path, NAME, dimensions=3)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    """A set with more images than labels is refused."""
    (tmp_path / NAME).write_bytes(IMAGES)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS[:4] + struct.pack(">I", 1) + bytes(1))
    with pytest.raises(SpecError, match=r"holds 2 images, .* 1 labels"):
        open_mnist(tmp_path, "train", (28, 28, 1), 10)


def test_images_must_fit_the_network(tmp_path: Path) -> None:
    """Images of another size than the network's are refused."""
    (tmp_path / NAME).write_bytes(IMAGES)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS)
    with pytest.raises(SpecError, match=r"holds images of \(28, 28\), the network looks at \(32, 32, 3\)"):
        open_mnist(tmp_path, "train", (32, 32, 3), 10)


def test_digits_have_the_format_of_mnist(digit_files: Path) -> None:
    """The offline data set has MNIST's shape, with 1,500 digits for training and 297 for the test."""
    assert [file.shape for file in open_mnist(digit_files, "train", (28, 28, 1), 10)] == [(1500, 28, 28), (1500,)]
    assert [file.shape for file in open_mnist(digit_files, "t10k", (28, 28, 1), 10)] == [(297, 28, 28), (297,)]


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
