"""`dtfperf make-data`. tests/real/test_making.py has the data sets that need TensorFlow."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.testing.backends import wait_until
from pytest_dtfperf.training.inputs.formats import TEST_FILES, TRAINING_FILES, open_cifar10, open_mnist
from tests.cli.table import read_refusal
from tests.plugin import zygote

PATIENCE_S = 60.0


def make_data(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return zygote.dtfperf("make-data", *arguments)


def read_contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_mnist_has_the_requested_images(tmp_path: Path) -> None:
    """The four idx files match, and have as many images as requested."""
    assert make_data("mnist", "--images", 30, "--out", tmp_path / "made").returncode == 0
    assert [file.shape for file in open_mnist(tmp_path / "made", "train", (28, 28, 1), 10)] == [(30, 28, 28), (30,)]
    assert [file.shape for file in open_mnist(tmp_path / "made", "t10k", (28, 28, 1), 10)] == [(3, 28, 28), (3,)]


def test_cifar10_has_the_requested_images(tmp_path: Path) -> None:
    """Five training files share the images evenly."""
    assert make_data("cifar10", "--images", 33, "--test-images", 4, "--out", tmp_path / "made").returncode == 0
    assert sorted(open_cifar10(tmp_path / "made", TRAINING_FILES).values()) == [6, 6, 7, 7, 7]
    assert list(open_cifar10(tmp_path / "made", TEST_FILES).values()) == [4]


def test_same_seed_makes_the_same_images(tmp_path: Path) -> None:
    """The same arguments make the same bytes, and another seed makes others."""
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        make_data("cifar10", "--images", 10, "--seed", seed, "--out", tmp_path / name)
    first, again, other = (read_contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("mnist", "--images", 0), "--images must be at least 1, not 0"),
        (("mnist", "--seed", -1), "--seed must be at least 0, not -1"),
        (("cifar10", "--images", 4), "--images must be at least 5, not 4"),
        (("imagenet", "--shards", 20, "--images", 10), "--images must be at least 20, not 10"),
        (("imagenet", "--shards", 0), "--shards must be at least 1, not 0"),
        (("imagenet", "--classes", 1001), "--classes must be at most 1000, as many as ImageNet has, not 1001"),
        (("imagenet", "--size", "big"), "--size must be WIDTHxHEIGHT, like 400x350, not 'big'"),
        (("mnist", "--shards", 2), "--shards means nothing to mnist: it is only for imagenet"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[object, ...], problem: str
) -> None:
    """Wrong arguments are exit code 2 with the allowed values, and nothing is made."""
    made = ("--out", str(tmp_path / "made"))
    assert read_refusal(capfd, "make-data", *map(str, arguments), *made) == f"dtfperf: {problem}"
    assert not list(tmp_path.iterdir())


def test_existing_folder_is_refused(tmp_path: Path) -> None:
    """A folder with a file is refused and not changed."""
    (tmp_path / "precious").touch()
    ended = make_data("mnist", "--out", tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2, f"dtfperf: {tmp_path} exists already. Name a new folder, or remove it first.\n",
    )  # fmt: skip
    assert read_contents(tmp_path) == {"precious": b""}


def test_current_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The current folder is refused, also if it is empty."""
    monkeypatch.chdir(tmp_path)
    for out in (".", str(tmp_path)):
        assert main(["make-data", "mnist", "--out", out]) == 2
        assert capsys.readouterr().err == f"dtfperf: {out} exists already. Name a new folder, or remove it first.\n"


def test_link_to_an_empty_folder_is_followed(tmp_path: Path) -> None:
    """The data set is made in the target of a link, and the link stays."""
    disk, link = tmp_path / "disk" / "mnist", tmp_path / "mnist"
    disk.mkdir(parents=True)
    link.symlink_to(disk)
    ended = make_data("mnist", "--images", 10, "--out", link)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert link.is_symlink()
    assert len(read_contents(disk)) == 4
    assert sorted(tmp_path.iterdir()) == [disk.parent, link]


def test_unwritable_path_is_one_line(tmp_path: Path) -> None:
    """A path that cannot be written is exit code 1 and one line with the error of the system."""
    (tmp_path / "file").touch()
    ended = make_data("mnist", "--out", tmp_path / "file" / "made")
    assert ended.returncode == 1
    assert re.fullmatch(rf"dtfperf: {tmp_path}/file/made cannot be made: \[Errno \d+\] .*\n", ended.stderr)


def test_missing_tensorflow_names_the_extra(tmp_path: Path) -> None:
    """Without TensorFlow, a data set that needs it is refused with the command that installs it."""
    code = "import sys\nsys.modules['tensorflow'] = None\nfrom pytest_dtfperf.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    ended = zygote.python("-c", code, "make-data", "imagenet", "--out", tmp_path / "made")
    assert ended.returncode == 2
    assert ended.stderr.startswith("dtfperf: make-data imagenet needs tensorflow, which is not installed: pip install ")
    assert not list(tmp_path.iterdir())


def test_interrupt_while_the_folder_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt right after the folder was made leaves nothing."""
    make = os.mkdir

    def make_and_be_interrupted(path: object, *mode: int, **options: int) -> None:
        make(path, *mode, **options)  # type: ignore[arg-type]
        if str(path).startswith(f"{tmp_path}/"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", make_and_be_interrupted)
    assert main(["make-data", "cifar10", "--out", str(tmp_path / "made")]) == 130
    assert not list(tmp_path.iterdir())


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """An interrupt removes the files that were made."""
    argv = zygote.make_command("make-data", "cifar10", "--images", "1000000", "--out", str(tmp_path / "made"))
    env = {**os.environ, **zygote.SEARCH_PATH}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as making:
        wait_until("it has begun", lambda: list(tmp_path.iterdir()), PATIENCE_S)
        os.killpg(making.pid, signal.SIGINT)
        assert making.communicate()[1] == "dtfperf: interrupted\n"
    assert making.returncode == 130
    assert not list(tmp_path.iterdir())
