"""Session folders: what is written stays, despite other writers and kills."""

import json
import os
import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pytest_dtfperf.baselines.judgement import Kind
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.records.again import judge_again
from pytest_dtfperf.records.record import Record, with_what_follows
from pytest_dtfperf.records.session import SessionFolder, path_safe, select_by_arguments, session_folders
from pytest_dtfperf.records.stored import MOST_SUPERSEDED_BYTES, Journal, line_of, own_record
from tests.baselines.examples import entry_of, measurement_of
from tests.explain.probed import FULL
from tests.forks import PROCESSES
from tests.full_disk import full_behind
from tests.records.damage import judge
from tests.records.host_states import ANOTHER_USER
from tests.records.samples import make_comparison, measurement, spec


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(
        tmp_path / "perf_results",
        cluster="local",
        command=["pytest", "perf_tests"],
        versions={"python": "3.11"},
        started=datetime(2026, 1, 31, 2, 15, 3, tzinfo=UTC),
    )


def make_bill(usd: float) -> Bill:
    return Bill(usd=usd, price_source="clusters.toml", price_date="2026-01-31")


def test_a_folder_is_named_by_its_time_and_six_digits(folder: SessionFolder) -> None:
    """The folder's name is its session's id: the UTC time and six hexadecimal digits."""
    assert re.fullmatch(r"20260131T021503Z-[0-9a-f]{6}", folder.path.name)
    assert folder.session.to_json() == {
        "schema": 1,
        "id": folder.path.name,
        "cluster": "local",
        "started": "2026-01-31T02:15:03+00:00",
        "wall_s": None,
        "command": ["pytest", "perf_tests"],
        "versions": {"python": "3.11"},
        "costs": [],
        "verdicts": {},
        "exit_code": None,
    }


def test_one_session_has_one_folder(tmp_path: Path) -> None:
    """Processes of one session that make its folder get the same, and what the first wrote stays."""
    folders = [
        SessionFolder.create(tmp_path, cluster=name, command=[], versions={}, session_id="20260131T021503Z-9f3c1a")
        for name in ("first", "second")
    ]
    assert folders[0] == folders[1]
    assert folders[1].session.cluster == "first"


def test_a_measurement_comes_back_as_it_was_written(folder: SessionFolder) -> None:
    """A measurement is on disk, unjudged and complete, before anybody judges it."""
    written = folder.add("t.py::test_a", measurement(spec(), [9.8, 9.9]))

    (read,) = SessionFolder.open(folder.path).measurements()
    assert read == written
    assert (read.verdict, read.reason, read.baseline) == (None, None, None)


def test_a_line_has_the_names_others_rely_on(folder: SessionFolder) -> None:
    """The keys of a line are those the design promises."""
    folder.add("t.py::test_a", measurement(spec(), [9.8, 9.9], injected_slowdowns={"worker:0": 0.2}))

    line = json.loads((folder.path / "measurements.jsonl").read_text())
    assert list(line) == [
        "schema", "id", "test", "spec", "runs", "hosts", "fingerprint", "injected_slowdowns", "images_per_sec", "efficiency",
        "anchor", "verdict", "reason", "checks", "accepted", "baseline", "change", "flops_per_sec", "share_of_peak",
    ]  # fmt: skip
    assert line["images_per_sec"] == pytest.approx(9.85)


def test_probes_are_noted_beside_what_was_measured(folder: SessionFolder) -> None:
    """What the hosts can do is added to a measurement's line, stays there when it is judged, and may be missing."""
    first, second = (folder.add("t.py::test_a", measurement(spec(gpus=n, num_ps=1), [9.8])) for n in (1, 2))
    folder.note_probes(second.id, FULL)
    folder.judge(second.id, verdict=Verdict.REGRESSED, reason="slower")

    without, probed = SessionFolder.open(folder.path).measurements()
    assert (without.id, without.measurement.probes) == (first.id, None)
    assert probed.measurement.probes == FULL


