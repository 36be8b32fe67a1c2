"""What comes with another graph or another major version of the framework ends a series, and is compared all the same."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.enter import enter_all, remember
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.watching import search_changes
from pytest_dtfperf.history.where import Address, parse_address
from tests.history.sessions import HARDWARE, folder_of

OLD = {"graph": "aaaaaaaaaaaa", "operations": {"Conv2D": 94, "MatMul": 1}, "settings": {}}
NEW = {"graph": "bbbbbbbbbbbb", "operations": {"Conv2D": 58, "MatMul": 37}, "settings": {}}


def history(
    folder: Path, *parts: tuple[int, float, Mapping[str, Any]], gpus: Sequence[int] = (1, 2, 4), at_once: bool = False
) -> Address:
    """Enter nights, part by part: (nights, rate, what `folder_of` takes); searched night by night, or all at once."""
    address = parse_address(None, folder)
    assert address
    content, random = _make_first_part(json.dumps(parts[0]), tuple(gpus), at_once)
    Path(str(address)).write_bytes(content)
    random, night = deepcopy(random), parts[0][0]
    for part in parts[1:]:
        _enter_part(folder, night, part, gpus, random, at_once)
        night += part[0]
    return address


@cache  # several tests begin with the same nights
def _make_first_part(part: str, gpus: Sequence[int], at_once: bool) -> tuple[bytes, np.random.Generator]:
    """Return the file of a history with a first part, and the generator of the noise after it."""
    random = np.random.default_rng(1)
    with TemporaryDirectory() as folder:
        address = _enter_part(Path(folder), 0, json.loads(part), gpus, random, at_once)
        return Path(str(address)).read_bytes(), random


def _enter_part(
    folder: Path,
    first: int,
    part: tuple[int, float, Mapping[str, Any]],
    gpus: Sequence[int],
    random: np.random.Generator,
    at_once: bool,
) -> Address:
    address = parse_address(None, folder)
    assert address
    nights, rate, given = part
    for night in range(first, first + nights):
        rates = {each: [each * rate * float(np.exp(random.normal(0, 0.01)))] * 2 for each in gpus}
        enter_all([folder_of(folder / "results", night, rates, **given)], address)
        if not at_once:
            Database.open(address).write(search_changes)
    return address


def events(address: Address) -> list[Row]:
    database = Database.open(address)
    database.write(search_changes)
    with database.reading() as connection:
        return store.read_events(connection)


Given = Mapping[str, Any]  # what `folder_of` takes
TF2: Given = {"software": {"tensorflow": "2.20.0"}}
TF3: Given = {"software": {"tensorflow": "3.0.0"}}
BREAKS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "another framework": (TF2, TF3, "tensorflow 2.20.0 -> 3.0.0"),
    "another graph": ({"program": OLD}, {"program": NEW}, "training graph: 36 Conv2D less, 36 MatMul more"),
    "another CUDA": ({"software": {"cuda": "12.4"}}, {"software": {"cuda": "13.0"}}, "cuda 12.4 -> 13.0"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("then, now, why", BREAKS.values(), ids=BREAKS)
def test_a_loss_that_comes_with_a_break_is_an_event(
    then: Mapping[str, Any], now: Mapping[str, Any], why: str, at_once: bool, tmp_path: Path
) -> None:
    """A loss of 20 % that arrives with another graph or version is one event of all series, which names what was replaced."""
    (event,) = events(history(tmp_path, (12, 100.0, then), (4, 80.0, now), at_once=at_once))
    assert (event["kind"], event["state"], len(event["members"])) == ("break", "confirmed", 3)
    assert event["differences"][0] == why
    assert (event["last_good_at"][:10], event["first_bad_at"][:10]) == ("2026-01-12", "2026-01-13")
    assert all(-0.23 < member["change"] < -0.17 and member["high"] < 0 for member in event["members"])


def test_both_causes_of_a_break_are_named(tmp_path: Path) -> None:
    """The first line of the event names the version and the graph, before what was only noted."""
    then: Given = {**TF2, "program": OLD, "commit": "a11ce"}
    now: Given = {**TF3, "program": NEW, "commit": "b0b"}
    address = history(tmp_path, (10, 100.0, then))
    remembered = []
    for night in range(10, 13):
        folder = folder_of(tmp_path / "results", night, {each: [80.0 * each] * 2 for each in (1, 2, 4)}, **now)
        remembered.append(remember(folder, address))
    (new,) = [each.new for each in remembered if each.new]
    assert ", with tensorflow 2.20.0 -> 3.0.0; training graph: 36 Conv2D less, 36 MatMul more; commit a11ce -> b0b" in new[0]
    assert "-20." in new[0] or "-19." in new[0]


def test_a_gain_across_a_break_is_an_event(tmp_path: Path) -> None:
    """A new version that is faster by 10 % is reported as well."""
    (event,) = events(history(tmp_path, (12, 100.0, TF2), (6, 110.0, TF3)))
    assert event["kind"] == "break"
    assert all(member["change"] > 0.07 for member in event["members"])


@pytest.mark.parametrize("now", [TF3, {**TF2, "hardware": {**HARDWARE, "cores": 4}}], ids=["the same rate", "other hardware"])
def test_no_event_without_a_loss_or_on_other_hardware(now: Mapping[str, Any], tmp_path: Path) -> None:
    """A break that costs nothing is none, and rates of other hardware are never compared."""
    rate = 100.0 if now is TF3 else 50.0
    assert events(history(tmp_path, (12, 100.0, TF2), (12, rate, now))) == []


def test_several_breaks_are_each_compared(tmp_path: Path) -> None:
    """Of two breaks that cost 10 % each is an event; a third that costs nothing is none."""
    parts = [
        (12, 100.0, {"program": OLD}),
        (8, 90.0, {"program": NEW}),
        (8, 81.0, {"program": {**NEW, "graph": "cccccccccccc"}}),
    ]
    found = events(history(tmp_path, *parts, (6, 81.0, {"program": {**NEW, "graph": "dddddddddddd"}})))
    assert [event["kind"] for event in found] == ["break", "break"]
    assert [event["first_bad_at"][:10] for event in found] == ["2026-01-13", "2026-01-21"]


def test_a_few_nights_between_two_breaks_hide_nothing(tmp_path: Path) -> None:
    """Where a version was measured in one slow night alone, the next one is compared with the nights before both."""
    found = events(history(tmp_path, (12, 100.0, TF2), (1, 80.0, {"program": OLD}), (5, 80.0, {"program": NEW})))
    (event,) = found
    assert event["last_good_at"][:10] == "2026-01-12"
    assert event["first_bad_at"][:10] == "2026-01-14"


def test_few_nights_on_either_side(tmp_path: Path) -> None:
    """Three nights before a break and two after it are enough for 20 %, where there are other series to know the noise from."""
    other = history(tmp_path, (3, 100.0, TF2), (3, 80.0, TF3), gpus=(1, 2, 4, 8))
    (event,) = events(other)
    assert event["kind"] == "break"


def test_one_bad_night_after_a_break_is_no_event(tmp_path: Path) -> None:
    """The first night of a new version that went wrong is no change, and neither is one among the nights before."""
    parts = [(6, 100.0, TF2), (1, 60.0, TF2), (6, 100.0, TF2), (1, 70.0, TF3), (8, 100.0, TF3)]
    assert [event for event in events(history(tmp_path, *parts)) if event["state"] == "confirmed"] == []


def test_a_series_that_goes_on_has_not_ended(tmp_path: Path) -> None:
    """Two versions that are measured in turn are two series, and neither is compared with the other."""
    parts = [(4, 100.0, TF2), *[(1, 80.0, TF3), (1, 100.0, TF2)] * 6]
    assert events(history(tmp_path, *parts)) == []


def test_another_driver_is_the_same_series(tmp_path: Path) -> None:
    """A driver ends no series: its loss is a step, with the driver as a candidate."""
    then, now = {"software": {"driver": "550.54"}}, {"software": {"driver": "570.12"}}
    (event,) = events(history(tmp_path, (14, 100.0, then), (6, 80.0, now)))
    assert event["kind"] == "step"
    assert "driver 550.54 -> 570.12" in event["differences"]


def test_commands_show_a_break(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """trend and compare show the change across a break and what was replaced, before an event is confirmed, too."""
    address = history(tmp_path, (10, 100.0, TF2), (1, 80.0, TF3), gpus=(1,))
    assert main(["history", "trend", f"--history={address}"]) == 0
    out = capsys.readouterr().out
    assert "begins -20." in out or "begins -19." in out or "begins -21." in out
    assert "against the 10 nights before, with tensorflow 2.20.0 -> 3.0.0" in out
    assert main(["history", "trend", "--json", f"--history={address}"]) == 0
    old, new = json.loads(capsys.readouterr().out)["series"]
    assert (old["began"]["ended"], old["began"]["because"]) == (None, [])
    assert (new["began"]["ended"], new["began"]["because"]) == (old["name"], ["tensorflow 2.20.0 -> 3.0.0"])
    assert main(["history", "compare", "2026-01-10", "last", f"--history={address}"]) == 0
    out = capsys.readouterr().out
    assert "slower, across a break" in out


def test_an_event_of_a_break_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The event is beneath its series in trend with a mark at its first night, and --fail makes a job red."""
    address = history(tmp_path, (12, 100.0, TF2), (2, 80.0, TF3))
    assert main(["history", "changes", "--fail", f"--history={address}"]) == 1
    assert "break" in capsys.readouterr().out
    assert main(["history", "trend", "gpus=1", f"--history={address}"]) == 0
    out = capsys.readouterr().out
    assert "\n^\n" in out
    assert ", with tensorflow 2.20.0 -> 3.0.0" in out
