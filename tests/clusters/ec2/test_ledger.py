"""The ledger of a run, and its content after a crash."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ec2.ledger import (
    KEPT_FOR_S,
    Ledger,
    delete_old_ledgers,
    get_state_folder,
    list_damaged_ledgers,
    list_ledgers,
)
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.owner import Fate, Owner
from tests.clusters.ec2.runs import PLAN, plan
from tests.full_disk import full_behind

ROUNDED_S = 0.001  # times are written down in milliseconds


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.from_plan(PLAN, tmp_path)
    ledger.begin(PLAN)
    return ledger


def test_plan_is_the_first_entry(ledger: Ledger) -> None:
    """A new ledger has the plan and nothing else."""
    record = ledger.read_record()
    assert record is not None
    assert record.plan == PLAN
    assert (record.is_closed, record.is_ready, record.unanswered_since, list(record.tokens)) == (False, False, None, [])
    assert record.holder == PLAN.owner


def test_ledger_is_readable_by_its_user_only(ledger: Ledger) -> None:
    """Only this user can read a ledger, or enter its folder."""
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.folder.stat().st_mode) == 0o700


def test_ledger_without_a_plan(tmp_path: Path) -> None:
    """A ledger without a complete plan has no record."""
    ledger = Ledger.from_plan(PLAN, tmp_path)
    assert ledger.read_record() is None
    ledger.path.write_text('{"event": "plan", "pl')
    assert ledger.read_record() is None


def test_intent_without_an_answer(ledger: Ledger) -> None:
    """The time of an unanswered call is kept: that of the last repetition."""
    before = time.time()
    ledger.note_intent("key-pair", name="k")
    ledger.note_result("key-pair", name="k")
    ledger.note_intent("instances", token="t1", subnet="s")
    ledger.note_intent("instances", token="t1", subnet="s")
    record = ledger.read_record()
    assert record
    assert record.unanswered_since is not None
    assert record.unanswered_since >= round(before, 3)
    assert record.tokens == ["t1"]


@pytest.mark.parametrize("answer", ["note_result", "note_refused"])
def test_answer_settles_its_intent(ledger: Ledger, answer: str) -> None:
    """An answer or a refusal settles its intent, but not that of another token."""
    ledger.note_intent("instances", token="t1", subnet="s")
    getattr(ledger, answer)("instances", token="t1", ids=["i-1"])
    record = ledger.read_record()
    assert record
    assert record.unanswered_since is None
    ledger.note_intent("instances", token="t2", subnet="s")
    ledger.note_result("instances", token="t1", ids=["i-1"])
    record = ledger.read_record()
    assert record
    assert record.unanswered_since is not None


def test_results_are_recorded(ledger: Ledger) -> None:
    """The record has the instances with the time of their answer, and the security group's id."""
    before = time.time()
    ledger.note_result("security-group", name="g", id="sg-1")
    ledger.note_result("instances", token="t1", ids=["i-1", "i-2"])
    record = ledger.read_record()
    assert record
    assert list(record.instances) == ["i-1", "i-2"]
    assert before - ROUNDED_S <= record.instances["i-1"] <= time.time() + ROUNDED_S
    assert record.security_group == "sg-1"


@pytest.mark.parametrize("events, ready", [(["ready"], True), (["ready", "ending"], False), (["ending"], False)])
def test_run_is_ready_until_its_end(ledger: Ledger, events: list[str], ready: bool) -> None:
    """A run is ready after the login, until its end has begun."""
    for event in events:
        ledger.note(event, instances=["i-1"])
    record = ledger.read_record()
    assert record
    assert record.is_ready is ready


def test_holder_of_a_run(ledger: Ledger) -> None:
    """The holder is the session that launched or took the run, and none while it is kept."""
    other = Owner("here", "b007", "4026531836", 18, 1)
    ledger.note_kept()
    record = ledger.read_record()
    assert record
    assert record.holder is None
    before = time.time()
    ledger.note_held(other)
    record = ledger.read_record()
    assert record
    assert record.holder == other
    assert before - ROUNDED_S <= record.held_since <= time.time() + ROUNDED_S


def test_closed_run_has_no_keys(ledger: Ledger) -> None:
    """A closed run is marked in its ledger, and its keys are deleted."""
    (ledger.folder / "login").write_text("secret")
    ledger.close()
    record = ledger.read_record()
    assert record
    assert record.is_closed
    assert not ledger.folder.exists()


@pytest.mark.parametrize("torn", ['{"event": "int', "", "\x00\x00"])
def test_partial_line_is_ignored(ledger: Ledger, torn: str) -> None:
    """A crash within a line loses that line alone, also when others follow it."""
    ledger.note_result("instances", token="t1", ids=["i-1"])
    with ledger.path.open("a") as file:
        file.write(torn)
    record = ledger.read_record()
    assert record
    assert list(record.instances) == ["i-1"]
    ledger.note_result("instances", token="t2", ids=["i-2"])
    record = ledger.read_record()
    assert record
    assert list(record.instances) == ["i-1", "i-2"]


def test_entries_are_only_appended(ledger: Ledger) -> None:
    """Earlier entries stay unchanged, one JSON object per line, each with its time."""
    before = ledger.path.read_bytes()
    ledger.note_intent("instances", token="t1", subnet="s")
    ledger.close()
    after = ledger.path.read_bytes()
    assert after.startswith(before)
    assert all("at" in json.loads(line) for line in after.splitlines())