def test_judging_changes_one_line(folder: SessionFolder) -> None:
    """A verdict is written into its own measurement's line and leaves the others as they were."""
    ids = [folder.add("t.py::test_a", measurement(spec(gpus=n, num_ps=1), [9.0 * n])).id for n in (1, 2, 4)]
    before = (folder.path / "measurements.jsonl").read_text().splitlines()

    judgement = make_comparison(20.0, -0.1, verdict=Verdict.REGRESSED, reason="10 % slower")
    folder.add_judgement(ids[1], judgement)

    after = (folder.path / "measurements.jsonl").read_text().splitlines()
    assert (after[0], after[2]) == (before[0], before[2])
    judged = folder.measurements()[1]
    assert (judged.verdict, judged.reason, judged.comparison) == ("REGRESSED", "10 % slower", judgement)


def test_a_change_costs_its_own_record_alone(folder: SessionFolder) -> None:
    """A judgement appends a line and rewrites nothing, however many measurements there are; at the end one each is left."""
    ids = [folder.add("t.py::test_a", measurement(spec(steps=n), [9.8])).id for n in range(1, 51)]
    path = folder.path / "measurements.jsonl"
    file, before = path.stat().st_ino, path.read_bytes()
    judged = folder.judge(ids[7], verdict=Verdict.PASSED, reason="fine")
    assert (path.stat().st_ino, path.read_bytes()) == (file, before + line_of(judged))
    assert SessionFolder.open(folder.path).measurements()[7] == judged
    folder.finish(exit_code=0, wall_s=1.0)
    lines = path.read_bytes().splitlines(keepends=True)
    assert (len(lines), lines[7]) == (50, line_of(judged))
    assert folder.session.verdicts == {"PASSED": 1}


def test_lines_that_do_not_count_take_no_more_room_than_those_that_do(folder: SessionFolder) -> None:
    """A record of megabytes that changes again and again does not fill the disk: now and then its last lines alone are kept."""
    steps = [float(number) / 7 for number in range(1, 150_001)]
    big = measurement(spec(), [9.8])
    big = replace(big, runs=[replace(run, step_s={"worker:0": steps}) for run in big.runs])
    record = folder.add("t.py::test_a", big)
    size = (folder.path / "measurements.jsonl").stat().st_size
    sizes = set()
    for number in range(12):
        folder.judge(record.id, verdict=Verdict.PASSED, reason=f"fine {number}")
        sizes.add(round((folder.path / "measurements.jsonl").stat().st_size / size))
    assert max(sizes) <= 2 + MOST_SUPERSEDED_BYTES / size
    assert min(sizes) == 1
    assert folder.measurements() == SessionFolder(folder.path, is_ours=True).measurements()


def test_each_line_is_read_once(folder: SessionFolder) -> None:
    """What other processes append is read, and nothing of what was read before, until the file is another one."""
    read: list[int] = []

    def record_of(number: int, line: bytes) -> Record:
        read.append(number)
        return own_record(line, f"line {number}")

    other = SessionFolder(folder.path, is_ours=True)
    journal = Journal(folder.path / "measurements.jsonl", record_of)
    for number in (1, 2, 3):
        added = other.add(f"test_{number}", measurement(spec(steps=number), [9.8]))
        journal.refresh()
        journal.refresh()
    assert read == [1, 2, 3]
    other.judge(added.id, verdict=Verdict.PASSED, reason="fine")
    journal.refresh()
    assert (read.pop(), list(journal.records.values())) == (4, other.measurements())
    other.finish(exit_code=0, wall_s=1.0)
    journal.refresh()
    assert (read, list(journal.records.values())) == ([1, 2, 3, 1, 2, 3], other.measurements())


@pytest.mark.parametrize("seed", range(5))
def test_what_follows_from_a_change_is_as_of_all_records(folder: SessionFolder, seed: int) -> None:
    """Whatever is added and judged, in whatever order and by two processes, each record is what all of them make it."""
    dice = random.Random(seed)
    folders = [folder, SessionFolder(folder.path, is_ours=True)]
    verdicts = [Verdict.PASSED, Verdict.REGRESSED, Verdict.TAINTED, Verdict.INVALID]
    for number in range(40):
        ours, known = dice.choice(folders), folder.measurements()
        if len(known) < 3 or dice.random() < 0.4:
            gpus = dice.choice([1, 1, 2, 4])
            rates = [50.0 * gpus + dice.random() for _ in range(3)]
            model, num_ps = dice.choice(["alexnet", "trivial"]), dice.choice([1, 2])
            ours.add(f"test_{number}", measurement_of(rates, model=model, gpus=gpus, num_ps=num_ps))
        elif dice.random() < 0.5 and (ones := [each for each in known if each.spec.gpus == 1]):
            one = dice.choice(ones)
            many = dice.choice([each for each in known if each.spec.model == one.spec.model])
            judge(ours, "efficiency", many, one, threshold=dice.choice([0.5, 0.99]))
        else:
            ours.judge(dice.choice(known).id, verdict=dice.choices(verdicts, [8, 4, 2, 1])[0], reason=f"change {number}")
        assert folder.measurements() == with_what_follows(folder.measurements()) == folders[1].measurements()


