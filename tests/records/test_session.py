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
from pytest_dtfperf.records.stored import MOST_SUPERSEDED_BYTES, Journal, encode_record, read_own_record
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


def test_folder_has_its_time_and_six_digits(folder: SessionFolder) -> None:
    """The folder's name is the session's id: the UTC time and six hexadecimal digits."""
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


def test_processes_of_a_session_have_one_folder(tmp_path: Path) -> None:
    """Processes of one session get the same folder, and the content of the first stays."""
    folders = [
        SessionFolder.create(tmp_path, cluster=name, command=[], versions={}, session_id="20260131T021503Z-9f3c1a")
        for name in ("first", "second")
    ]
    assert folders[0] == folders[1]
    assert folders[1].session.cluster == "first"


def test_measurement_is_read_as_written(folder: SessionFolder) -> None:
    """A measurement is on disk without a verdict, and is read as it was written."""
    written = folder.add("t.py::test_a", measurement(spec(), [9.8, 9.9]))

    (read,) = SessionFolder.open(folder.path).measurements()
    assert read == written
    assert (read.verdict, read.reason, read.baseline) == (None, None, None)


def test_line_has_the_documented_keys(folder: SessionFolder) -> None:
    """A line has the documented keys in their order."""
    folder.add("t.py::test_a", measurement(spec(), [9.8, 9.9], injected_slowdowns={"worker:0": 0.2}))

    line = json.loads((folder.path / "measurements.jsonl").read_text())
    assert list(line) == [
        "schema", "id", "test", "spec", "runs", "hosts", "fingerprint", "injected_slowdowns", "images_per_sec", "efficiency",
        "anchor", "verdict", "reason", "checks", "accepted", "baseline", "change", "flops_per_sec", "share_of_peak",
    ]  # fmt: skip
    assert line["images_per_sec"] == pytest.approx(9.85)


def test_probes_are_added_to_a_measurement(folder: SessionFolder) -> None:
    """Probes are added to one measurement, and stay when it is judged."""
    first, second = (folder.add("t.py::test_a", measurement(spec(gpus=n, num_ps=1), [9.8])) for n in (1, 2))
    folder.note_probes(second.id, FULL)
    folder.judge(second.id, verdict=Verdict.REGRESSED, reason="slower")

    without, probed = SessionFolder.open(folder.path).measurements()
    assert (without.id, without.measurement.probes) == (first.id, None)
    assert probed.measurement.probes == FULL


def test_judgement_changes_one_line(folder: SessionFolder) -> None:
    """A verdict changes only its measurement's line."""
    ids = [folder.add("t.py::test_a", measurement(spec(gpus=n, num_ps=1), [9.0 * n])).id for n in (1, 2, 4)]
    before = (folder.path / "measurements.jsonl").read_text().splitlines()

    judgement = make_comparison(20.0, -0.1, verdict=Verdict.REGRESSED, reason="10 % slower")
    folder.add_judgement(ids[1], judgement)

    after = (folder.path / "measurements.jsonl").read_text().splitlines()
    assert (after[0], after[2]) == (before[0], before[2])
    judged = folder.measurements()[1]
    assert (judged.verdict, judged.reason, judged.comparison) == ("REGRESSED", "10 % slower", judgement)


def test_judgement_appends_one_line(folder: SessionFolder) -> None:
    """A judgement appends a line and rewrites nothing; at the end each measurement has one line."""
    ids = [folder.add("t.py::test_a", measurement(spec(steps=n), [9.8])).id for n in range(1, 51)]
    path = folder.path / "measurements.jsonl"
    file, before = path.stat().st_ino, path.read_bytes()
    judged = folder.judge(ids[7], verdict=Verdict.PASSED, reason="fine")
    assert (path.stat().st_ino, path.read_bytes()) == (file, before + encode_record(judged))
    assert SessionFolder.open(folder.path).measurements()[7] == judged
    folder.finish(exit_code=0, wall_s=1.0)
    lines = path.read_bytes().splitlines(keepends=True)
    assert (len(lines), lines[7]) == (50, encode_record(judged))
    assert folder.session.verdicts == {"PASSED": 1}