def test_ledgers_are_listed_by_name(tmp_path: Path) -> None:
    """Ledgers are found by their folder, in the order of their names, which begin with a session's time."""
    for run in ("20260201-b", "20260131-a"):
        other = plan(run=run)
        Ledger.from_plan(other, tmp_path).begin(other)
    (tmp_path / "notes.txt").write_text("mine")
    assert [ledger.run for ledger in list_ledgers(tmp_path)] == ["20260131-a", "20260201-b"]
    assert list_ledgers(tmp_path / "nowhere") == []


def test_old_ledgers_are_deleted(tmp_path: Path) -> None:
    """Ledgers of runs that ended long ago are deleted; those of open runs stay at any age."""
    for run in ("open", "closed", "young"):
        other = plan(run=run)
        ledger = Ledger.from_plan(other, tmp_path)
        ledger.begin(other)
        if run != "open":
            ledger.close()
        if run != "young":
            os.utime(ledger.path, (0, time.time() - KEPT_FOR_S - 1))
    delete_old_ledgers(tmp_path)
    assert [ledger.run for ledger in list_ledgers(tmp_path)] == ["open", "young"]


def test_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The state folder is in XDG_STATE_HOME, or in its default place."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert get_state_folder() == tmp_path / "dtfperf" / "ec2"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert get_state_folder() == tmp_path / "home" / ".local" / "state" / "dtfperf" / "ec2"


def test_lock_can_be_taken_again(ledger: Ledger) -> None:
    """The lock of a ledger can be taken again after its release."""
    with ledger.locked():
        ledger.note_held(PLAN.owner)
    with ledger.locked():
        record = ledger.read_record()
        assert record
        assert record.holder == PLAN.owner


DAMAGED = {
    "an empty object": "{}\n",
    "a list": "[]\n",
    "nothing": "null\n",
    "no plan": '{"event": "plan", "at": 1}\n',
    "a plan that is none": '{"event": "plan", "plan": [], "at": 1}\n',
    "not UTF-8": "\xff\n",
    "too deep": "[" * 9999 + "\n",
}
INCOMPLETE = (
    "{}",
    '{"event": "got", "at": 1}',
    '{"event": "got", "kind": "instances", "at": 1}',
    '{"event": "held", "at": 1}',
    '{"at": 1}',
    "7",
)


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_ledger_is_listed(ledger: Ledger, text: str) -> None:
    """A ledger without a plan is listed as damaged, and has no record; an empty one is not damaged."""
    ledger.path.write_bytes(text.encode("latin-1"))
    assert ledger.read_record() is None
    assert [each.path for each in list_damaged_ledgers(ledger.path.parent)] == [ledger.path]
    ledger.path.write_text("")
    assert ledger.read_record() is None
    assert list_damaged_ledgers(ledger.path.parent) == []


@pytest.mark.parametrize("entry", INCOMPLETE)
def test_incomplete_entries_are_ignored(ledger: Ledger, entry: str) -> None:
    """An incomplete entry is ignored; a holder that cannot be read counts as one on another machine."""
    with ledger.path.open("a") as file:
        file.write(entry + "\n")
    record = ledger.read_record()
    assert record
    assert record.instances == {}
    assert (record.unanswered_since, record.tokens, record.security_group) == (None, [], None)
    if "held" in entry:
        assert record.holder
        assert record.holder.fate is Fate.ELSEWHERE


def test_old_damaged_ledgers_are_deleted(ledger: Ledger) -> None:
    """An old damaged ledger is deleted with its keys."""
    ledger.path.write_text("{}\n")
    delete_old_ledgers(ledger.path.parent)
    assert ledger.path.exists()
    delete_old_ledgers(ledger.path.parent, lambda: time.time() + KEPT_FOR_S + 60)
    assert not ledger.path.exists()
    assert not ledger.folder.exists()


def test_full_disk_is_an_error(ledger: Ledger) -> None:
    """An entry that does not fit on the disk is an error, and later entries are read."""
    with full_behind(ledger.path, room=20), pytest.raises(AllocationError, match=r"\.jsonl cannot be written: .*make room"):
        ledger.note_intent("instances", token="t1", subnet="s")
    ledger.note_intent("instances", token="t2", subnet="s")
    record = ledger.read_record()
    assert record
    assert record.tokens == ["t2"]


def test_plan_on_a_full_disk_does_not_begin(tmp_path: Path) -> None:
    """A run with a plan that does not fit on the disk has not begun."""
    ledger = Ledger.from_plan(PLAN, tmp_path)
    with full_behind(ledger.path, room=100), pytest.raises(AllocationError, match="cannot be written"):
        ledger.begin(PLAN)
    assert not ledger.has_begun
    assert ledger.read_record() is None


def test_unusable_folder_is_an_error(tmp_path: Path) -> None:
    """A folder for ledgers that cannot be made is an error like a full disk."""
    (tmp_path / "file").touch()
    with pytest.raises(AllocationError, match="cannot be written: File exists"):
        Ledger.from_plan(PLAN, tmp_path / "file").begin(PLAN)