def test_a_writer_killed_before_the_end_of_its_session_leaves_all_it_has_written(folder: SessionFolder) -> None:
    """Lines that later ones have replaced are no further measurements, for any reader of the folder."""
    record = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    folder.extend(record.id, measurement(spec(), [9.9]).runs)
    judged = folder.judge(record.id, verdict=Verdict.PASSED, reason="fine")
    assert len((folder.path / "measurements.jsonl").read_bytes().splitlines()) == 3
    assert SessionFolder.open(folder.path).measurements() == [judged]


def test_a_disk_too_full_for_one_line_each_keeps_all_lines(folder: SessionFolder) -> None:
    """A session that ends on a full disk keeps its complete file; nothing is reported as missing."""
    record = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    judged = folder.judge(record.id, verdict=Verdict.PASSED, reason="fine")
    before = (folder.path / "measurements.jsonl").read_bytes()
    with full_behind(folder.path / "session.json", room=200):
        folder.finish(exit_code=0, wall_s=1.0)
    assert (folder.path / "measurements.jsonl").read_bytes() == before
    assert SessionFolder.open(folder.path).measurements() == [judged]
    assert (folder.session.exit_code, folder.refused) == (0, None)


def test_the_gravest_verdict_stays(folder: SessionFolder) -> None:
    """A measurement that one test fails is not whitewashed by another test that it passes."""
    record = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    for verdict in (Verdict.PASSED, Verdict.REGRESSED, Verdict.IMPROVED):
        folder.judge(record.id, verdict=verdict, reason=f"because {verdict}")

    (judged,) = folder.measurements()
    assert (judged.verdict, judged.reason) == ("REGRESSED", "because REGRESSED")


def test_what_cannot_be_true_is_not_slower(folder: SessionFolder) -> None:
    """Where a later run shows that the numbers of what was REGRESSED cannot be true, it is INVALID, without causes, and nobody
    builds upon it; no check that comes later changes that, and no judging again offline."""
    record = folder.add("test_one", measurement_of([80.0, 80.1, 79.9], gpus=1))
    entry = entry_of([100.0, 100.5, 99.5, 100.0], gpus=1)
    judge(folder, "baseline", record, entry=entry)
    folder.explain(record.id, unexplained="nobody knows")
    assert folder.measurements()[0].is_valid
    folder.judge(record.id, verdict=Verdict.INVALID, reason="a step took no time")
    found = folder.measurements()
    assert (found[0].verdict, found[0].reason, found[0].unexplained) == ("INVALID", "a step took no time", "")
    assert not found[0].is_valid
    judge(folder, "baseline", record, entry=entry)
    for later in (folder.measurements()[0], judge_again(found)[0]):
        assert (later.verdict, later.reason) == ("INVALID", "a step took no time")


@pytest.mark.parametrize("void", ["its own", "its anchor's"])
def test_an_efficiency_goes_with_what_it_rests_on(folder: SessionFolder, void: str) -> None:
    """Where a later run makes a measurement INVALID, no efficiency that was judged by it stays, in it or in others; what has
    another anchor is divided by that. What is judged again offline is the same."""
    one = folder.add("test_one", measurement_of([50.0, 50.5], gpus=1))
    many = folder.add("test_many", measurement_of([98.0, 98.1]))
    judge(folder, "efficiency", many, one, threshold=0.7)
    assert [record.anchor for record in folder.measurements()] == [None, one.id]
    wrong = {"its own": many, "its anchor's": one}[void]
    folder.judge(wrong.id, verdict=Verdict.INVALID, reason="a step took no time")
    assert [record.efficiency for record in folder.measurements()] == [None, None]
    assert [record.efficiency for record in judge_again(folder.measurements())] == [None, None]
    again = folder.add("test_one", measurement_of([49.0, 49.5], gpus=1))
    expected = None if void == "its own" else again.id
    for records in (folder.measurements(), judge_again(folder.measurements())):
        assert [record.anchor for record in records] == [None, expected, None]