def test_superseded_lines_have_a_limited_size(folder: SessionFolder) -> None:
    """Superseded lines are removed when they exceed a limit."""
    steps = [float(number) / 7 for number in range(1, 150_001)]
    big = measurement(spec(), [9.8])
    big = replace(big, runs=[replace(run, step_s={"worker:0": steps}) for run in big.runs])
    record = folder.add("t.py::test_a", big)
    size = (folder.path / "measurements.jsonl").stat().st_size
    sizes = set()
    for number in range(8):
        folder.judge(record.id, verdict=Verdict.PASSED, reason=f"fine {number}")
        sizes.add(round((folder.path / "measurements.jsonl").stat().st_size / size))
    assert max(sizes) <= 2 + MOST_SUPERSEDED_BYTES / size
    assert min(sizes) == 1
    assert folder.measurements() == SessionFolder(folder.path, is_ours=True).measurements()


def test_journal_reads_each_line_once(folder: SessionFolder) -> None:
    """A journal reads only appended lines, until the file is replaced."""
    read: list[int] = []

    def record_of(number: int, line: bytes) -> Record:
        read.append(number)
        return read_own_record(line, f"line {number}")

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


def test_records_that_a_journal_writes_are_not_read(folder: SessionFolder) -> None:
    """A process keeps the records that it writes, and reads none of their lines, also after superseded lines are removed."""
    path = folder.path / "measurements.jsonl"
    first, second = (folder.add(f"test_{number}", measurement(spec(steps=number), [9.8])) for number in (1, 2))
    path.write_bytes(b"")

    def refuse(number: int, line: bytes) -> Record:
        raise AssertionError(f"line {number} was read")

    journal = Journal(path, refuse)
    journal.append([first, second])
    judged = replace(first, verdict=Verdict.PASSED)
    journal.append([judged])
    journal.refresh()
    assert (list(journal.records.values()), journal.superseded_bytes) == ([judged, second], len(encode_record(first)))
    journal.compact()
    journal.refresh()
    assert (path.read_bytes(), journal.superseded_bytes) == (encode_record(judged) + encode_record(second), 0)
    journal.append([first])
    assert path.read_bytes() == encode_record(judged) + encode_record(second) + encode_record(first)
    assert SessionFolder.open(folder.path).measurements() == list(journal.records.values()) == [first, second]


@pytest.mark.parametrize("seed", range(5))
def test_records_are_consistent_after_each_change(folder: SessionFolder, seed: int) -> None:
    """After each change by two processes, the records are those that follow from all of them."""
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


def test_superseded_lines_are_no_measurements(folder: SessionFolder) -> None:
    """Superseded lines of an unfinished session are no further measurements."""
    record = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    folder.extend(record.id, measurement(spec(), [9.9]).runs)
    judged = folder.judge(record.id, verdict=Verdict.PASSED, reason="fine")
    assert len((folder.path / "measurements.jsonl").read_bytes().splitlines()) == 3
    assert SessionFolder.open(folder.path).measurements() == [judged]


def test_full_disk_at_the_end_keeps_all_lines(folder: SessionFolder) -> None:
    """A session that ends on a full disk keeps its file and reports nothing as missing."""
    record = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    judged = folder.judge(record.id, verdict=Verdict.PASSED, reason="fine")
    before = (folder.path / "measurements.jsonl").read_bytes()
    with full_behind(folder.path / "session.json", room=200):
        folder.finish(exit_code=0, wall_s=1.0)
    assert (folder.path / "measurements.jsonl").read_bytes() == before
    assert SessionFolder.open(folder.path).measurements() == [judged]
    assert (folder.session.exit_code, folder.write_failure) == (0, None)


def test_gravest_verdict_stays(folder: SessionFolder) -> None:
    """The gravest verdict of a measurement stays after better ones."""
    record = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    for verdict in (Verdict.PASSED, Verdict.REGRESSED, Verdict.IMPROVED):
        folder.judge(record.id, verdict=verdict, reason=f"because {verdict}")

    (judged,) = folder.measurements()
    assert (judged.verdict, judged.reason) == ("REGRESSED", "because REGRESSED")


def test_invalid_replaces_regressed(folder: SessionFolder) -> None:
    """A REGRESSED measurement that becomes INVALID stays so, without an explanation, also judged again."""
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
def test_efficiency_is_removed_with_an_invalid_measurement(folder: SessionFolder, void: str) -> None:
    """An INVALID measurement removes efficiencies that depend on it; another anchor is used if there is one."""
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
def test_check_with_an_invalid_measurement_is_inconclusive(folder: SessionFolder, kind: Kind) -> None:
    """A check against a measurement that becomes INVALID is INCONCLUSIVE with the reason; the check of the rate stays."""
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


def test_regressed_rate_stays_with_an_invalid_anchor(folder: SessionFolder) -> None:
    """A REGRESSED rate and its explanation stay if the anchor becomes INVALID."""
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


