"""Named files that are no regular files: a pipe, a device, a folder, or too large. Each command reports them in one line."""

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from tests.node.test_files import WORDS, make_strange
from tests.records.damage import whole_session

ENDS_S = 60
# What is said of some of these files in other words.
OTHERWISE = {
    "session/session.json": ("has no session.json", "has more than 1024 MiB", "'utf-8' codec"),
    "session/measurements.jsonl": ("has more than 1024 MiB", "'utf-8' codec"),
    "site/site.json": ("'utf-8' codec",),
    "results/nightly.local.lock": ("Is a directory", "No such device", "Too many levels"),
    "history.sqlite": ("it is not an SQLite file",),
}


@pytest.fixture(autouse=True)
def no_wait() -> Iterator[None]:
    """End a test that waits for the other end of a pipe."""

    def end(*_: object) -> None:
        raise AssertionError(f"it still waits after {ENDS_S} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(ENDS_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a session, which each test copies."""
    return whole_session(tmp_path_factory.mktemp("made")).path


@pytest.fixture
def project(tmp_path: Path, session: Path) -> Iterator[Path]:
    """Change to a folder with a session."""
    shutil.copytree(session, tmp_path / "session")
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize(
    "name, command",
    [
        ("clusters.toml", ["clusters", "list", "--clusters-file=clusters.toml"]),
        ("clusters.toml", ["clusters", "list"]),
        ("machines", ["clusters", "check", "--clusters-file=lab.toml"]),
        ("baselines/cpu-a.json", ["baselines", "audit", "tests"]),
        ("baselines/cpu-a.json", ["baselines", "remove", "gpus=2", "--yes"]),
        ("baselines/cpu-amd-epyc-9b45-2c.json", ["judge", "session", "--baselines=baselines"]),
        ("session/session.json", ["judge", "session"]),
        ("session/measurements.jsonl", ["judge", "session"]),
        ("results/nightly.local.lock", ["nightly", "--cluster=local", "--results=results", "--deadline=1"]),
        ("site/site.json", ["site", "--history=h.sqlite", "--out=site"]),
        ("history.sqlite", ["history", "list", "--history=history.sqlite"]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each,
)
def test_strange_file_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, command: list[str]
) -> None:
    """One line names the file and its kind, without an error number of the system and without waiting."""
    for folder in ("baselines", "results", "site", "tests"):
        (project / folder).mkdir()
    (project / "lab.toml").write_text('[lab]\nbackend = "ssh"\nnodes_file = "machines"\ndevices_per_host = 1\n')
    if command[0] == "site":  # the only one that reads a history
        assert main(["history", "import", "session", "--history=h.sqlite"]) == 0
    (project / name).unlink(missing_ok=True)
    make_strange(project / name, kind)
    capsys.readouterr()
    if name == "results/nightly.local.lock" and kind in ("large", "binary"):  # its content is nobody's
        return
    if (name, kind, len(command)) == ("clusters.toml", "folder", 2):  # a folder may have that name, and mean something else
        return
    code = main(command)
    shown = capsys.readouterr()
    (line,) = [line for line in (shown.err or shown.out).splitlines() if (project / name).name in line]
    assert code
    assert "Errno" not in line
    missing = {"folder": "there is no cluster file", "loop": "there is no"}
    assert any(words in line for words in (WORDS[kind], kind, missing.get(kind, kind), *OTHERWISE.get(name, ())))