@pytest.mark.parametrize("kind", ["efficiency", "overhead"])
def test_what_rests_on_an_invalid_measurement_is_not_known(folder: SessionFolder, kind: Kind) -> None:
    """Where what a measurement was held against becomes INVALID later, that check is INCONCLUSIVE and says why, and so is the
    verdict; the check of its rate stays PASSED. What is judged again offline is the same."""
    partner: dict[str, Any] = {"gpus": 1} if kind == "efficiency" else {}
    ours: dict[str, Any] = {"data": "imagenet", "data_dir": "/data"} if kind == "overhead" else {}
    rates = [50.0, 50.1, 50.2] if kind == "efficiency" else [98.5, 98.6, 98.4]
    other = folder.add("test_other", measurement_of(rates, model="alexnet", **partner))
    record = folder.add("test_ours", measurement_of([98.0, 98.1, 98.2], model="alexnet", **ours))
    entry = entry_of([98.0, 98.2, 98.1, 98.0], model="alexnet", **ours)
    judge(folder, "baseline", record, entry=entry)
    judge(folder, kind, record, other, threshold=0.7 if kind == "efficiency" else 0.2)
    before = folder.measurements()[1]
    assert (before.verdict, [check.verdict for check in before.checks]) == ("PASSED", ["PASSED", "PASSED"])
    folder.judge(other.id, verdict=Verdict.INVALID, reason="a step took no time")
    words = f"{kind} is not known: {other.spec.label}, which it was held against, is INVALID: a step took no time"
    now = folder.measurements()
    for found in (now[1], judge_again(now)[1], judge_again([now[0], before])[1]):
        assert (found.verdict, found.reason) == ("INCONCLUSIVE", words)
        assert [check.verdict for check in found.checks] == ["PASSED", "INCONCLUSIVE"]
        assert found.baseline == before.baseline


def test_a_slower_rate_needs_no_anchor(folder: SessionFolder) -> None:
    """What is REGRESSED against its baseline stays so where its anchor becomes INVALID, and so does what explains it."""
    one = folder.add("test_one", measurement_of([50.0, 50.1, 50.2, 50.0], gpus=1))
    many = folder.add("test_many", measurement_of([80.0, 80.1, 79.9]))
    judge(folder, "baseline", many, entry=entry_of([100.0, 100.5, 99.5, 100.0]))
    folder.explain(many.id, unexplained="nobody knows")
    judge(folder, "efficiency", many, one, threshold=0.7)
    before = folder.measurements()[1]
    folder.judge(one.id, verdict=Verdict.INVALID, reason="a step took no time")
    found = folder.measurements()[1]
    assert (found.verdict, found.reason, found.unexplained) == ("REGRESSED", before.reason, "nobody knows")
    assert [check.verdict for check in found.checks] == ["REGRESSED", "INCONCLUSIVE"]


def test_causes_go_with_the_verdict_that_they_explain(folder: SessionFolder) -> None:
    """The explanation of a low efficiency was computed from the anchor, and goes where that becomes INVALID."""
    one = folder.add("test_one", measurement_of([50.0, 50.1, 50.2, 50.0], gpus=1))
    many = folder.add("test_many", measurement_of([60.0, 60.1, 60.2, 60.0]))
    judge(folder, "efficiency", many, one, threshold=0.9)
    assert folder.measurements()[1].verdict == "REGRESSED"
    folder.explain(many.id, unexplained="nobody knows")
    folder.judge(one.id, verdict=Verdict.INVALID, reason="a step took no time")
    found = folder.measurements()[1]
    assert (found.verdict, found.unexplained) == ("INCONCLUSIVE", "")


