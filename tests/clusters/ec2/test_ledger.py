"""What a run writes down, and what is read from it after a crash."""

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
    ledger = Ledger.of(PLAN, tmp_path)
    ledger.begin(PLAN)
    return ledger


def test_the_plan_is_the_first_thing_on_disk(ledger: Ledger) -> None:
    """A run that has begun can be read; nothing is known of it but its plan."""
    record = ledger.read_record()
    assert record is not None
    assert record.plan == PLAN
    assert (record.is_closed, record.is_ready, record.unanswered, list(record.tokens)) == (False, False, None, [])
    assert record.holder == PLAN.owner


def test_it_is_nobody_elses_business(ledger: Ledger) -> None:
    """Only this user may read a ledger, or enter the folders it and its keys are in."""
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.folder.stat().st_mode) == 0o700


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """Without a whole plan there is nothing to read, and nothing was asked for."""
    ledger = Ledger.of(PLAN, tmp_path)
    assert ledger.read_record() is None
    ledger.path.write_text('{"event": "plan", "pl')
    assert ledger.read_record() is None


def test_an_intent_without_an_answer(ledger: Ledger) -> None:
    """Until it is known what came of a call, its time is remembered: that of the last repetition."""
    before = time.time()
    ledger.note_intent("key-pair", name="k")
    ledger.note_result("key-pair", name="k")
    ledger.note_intent("instances", token="t1", subnet="s")
    ledger.note_intent("instances", token="t1", subnet="s")
    record = ledger.read_record()
    assert record
    assert record.unanswered is not None
    assert record.unanswered >= round(before, 3)
    assert record.tokens == ["t1"]


@pytest.mark.parametrize("answer", ["note_result", "note_refused"])
def test_an_answer_settles_its_intent(ledger: Ledger, answer: str) -> None:
    """What was got or refused is known; another token's intent stays open."""
    ledger.note_intent("instances", token="t1", subnet="s")
    getattr(ledger, answer)("instances", token="t1", ids=["i-1"])
    record = ledger.read_record()
    assert record
    assert record.unanswered is None
    ledger.note_intent("instances", token="t2", subnet="s")
    ledger.note_result("instances", token="t1", ids=["i-1"])
    record = ledger.read_record()
    assert record
    assert record.unanswered is not None


def test_what_was_got(ledger: Ledger) -> None:
    """Instances, with the time they were told of, and the security group's id."""
    before = time.time()
    ledger.note_result("security-group", name="g", id="sg-1")
    ledger.note_result("instances", token="t1", ids=["i-1", "i-2"])
    record = ledger.read_record()
    assert record
    assert list(record.instances) == ["i-1", "i-2"]
    assert before - ROUNDED_S <= record.instances["i-1"] <= time.time() + ROUNDED_S
    assert record.security_group == "sg-1"


@pytest.mark.parametrize("events, ready", [(["ready"], True), (["ready", "ending"], False), (["ending"], False)])
def test_ready_until_it_is_to_end(ledger: Ledger, events: list[str], ready: bool) -> None:
    """Instances may be kept once they were logged in to, and no more when somebody has begun to end them."""
    for event in events:
        ledger.note(event, instances=["i-1"])
    record = ledger.read_record()
    assert record
    assert record.is_ready is ready


def test_who_holds_it(ledger: Ledger) -> None:
    """First whoever launched it, then whoever took it; nobody once it is kept for others."""
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


def test_closed(ledger: Ledger) -> None:
    """A run that is over says so, and its keys are gone."""
    (ledger.folder / "login").write_text("secret")
    ledger.close()
    record = ledger.read_record()
    assert record
    assert record.is_closed
    assert not ledger.folder.exists()


@pytest.mark.parametrize("torn", ['{"event": "int', "", "\x00\x00"])
def test_a_line_that_was_being_written(ledger: Ledger, torn: str) -> None:
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


def test_only_ever_appended_to(ledger: Ledger) -> None:
    """What was written stays as it was written, one JSON object a line, each with its time."""
    before = ledger.path.read_bytes()
    ledger.note_intent("instances", token="t1", subnet="s")
    ledger.close()
    after = ledger.path.read_bytes()
    assert after.startswith(before)
    assert all("at" in json.loads(line) for line in after.splitlines())