def test_explanation_is_removed_with_its_verdict(folder: SessionFolder) -> None:
    """The explanation of a low efficiency is removed if the anchor becomes INVALID."""
    one = folder.add("test_one", measurement_of([50.0, 50.1, 50.2, 50.0], gpus=1))
    many = folder.add("test_many", measurement_of([60.0, 60.1, 60.2, 60.0]))
    judge(folder, "efficiency", many, one, threshold=0.9)
    assert folder.measurements()[1].verdict == "REGRESSED"
    folder.explain(many.id, unexplained="nobody knows")
    folder.judge(one.id, verdict=Verdict.INVALID, reason="a step took no time")
    found = folder.measurements()[1]
    assert (found.verdict, found.unexplained) == ("INCONCLUSIVE", "")


def test_judgement_of_an_unknown_measurement_is_refused(folder: SessionFolder) -> None:
    """A verdict for an unknown id is refused."""
    with pytest.raises(SessionFileError, match="has no measurement with id 'nobody' to judge"):
        folder.judge("nobody", verdict=Verdict.PASSED, reason="")


def test_finish_counts_verdicts(folder: SessionFolder) -> None:
    """The end of a session counts the verdicts, without measurements that have none."""
    for verdict in (Verdict.PASSED, Verdict.REGRESSED, Verdict.PASSED):
        folder.judge(folder.add("t.py::test_a", measurement(spec(), [9.8])).id, verdict=verdict, reason="")
    folder.add("t.py::test_a", measurement(spec(), [9.8]))

    folder.finish(exit_code=1, wall_s=12.3456)

    session = folder.session
    assert (session.verdicts, session.exit_code, session.wall_s) == ({"PASSED": 2, "REGRESSED": 1}, 1, 12.346)


def test_unwritten_measurement_is_kept_and_written_later(folder: SessionFolder) -> None:
    """A measurement without space on disk is kept with its verdict, reported, and written later."""
    first = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    with full_behind(folder.path / "measurements.jsonl"):
        added = folder.add("t.py::test_b", measurement(spec(), [9.9]))
        second = folder.judge(added.id, verdict=Verdict.PASSED, reason="fine")
        assert second.verdict == "PASSED"
        assert folder.measurements() == list(folder.get_latest()) == [first, second]
        assert folder.unwritten == [second]
        assert SessionFolder.open(folder.path).measurements() == [first]
    refused = f"results cannot be written to {folder.path}: File too large (measurements.jsonl"
    assert folder.write_failure == f"{refused}, where the latest measurements are missing)"
    third = folder.add("t.py::test_c", measurement(spec(), [9.7]))
    assert SessionFolder.open(folder.path).measurements() == [first, second, third]
    assert (folder.unwritten, folder.write_failure) == ([], f"{refused})")


def test_unwritten_records_of_another_process_are_shown(folder: SessionFolder) -> None:
    """Unwritten records of another process are shown with those on disk, with the reason."""
    first = folder.add("t.py::test_a", measurement(spec(), [9.8]))
    lost = replace(first, id="another", test="t.py::test_b")
    controller = SessionFolder.open(folder.path)
    assert controller.write_failure is None
    controller.take_over([lost], "No space left on device")
    assert controller.measurements() == [first, lost]
    assert controller.write_failure == (
        f"results cannot be written to {folder.path}: No space left on device "
        "(measurements.jsonl, where the latest measurements are missing)"
    )


def test_end_of_a_session_is_known_without_space(folder: SessionFolder) -> None:
    """An end of the session without space on disk is known, and is written with the next change."""
    with full_behind(folder.path / "session.json"):
        folder.finish(exit_code=1, wall_s=1.0, verdicts={"REGRESSED": 1}, commit="c0ffee" * 99)
        assert (folder.session.exit_code, folder.session.verdicts) == (1, {"REGRESSED": 1})
        assert SessionFolder.open(folder.path).session.exit_code is None
    assert folder.write_failure == f"results cannot be written to {folder.path}: File too large (session.json)"
    folder.fail(3)
    for each in (folder, SessionFolder.open(folder.path)):
        assert (each.session.exit_code, each.session.commit) == (3, "c0ffee" * 99)


def test_unwritten_bill_keeps_bills_of_others(folder: SessionFolder) -> None:
    """A bill that was not written is added later to the bills of other processes."""
    ours, theirs = map(make_bill, (0.1, 0.25))
    with full_behind(folder.path / "session.json"):
        folder.add_cost(ours)
        assert folder.session.costs == [ours]
    SessionFolder.open(folder.path).add_cost(theirs)
    assert folder.session.costs == [theirs, ours]
    folder.finish(exit_code=0, wall_s=1.0)
    session = SessionFolder.open(folder.path).session
    assert (session.costs, session.exit_code) == ([theirs, ours], 0)