def test_judging_what_was_never_measured(folder: SessionFolder) -> None:
    """A verdict without a measurement is refused by its id."""
    with pytest.raises(SessionFileError, match="has no measurement with id 'nobody' to judge"):
        folder.judge("nobody", verdict=Verdict.PASSED, reason="")


def test_finishing_counts_verdicts(folder: SessionFolder) -> None:
    """The end of a session counts verdicts; measurements that were not judged are in no count."""
    for verdict in (Verdict.PASSED, Verdict.REGRESSED, Verdict.PASSED):
        folder.judge(folder.add("t.py::test_a", measurement(spec(), [9.8])).id, verdict=verdict, reason="")
    folder.add("t.py::test_a", measurement(spec(), [9.8]))

    folder.finish(exit_code=1, wall_s=12.3456)

    session = folder.session
    assert (session.verdicts, session.exit_code, session.wall_s) == ({"PASSED": 2, "REGRESSED": 1}, 1, 12.346)


def test_what_the_disk_refuses_is_kept_until_it_takes_it(folder: SessionFolder) -> None:
    """A measurement that there is no room for is not lost: this process has it, judged, hands it over, and writes it later."""
    first = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    with full_behind(folder.path / "measurements.jsonl"):
        added = folder.add("t.py::test_b", measurement(spec(), [9.9]))
        second = folder.judge(added.id, verdict=Verdict.PASSED, reason="fine")
        assert second.verdict == "PASSED"
        assert folder.measurements() == list(folder.latest()) == [first, second]
        assert folder.unwritten == [second]
        assert SessionFolder.open(folder.path).measurements() == [first]
    refused = f"results cannot be written to {folder.path}: File too large (measurements.jsonl"
    assert folder.refused == f"{refused}, where the latest measurements are missing)"
    third = folder.add("t.py::test_c", measurement(spec(), [9.7]))
    assert SessionFolder.open(folder.path).measurements() == [first, second, third]
    assert (folder.unwritten, folder.refused) == ([], f"{refused})")


def test_what_another_process_could_not_write_is_taken_over(folder: SessionFolder) -> None:
    """A process that was handed records shows them beside those on disk, and why they are not there."""
    first = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    lost = replace(first, id="another", test="t.py::test_b")
    controller = SessionFolder.open(folder.path)
    assert controller.refused is None
    controller.take_over([lost], "No space left on device")
    assert controller.measurements() == [first, lost]
    assert controller.refused == (
        f"results cannot be written to {folder.path}: No space left on device "
        "(measurements.jsonl, where the latest measurements are missing)"
    )


def test_how_a_session_ended_is_known_without_a_disk(folder: SessionFolder) -> None:
    """What session.json has no room for is shown all the same, and is in it once it has room; a later end counts."""
    with full_behind(folder.path / "session.json"):
        folder.finish(exit_code=1, wall_s=1.0, verdicts={"REGRESSED": 1}, commit="c0ffee" * 99)
        assert (folder.session.exit_code, folder.session.verdicts) == (1, {"REGRESSED": 1})
        assert SessionFolder.open(folder.path).session.exit_code is None
    assert folder.refused == f"results cannot be written to {folder.path}: File too large (session.json)"
    folder.fail(3)
    for each in (folder, SessionFolder.open(folder.path)):
        assert (each.session.exit_code, each.session.commit) == (3, "c0ffee" * 99)


def test_what_could_not_be_said_of_the_session_takes_back_nothing_of_others(folder: SessionFolder) -> None:
    """A process that session.json once had no room for adds its bill later to those that others have written since."""
    ours, theirs = map(make_bill, (0.1, 0.25))
    with full_behind(folder.path / "session.json"):
        folder.spend(ours)
        assert folder.session.costs == [ours]
    SessionFolder.open(folder.path).spend(theirs)
    assert folder.session.costs == [theirs, ours]
    folder.finish(exit_code=0, wall_s=1.0)
    session = SessionFolder.open(folder.path).session
    assert (session.costs, session.exit_code) == ([theirs, ours], 0)