def test_all_there_are(tmp_path: Path) -> None:
    """Ledgers are found by their folder, in the order of their names, which begin with a session's time."""
    for run in ("20260201-b", "20260131-a"):
        other = plan(run=run)
        Ledger.of(other, tmp_path).begin(other)
    (tmp_path / "notes.txt").write_text("mine")
    assert [ledger.run for ledger in list_ledgers(tmp_path)] == ["20260131-a", "20260201-b"]
    assert list_ledgers(tmp_path / "nowhere") == []


def test_old_ones_are_forgotten(tmp_path: Path) -> None:
    """What was over long ago goes; what is not over stays, however old."""
    for run in ("open", "closed", "young"):
        other = plan(run=run)
        ledger = Ledger.of(other, tmp_path)
        ledger.begin(other)
        if run != "open":
            ledger.close()
        if run != "young":
            os.utime(ledger.path, (0, time.time() - KEPT_FOR_S - 1))
    delete_old_ledgers(tmp_path)
    assert [ledger.run for ledger in list_ledgers(tmp_path)] == ["open", "young"]


def test_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_STATE_HOME says so, else the place that stands for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert get_state_folder() == tmp_path / "dtfperf" / "ec2"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert get_state_folder() == tmp_path / "home" / ".local" / "state" / "dtfperf" / "ec2"


def test_one_at_a_time(ledger: Ledger) -> None:
    """Whoever has the lock reads and writes alone; it can be taken again afterwards."""
    with ledger.locked():
        ledger.note_held(PLAN.owner)
    with ledger.locked():
        record = ledger.read_record()
        assert record
        assert record.holder == PLAN.owner


DAMAGED = {
    "nobody's": "{}\n",
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
def test_damage(ledger: Ledger, text: str) -> None:
    """A file that tells of no plan is damaged, which is no problem to whoever reads it; an empty one asked for nothing."""
    ledger.path.write_bytes(text.encode("latin-1"))
    assert ledger.read_record() is None
    assert [each.path for each in list_damaged_ledgers(ledger.path.parent)] == [ledger.path]
    ledger.path.write_text("")
    assert ledger.read_record() is None
    assert list_damaged_ledgers(ledger.path.parent) == []


@pytest.mark.parametrize("entry", INCOMPLETE)
def test_damage_within(ledger: Ledger, entry: str) -> None:
    """An entry that does not say what its kind must is passed over; a holder that cannot be read is not gone."""
    with ledger.path.open("a") as file:
        file.write(entry + "\n")
    record = ledger.read_record()
    assert record
    assert record.instances == {}
    assert (record.unanswered, record.tokens, record.security_group) == (None, [], None)
    if "held" in entry:
        assert record.holder
        assert record.holder.fate is Fate.ELSEWHERE


def test_damaged_ones_are_forgotten_as_old_ones_are(ledger: Ledger) -> None:
    """What nobody can read any more goes when it is old, with its keys."""
    ledger.path.write_text("{}\n")
    delete_old_ledgers(ledger.path.parent)
    assert ledger.path.exists()
    delete_old_ledgers(ledger.path.parent, lambda: time.time() + KEPT_FOR_S + 60)
    assert not ledger.path.exists()
    assert not ledger.folder.exists()


def test_a_disk_that_takes_a_part_is_full(ledger: Ledger) -> None:
    """What is not on disk as a whole was not written down: whoever wants to ask for something is told, and goes on later."""
    with full_behind(ledger.path, room=20), pytest.raises(AllocationError, match=r"\.jsonl cannot be written: .*make room"):
        ledger.note_intent("instances", token="t1", subnet="s")
    ledger.note_intent("instances", token="t2", subnet="s")
    record = ledger.read_record()
    assert record
    assert record.tokens == ["t2"]


def test_a_plan_that_is_not_on_disk_is_none(tmp_path: Path) -> None:
    """A run whose plan the disk takes in part has not begun, and says so before anything is asked for."""
    ledger = Ledger.of(PLAN, tmp_path)
    with full_behind(ledger.path, room=100), pytest.raises(AllocationError, match="cannot be written"):
        ledger.begin(PLAN)
    assert not ledger.has_begun
    assert ledger.read_record() is None


def test_where_nothing_can_be_made_it_has_not_begun(tmp_path: Path) -> None:
    """A folder for ledgers that cannot be made is told of like a full disk."""
    (tmp_path / "file").touch()
    with pytest.raises(AllocationError, match="cannot be written: File exists"):
        Ledger.of(PLAN, tmp_path / "file").begin(PLAN)