def test_unwritten_bills_are_written_once(folder: SessionFolder) -> None:
    """Several bills that were not written are written once, in their order."""
    bills = [*map(make_bill, (0.1, 0.25, 0.5))]
    with full_behind(folder.path / "session.json"):
        for bill in bills[:2]:
            folder.add_cost(bill)
        assert folder.session.costs == bills[:2]
    folder.add_cost(bills[2])
    assert SessionFolder.open(folder.path).session.costs == folder.session.costs == bills


def test_folder_of_another_process_is_used(tmp_path: Path) -> None:
    """A process that could not make the folder adds to that of another process."""
    root = tmp_path / "perf_results"
    name = "20260131T021503Z-9f3c1a"
    root.touch()
    late = SessionFolder.create(root, cluster="local", command=["pytest"], versions={}, session_id=name)
    root.unlink()
    early = SessionFolder.create(root, cluster="local", command=["pytest"], versions={}, session_id=name)
    early.add_cost(make_bill(0.1))
    first = early.add("t.py::test_a", measurement(spec(), [9.8]))
    second = late.add("t.py::test_b", measurement(spec(), [9.9]))
    late.finish(exit_code=0, wall_s=1.0)
    opened = SessionFolder.open(early.path)
    assert opened.measurements() == [first, second]
    assert ([bill.usd for bill in opened.session.costs], opened.session.exit_code) == ([0.1], 0)


def test_folder_is_made_later(tmp_path: Path) -> None:
    """A session without a folder at its start is on disk completely when one can be made."""
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


def test_accepted_measurements_stay_accepted(folder: SessionFolder) -> None:
    """Measurements that were accepted one after the other are all accepted."""
    ids = [folder.add("t.py::test_a", measurement(spec(gpus=gpus), [9.8])).id for gpus in (1, 2, 4)]
    for each in ids[:2]:
        folder.accept([each])
    assert [record.accepted for record in folder.measurements()] == [True, True, False]


def test_bills_are_kept(folder: SessionFolder) -> None:
    """Bills of all allocations are kept when the session has ended."""
    bills = [*map(make_bill, (0.1, 0.25))]
    for bill in bills:
        folder.add_cost(bill)
    folder.finish(exit_code=0, wall_s=1.0)
    assert folder.session.costs == bills


def test_incomplete_last_line_is_ignored(folder: SessionFolder) -> None:
    """An incomplete last line is ignored, also by later writers."""
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
def test_damaged_line_is_an_error(folder: SessionFolder, line: str, message: str) -> None:
    """A complete line that is no measurement is an error with file and line."""
    folder.add("t.py::test_a", measurement(spec(), [9.8]))
    with (folder.path / "measurements.jsonl").open("a") as file:
        file.write(line + "\n")

    with pytest.raises(SessionFileError, match=rf"measurements\.jsonl:2: .*{message}"):
        folder.measurements()


