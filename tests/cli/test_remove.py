"""`dtfperf baselines remove` and `uncalibrate`: the selected baselines are changed after a confirmation, and no others."""

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.files import canonical, published_folder
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.cli import main
from tests.baselines.examples import calibrated_of, entry_of
from tests.cli.table import read
from tests.plugin import zygote

CALIBRATED = replace(entry_of([100.0, 101.0], gpus=2), noise=calibrated_of())
PLAIN = entry_of([50.0, 51.0], gpus=1)
OTHER = entry_of([7.0, 7.1], gpus=1, model="alexnet")
UTF8 = {**os.environ, **zygote.SEARCH_PATH, "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    """Return a store of two systems; the first one has two cases, one of them calibrated."""
    store = BaselineStore(tmp_path / "baselines")
    store.update("cpu-a", [CALIBRATED, PLAIN])
    store.update("cpu-b", [OTHER])
    return store


def list_entries(store: BaselineStore) -> dict[str, list[Entry]]:
    return {system: store.entries(system) for system in store.systems()}


def run_baselines(store: BaselineStore, command: str, *arguments: str) -> int:
    return main(["baselines", command, *arguments, f"--baselines={store.folder}"])


def test_matching_entries_are_shown_and_removed(store: BaselineStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line shows a removed entry; the others are unchanged, in the canonical form."""
    assert run_baselines(store, "remove", "gpus=2", "--yes") == 0
    shown, ended = capsys.readouterr().out.splitlines()
    assert shown == (
        "cpu-a: trivial b32 gpus=2 num_ps=1 parameter_server: 100.5 images/sec in 2 runs, "
        "accepted on 2026-01-31 of session 20260131T021503Z-9f3c1a, calibrated on 2026-01-30"
    )
    assert ended == "dtfperf: 1 baseline removed."
    assert list_entries(store) == {"cpu-a": [PLAIN], "cpu-b": [OTHER]}
    text = (store.folder / "cpu-a.json").read_text()
    assert text == canonical(json.loads(text))


def test_system_selects_its_baselines(store: BaselineStore) -> None:
    """--system selects the baselines of a system, and a file without other content is removed with its last one."""
    assert run_baselines(store, "remove", "model=*", "--system=cpu-b", "--yes") == 0
    assert list_entries(store) == {"cpu-a": [PLAIN, CALIBRATED]}
    assert sorted(path.name for path in store.folder.glob("*.json")) == ["cpu-a.json"]


def test_published_content_stays(tmp_path: Path) -> None:
    """References, sources and thresholds of a system's file stay byte for byte when all its baselines are removed."""
    store = BaselineStore(tmp_path)
    before = (published_folder() / "piz-daint.json").read_bytes()
    (tmp_path / "piz-daint.json").write_bytes(before)
    store.update("piz-daint", [PLAIN])
    assert run_baselines(store, "remove", "model=*", "--yes") == 0
    assert (tmp_path / "piz-daint.json").read_bytes() == before


def test_uncalibrate_removes_only_the_noise(store: BaselineStore, capsys: pytest.CaptureFixture[str]) -> None:
    """uncalibrate removes only the noise, and is exit code 1 if there is none."""
    assert run_baselines(store, "uncalibrate", "model=trivial", "--yes") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "dtfperf: 1 calibrated baseline uncalibrated."
    assert list_entries(store)["cpu-a"] == [PLAIN, replace(CALIBRATED, noise=None)]
    assert run_baselines(store, "uncalibrate", "model=trivial", "--yes") == 1
    assert (
        capsys.readouterr().out == "dtfperf: no calibrated baseline in "
        f"{store.folder} is like model=trivial; nothing was changed.\n"
    )


def test_nothing_is_removed_without_a_confirmation(
    store: BaselineStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal and without --yes the entries are shown, and nothing is removed."""
    before = list_entries(store)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert run_baselines(store, "remove", "model=*") == 2
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 3
    assert output.err == "dtfperf: nothing was changed: there is no terminal for the question; add --yes to confirm\n"
    assert list_entries(store) == before


@pytest.mark.parametrize(
    "answer, code, left", [(b"y\n", 0, 1), (b"n\n", 1, 2), (b"\n", 1, 2), (b"\x04", 1, 2), (b"\xff\n", 1, 2)]
)
def test_only_yes_confirms(store: BaselineStore, answer: bytes, code: int, left: int) -> None:
    """At a terminal only a yes removes the entries; any other answer and the end of input leave them."""
    controller, terminal = pty.openpty()
    command = zygote.make_command("baselines", "remove", "gpus=2", f"--baselines={store.folder}", "--json")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=terminal, stdout=pipe, stderr=pipe, text=True, env=UTF8) as process:
        os.write(controller, answer)
        out, err = process.communicate(timeout=300)
    os.close(controller)
    os.close(terminal)
    assert process.returncode == code
    assert f"1 baseline of {store.folder} will be removed. Continue? [y/N]" in err
    assert len(read("baselines remove", out)["done"]) == 2 - left
    assert len(store.entries("cpu-a")) == left


def test_newer_entry_is_not_removed(store: BaselineStore) -> None:
    """An entry that was accepted after the selection is not removed."""
    newer = entry_of([60.0, 61.0], gpus=1)
    store.update("cpu-a", [newer])
    assert store.remove("cpu-a", [PLAIN, CALIBRATED]) == [CALIBRATED]
    assert store.uncalibrate("cpu-a", [CALIBRATED]) == []
    assert list_entries(store)["cpu-a"] == [newer]


WRONG: dict[str, tuple[list[str], str]] = {
    "a word": (["resnet50"], "'resnet50' is no FIELD=VALUE"),
    "no such system": (["model=*", "--system=x"], "has none like 'x'. There are: cpu-a, cpu-b"),
}


@pytest.mark.parametrize("arguments, words", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_one_line(
    store: BaselineStore, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments are one line and exit code 2."""
    assert run_baselines(store, "remove", *arguments, "--yes") == 2
    output = capsys.readouterr()
    assert words in output.err
    assert (output.err.count("\n"), output.out) == (1, "")


def test_no_match_is_exit_code_1(store: BaselineStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a matching entry the exit code is 1, with a message."""
    assert run_baselines(store, "remove", "gpus=64") == 1
    assert "no baseline in" in capsys.readouterr().out