def test_what_is_refused_twice_is_said_once(folder: SessionFolder) -> None:
    """Bills that session.json had no room for, one after the other, stand there once each and in their order when it has."""
    bills = [*map(make_bill, (0.1, 0.25, 0.5))]
    with full_behind(folder.path / "session.json"):
        for bill in bills[:2]:
            folder.spend(bill)
        assert folder.session.costs == bills[:2]
    folder.spend(bills[2])
    assert SessionFolder.open(folder.path).session.costs == folder.session.costs == bills


def test_a_folder_that_another_process_has_made_is_joined(tmp_path: Path) -> None:
    """A process that could not make a session's folder adds to that of another of its processes, and removes nothing."""
    root = tmp_path / "perf_results"
    name = "20260131T021503Z-9f3c1a"
    root.touch()
    late = SessionFolder.create(root, cluster="local", command=["pytest"], versions={}, session_id=name)
    root.unlink()
    early = SessionFolder.create(root, cluster="local", command=["pytest"], versions={}, session_id=name)
    early.spend(make_bill(0.1))
    first = early.add("t.py::test_a", measurement(spec(), [9.8]))
    second = late.add("t.py::test_b", measurement(spec(), [9.9]))
    late.finish(exit_code=0, wall_s=1.0)
    opened = SessionFolder.open(early.path)
    assert opened.measurements() == [first, second]
    assert ([bill.usd for bill in opened.session.costs], opened.session.exit_code) == ([0.1], 0)


def test_a_folder_that_could_not_be_made_is_made_later(tmp_path: Path) -> None:
    """A session that began without room for anything is on disk as a whole once there is some."""
    root = tmp_path / "perf_results"
    root.touch()
    folder = SessionFolder.create(root, cluster="local", command=[], versions={})
    first = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    assert (folder.measurements(), folder.session.exit_code) == ([first], None)
    root.unlink()
    second = folder.add("t.py::test_b", measurement(spec(), [9.9]))
    folder.finish(exit_code=0, wall_s=1.0)
    opened = SessionFolder.open(folder.path)
    assert (opened.measurements(), opened.session.exit_code) == ([first, second], 0)


def test_what_was_accepted_stays_so(folder: SessionFolder) -> None:
    """Of three measurements two have become baselines, one after the other."""
    ids = [folder.add("t.py::test_a", measurement(spec(gpus=gpus), [9.8])).id for gpus in (1, 2, 4)]
    for each in ids[:2]:
        folder.accept([each])
    assert [record.accepted for record in folder.measurements()] == [True, True, False]


def test_what_was_spent_is_kept(folder: SessionFolder) -> None:
    """Bills of all allocations are written down, and are still there when the session has ended."""
    bills = [*map(make_bill, (0.1, 0.25))]
    for bill in bills:
        folder.spend(bill)
    folder.finish(exit_code=0, wall_s=1.0)
    assert folder.session.costs == bills


def test_a_torn_last_line_is_passed_over(folder: SessionFolder) -> None:
    """A writer killed in the middle of its line costs that line alone, also for those that write after it."""
    folder.add("t.py::test_a", measurement(spec(), [9.8]))
    with (folder.path / "measurements.jsonl").open("a") as file:
        file.write('{"schema": 1, "id": "to')

    assert len(folder.measurements()) == 1
    folder.add("t.py::test_b", measurement(spec(), [9.9]))
    assert [record.test for record in folder.measurements()] == ["t.py::test_a", "t.py::test_b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "must be an object with the key 'id'"),
        ("no json", "Expecting value"),
        ("", "Expecting value"),
        ("[1]", "is no measurement"),
    ],
)
def test_any_other_damage_is_an_error_with_its_line(folder: SessionFolder, line: str, message: str) -> None:
    """A whole line that is no measurement is never skipped: the error names file and line."""
    folder.add("t.py::test_a", measurement(spec(), [9.8]))
    with (folder.path / "measurements.jsonl").open("a") as file:
        file.write(line + "\n")

    with pytest.raises(SessionFileError, match=rf"measurements\.jsonl:2: .*{message}"):
        folder.measurements()