def test_line_of_another_version_is_refused(folder: SessionFolder) -> None:
    """A line with another version of the format in a session's own file is refused."""
    line = folder.add("t.py::test_a", measurement(spec(), [9.8])).to_json() | {"schema": 99}
    (folder.path / "measurements.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SessionFileError, match=r"measurements\.jsonl:1: .*schema: must be one of '1', not 99"):
        folder.measurements()


def test_unchanged_line_is_checked_once(folder: SessionFolder) -> None:
    """A record that was read before is the same object if its line is the same, and is read anew after a change."""
    record = folder.add("t.py::test_a", measurement(spec(), [10.0]))
    (first,), (again,) = (SessionFolder.open(folder.path).measurements() for _ in range(2))
    assert again is first
    folder.judge(record.id, verdict=Verdict.PASSED, reason="made up")
    folder.finish(exit_code=0, wall_s=1.0)
    (judged,) = SessionFolder.open(folder.path).measurements()
    assert judged.verdict is Verdict.PASSED


def test_line_is_checked_with_its_schema(folder: SessionFolder) -> None:
    """A line with a value of another type is refused in one printable line."""
    folder.add("t.py::test_a", measurement(spec(), [9.8]))
    path = folder.path / "measurements.jsonl"
    path.write_text(path.read_text().replace('"bytes_sent": 1000', '"bytes_sent": "\\u001b[31mmany"'))
    with pytest.raises(SessionFileError) as caught:
        SessionFolder.open(folder.path).measurements()
    assert str(caught.value) == (
        f'{path}:1: is no measurement: runs[0].bytes_sent: must be of type integer, not "\\u001b[31mmany"'
    )


@pytest.mark.parametrize("changes", [{"schema": 2}, {"schema": 2, "oracle": "a new key"}], ids=["alike", "with new keys"])
def test_newer_session_is_refused_with_a_remedy(folder: SessionFolder, changes: dict[str, object]) -> None:
    """A session of a newer version is refused with the command that upgrades this one."""
    path = folder.path / "session.json"
    path.write_text(json.dumps(folder.session.to_json() | changes))
    with pytest.raises(SessionFileError, match=r"its schema is 2, this version reads 1\); install that: pip install --upgrade"):
        SessionFolder.open(folder.path).session  # noqa: B018  # reading is what is tested


def test_pipe_is_refused(folder: SessionFolder) -> None:
    """A pipe instead of a file is refused."""
    (folder.path / "measurements.jsonl").unlink()
    os.mkfifo(folder.path / "measurements.jsonl")
    with pytest.raises(SessionFileError, match=r"measurements\.jsonl cannot be read: it is a pipe, not a regular file"):
        folder.measurements()


def test_folder_without_session_json_is_refused(tmp_path: Path) -> None:
    """A folder without session.json is refused."""
    with pytest.raises(SessionFileError, match=r"is no session folder: it has no session\.json"):
        SessionFolder.open(tmp_path)


def test_folder_of_all_sessions_names_the_latest(folder: SessionFolder) -> None:
    """The folder of all sessions is refused with the latest session."""
    for year in (2025, 2024):
        started = datetime(year, 1, 1, tzinfo=UTC)
        SessionFolder.create(folder.path.parent, cluster="local", command=[], versions={}, started=started)
    with pytest.raises(SessionFileError, match=f"it has no session.json; its latest session is {folder.path}$"):
        SessionFolder.open(folder.path.parent)


def test_measurement_without_a_lock_is_kept(folder: SessionFolder) -> None:
    """A measurement that was not written for want of a lock is written later, and keeps verdicts of others."""
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


def test_find_returns_the_latest_valid_measurement(folder: SessionFolder) -> None:
    """`find` returns the latest undisturbed measurement of exactly this spec, also without a verdict."""
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
    """Four processes that add and judge at once keep all records."""
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
    """The runs of a test have numbered log folders."""
    test = "perf_tests/test_a.py::test_throughput[2-1-parameter_server]"
    assert [folder.new_logs(test).name for _ in range(2)] == ["1", "2"]
    assert sorted(path.name for path in folder.logs_of(test).iterdir()) == ["1", "2"]


def test_log_folders_of_different_tests_differ() -> None:
    """Node ids that are similar have different folders, with safe names."""
    tests = ["t.py::a[1/2]", "t.py::a[1_2]", "t.py::a[1:2]", "..", ".", "/", "x" * 400, "x" * 401, "ä", "ö"]
    names = [path_safe(test) for test in tests]
    assert len(set(names)) == len(tests)
    assert all(re.fullmatch(r"[A-Za-z0-9=][A-Za-z0-9_.=-]*", name) and len(name) < 200 for name in names)
    assert path_safe("perf_tests/test_a.py::test_rate[2-1]").startswith("perf_tests_test_a.py_test_rate_2-1-")


def test_session_folders_are_sorted_by_time(tmp_path: Path) -> None:
    """Only session folders are listed, in the order of their time; a missing folder is no error."""
    assert session_folders(tmp_path / "absent") == []
    (tmp_path / "other").mkdir()
    for year in (2027, 2025, 2026):
        started = datetime(year, 1, 1, tzinfo=UTC)
        SessionFolder.create(tmp_path, cluster="local", command=[], versions={}, started=started)
    assert [folder.id[:4] for folder in session_folders(tmp_path)] == ["2025", "2026", "2027"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_closed_session_of_another_user_is_ignored() -> None:
    """A closed session of another user is ignored among others, and reported alone."""
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
    """Sessions with the same arguments are selected; if there are none, all are."""
    commands = (["pytest", "-k", "a"], ["pytest"], ["dtfperf", "-k", "a"])
    folders = [
        SessionFolder.create(tmp_path / str(at), cluster="c", command=each, versions={}) for at, each in enumerate(commands)
    ]
    assert select_by_arguments(folders, ["-k", "a"]) == folders[:1]
    assert select_by_arguments(folders, []) == folders[1:2]
    assert select_by_arguments(folders, ["-k", "b"]) == folders