def test_line_of_another_version_is_refused(folder: SessionFolder) -> None:
    """A session does not read a line of its own file that has another version of the format."""
    line = folder.add("t.py::test_a", measurement(spec(), [9.8])).to_json() | {"schema": 99}
    (folder.path / "measurements.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SessionFileError, match=r"measurements\.jsonl:1: .*schema: must be one of '1', not 99"):
        folder.measurements()


def test_what_others_left_is_held_against_its_schema(folder: SessionFolder) -> None:
    """A line with a value of another type is refused, in one printable line."""
    folder.add("t.py::test_a", measurement(spec(), [9.8]))
    path = folder.path / "measurements.jsonl"
    path.write_text(path.read_text().replace('"bytes_sent": 1000', '"bytes_sent": "\\u001b[31mmany"'))
    with pytest.raises(SessionFileError) as caught:
        SessionFolder.open(folder.path).measurements()
    assert str(caught.value) == (
        f'{path}:1: is no measurement: runs[0].bytes_sent: must be of type integer, not "\\u001b[31mmany"'
    )


@pytest.mark.parametrize("changes", [{"schema": 2}, {"schema": 2, "oracle": "a new key"}], ids=["alike", "with new keys"])
def test_a_newer_session_says_what_to_install(folder: SessionFolder, changes: dict[str, object]) -> None:
    """What a newer version has written is refused with the way to read it."""
    path = folder.path / "session.json"
    path.write_text(json.dumps(folder.session.to_json() | changes))
    with pytest.raises(SessionFileError, match=r"its schema is 2, this version reads 1\); install that: pip install --upgrade"):
        SessionFolder.open(folder.path).session  # noqa: B018  # reading is what is tested


def test_a_pipe_is_no_file(folder: SessionFolder) -> None:
    """A file that would block its reader is refused."""
    (folder.path / "measurements.jsonl").unlink()
    os.mkfifo(folder.path / "measurements.jsonl")
    with pytest.raises(SessionFileError, match=r"measurements\.jsonl cannot be read: it is a pipe, not a regular file"):
        folder.measurements()


def test_a_folder_without_session_json_is_none(tmp_path: Path) -> None:
    """Any other folder is refused by name."""
    with pytest.raises(SessionFileError, match=r"is no session folder: it has no session\.json"):
        SessionFolder.open(tmp_path)


def test_the_folder_of_all_sessions_names_the_latest(folder: SessionFolder) -> None:
    """Naming perf_results itself is an error that proposes a session: the last of all."""
    for year in (2025, 2024):
        started = datetime(year, 1, 1, tzinfo=UTC)
        SessionFolder.create(folder.path.parent, cluster="local", command=[], versions={}, started=started)
    with pytest.raises(SessionFileError, match=f"it has no session.json; its latest session is {folder.path}$"):
        SessionFolder.open(folder.path.parent)


def test_what_could_not_be_written_takes_nobody_elses_place(folder: SessionFolder) -> None:
    """A process that had no lock for once keeps its own measurement alone, and takes back no verdict of others."""
    other = SessionFolder(folder.path, is_ours=True)
    theirs = other.add("test_theirs", measurement(spec(), [9.8]))
    (folder.path / ".lock").unlink()
    (folder.path / ".lock").mkdir()
    folder.add("test_ours", measurement(spec(gpus=2, num_ps=1), [19.0]))
    assert [record.test for record in folder.unwritten] == ["test_ours"]
    (folder.path / ".lock").rmdir()
    other.judge(theirs.id, verdict=Verdict.REGRESSED, reason="slower")
    folder.add("test_later", measurement(spec(gpus=4, num_ps=1), [37.0]))
    found = [(record.test, record.verdict) for record in other.measurements()]
    assert found == [("test_theirs", "REGRESSED"), ("test_ours", None), ("test_later", None)]
    assert not folder.unwritten


def test_find_takes_the_latest_valid_measurement_of_the_whole_spec(folder: SessionFolder) -> None:
    """An anchor is the last measurement of exactly this spec that is not known to be wrong, even if it was not judged."""
    folder.add("t.py::test_a", measurement(spec(), [9.0]))
    folder.add("t.py::test_a", measurement(spec(), [9.5]))
    folder.add("t.py::test_a", measurement(spec(steps=7), [1.0]))
    folder.judge(folder.add("t.py::test_a", measurement(spec(), [99.0])).id, verdict=Verdict.TAINTED, reason="busy")
    disturbed = measurement(spec(), [5.0, 5.1])
    runs = [replace(run, disturbances=[ANOTHER_USER]) for run in disturbed.runs]
    folder.add("t.py::test_a", replace(disturbed, runs=runs))

    found = folder.find(spec())
    assert found is not None
    assert found.images_per_sec == 9.5
    assert folder.find(spec(gpus=2, num_ps=1)) is None
    assert folder.find(spec(), but_not_of="t.py::test_a") is None


def add_records(path: Path, writer: str) -> None:
    folder = SessionFolder.open(path)
    for n in range(5):
        record = folder.add(f"{writer}::{n}", measurement(spec(), [float(n + 1)]))
        folder.judge(record.id, verdict=Verdict.PASSED, reason=record.test)


def test_processes_share_a_folder(folder: SessionFolder) -> None:
    """Four processes that add and judge at once lose nothing and mix nothing up."""
    writers = [PROCESSES.Process(target=add_records, args=(folder.path, f"writer{i}")) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]

    records = folder.measurements()
    assert {record.test for record in records} == {f"writer{i}::{n}" for i in range(4) for n in range(5)}
    assert len(records) == 20
    assert all(record.reason == record.test for record in records)


def test_each_run_of_a_test_has_its_own_logs(folder: SessionFolder) -> None:
    """A test's runs number their log folders; a test that is run again goes on counting."""
    test = "perf_tests/test_a.py::test_throughput[2-1-parameter_server]"
    assert [folder.new_logs(test).name for _ in range(2)] == ["1", "2"]
    assert sorted(path.name for path in folder.logs_of(test).iterdir()) == ["1", "2"]


def test_log_folders_of_different_tests_differ() -> None:
    """Node ids that read alike once they are made safe still have folders of their own."""
    tests = ["t.py::a[1/2]", "t.py::a[1_2]", "t.py::a[1:2]", "..", ".", "/", "x" * 400, "x" * 401, "ä", "ö"]
    names = [path_safe(test) for test in tests]
    assert len(set(names)) == len(tests)
    assert all(re.fullmatch(r"[A-Za-z0-9=][A-Za-z0-9_.=-]*", name) and len(name) < 200 for name in names)
    assert path_safe("perf_tests/test_a.py::test_rate[2-1]").startswith("perf_tests_test_a.py_test_rate_2-1-")


def test_session_folders_come_oldest_first(tmp_path: Path) -> None:
    """Only session folders are listed, in the order of their time; no folder at all is no error."""
    assert session_folders(tmp_path / "absent") == []
    (tmp_path / "other").mkdir()
    for year in (2027, 2025, 2026):
        started = datetime(year, 1, 1, tzinfo=UTC)
        SessionFolder.create(tmp_path, cluster="local", command=[], versions={}, started=started)
    assert [folder.id[:4] for folder in session_folders(tmp_path)] == ["2025", "2026", "2027"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_users_session_keeps_nobody_from_the_others() -> None:
    """In a folder that users share, sessions closed to this one are passed over; a closed folder is reported."""
    with TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for number in range(2):
            SessionFolder.create(root, cluster="local", command=[], versions={}, session_id=f"20260131T021503Z-00000{number}")
        (root / "20260131T021503Z-000001").chmod(0o700)
        try:
            os.seteuid(65534)
            assert [found.id for found in session_folders(root)] == ["20260131T021503Z-000000"]
            with pytest.raises(SessionFileError, match="20260131T021503Z-000001 cannot be read: Permission denied"):
                session_folders(root / "20260131T021503Z-000001")
        finally:
            os.seteuid(0)


def test_session_of_a_command_is_selected_by_its_arguments(tmp_path: Path) -> None:
    """Of sessions in one folder those with the same arguments are selected; if there are none, all are."""
    commands = (["pytest", "-k", "a"], ["pytest"], ["dtfperf", "-k", "a"])
    folders = [
        SessionFolder.create(tmp_path / str(at), cluster="c", command=each, versions={}) for at, each in enumerate(commands)
    ]
    assert select_by_arguments(folders, ["-k", "a"]) == folders[:1]
    assert select_by_arguments(folders, []) == folders[1:2]
    assert select_by_arguments(folders, ["-k", "b"]) == folders
