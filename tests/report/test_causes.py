"""Texts about causes of a slow training."""

import re
from dataclasses import replace
from pathlib import Path

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import Cause, CauseKind, Confidence, Explanation
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.explanations import describe_explanation, format_largest_cause, list_explanation, list_next_commands
from pytest_dtfperf.report.terminal import format_failure
from tests.baselines.examples import measurement_of
from tests.records.samples import make_comparison

DOCUMENT = (Path(__file__).parents[2] / "docs" / "causes.md").read_text()
DOCTOR = "dtfperf doctor --cluster=daint"

FOUND = Explanation(
    causes=[
        Cause(
            CauseKind.SERVER, 0.096, 0.857, "ps:1",
            "ps:1 (node07) answers late: sends to the workers at 2.1 instead of 9.8 Gbit/s",
            ["its own operations take 3.0 times as long"], Confidence.HIGH, DOCTOR,
        ),
        Cause(
            CauseKind.CLOCK, 0.012, 0.107, "worker:5",
            "worker:5 (node03) computes 12 % slower than its baseline; clock 1.2 of 1.4 GHz; all wait for it",
            [], Confidence.MEDIUM, DOCTOR,
        ),
    ],
    step_s=1.2734, baseline_step_s=1.1610, unexplained_s=0.0044, noise_s=0.0116, against="its baseline",
    search="dtfperf isolate inception3 batch_size=64 gpus=8 num_ps=4 --cluster=daint",
)  # fmt: skip


def make_record(found: Explanation | None = FOUND, unexplained: str = "") -> Record:
    measured = measurement_of([399.6, 402.0, 404.4])
    return Record(
        id="1a2b3c",
        test="perf_tests/test_inception3.py::test_throughput",
        measurement=replace(
            measured,
            spec=replace(measured.spec, model="inception3", batch_size=64, gpus=8, num_ps=4),
            hosts=["node01", "node03", "node07"],
        ),
        checks=(make_comparison(441.0, -0.088, verdict=Verdict.REGRESSED, low=-0.094, high=-0.082, noise=0.006),),
        verdict=Verdict.REGRESSED,
        explanation=found,
        unexplained=unexplained,
    )


def test_docs_have_the_message_of_a_failure() -> None:
    """The block in docs/causes.md is the message of a failing test, word for word."""
    (block,) = re.findall(r"```text\n(.*?)\n```", DOCUMENT, re.DOTALL)
    session = Path("perf_results/20260131T021503Z-9f3c1a")
    assert format_failure(make_record(), session=session) == block


def test_largest_cause_is_one_line() -> None:
    """The line of the largest cause has the number of the others; without causes it is empty."""
    assert format_largest_cause(make_record()) == f"+96.0 ms  {FOUND.causes[0].words} (and 1 more)"
    assert format_largest_cause(make_record(None)) == ""
    assert format_largest_cause(make_record(replace(FOUND, causes=[]))) == ""


def test_unexplained_change_is_one_row() -> None:
    """An unexplained change is one row; a failed explanation is its reason."""
    nothing = replace(FOUND, causes=[], unexplained_s=0.1124, notes=["no step of the baseline was taken apart"])
    assert list_explanation(make_record(nothing)) == [
        "+112 ms per step (1,161 -> 1,273 ms)",
        "+112 ms   not explained",
        "no step of the baseline was taken apart",
    ]
    assert list_explanation(make_record(None, "cannot be explained: KeyError: x")) == ["cannot be explained: KeyError: x"]
    assert list_explanation(make_record(None)) == list_next_commands(make_record(None), "x") == []


def test_zero_has_a_plus_sign() -> None:
    """A rest of zero, or of less than a digit, is shown as +0."""
    for left in (-1e-17, -0.0004):
        rows = list_explanation(make_record(replace(FOUND, unexplained_s=left)))
        assert [row for row in rows if "not explained" in row] == [" +0 ms   not explained"]


def test_explanation_has_evidence_and_next_command() -> None:
    """`dtfperf explain` shows each cause with its evidence, its confidence and the next command."""
    lines = describe_explanation(FOUND)
    assert lines[0] == "why  +108 of +112 ms per step (1,161 -> 1,273 ms)"
    assert "     changes of less than 11.6 ms count as noise" in lines
    assert "  server at ps:1: +96.0 ms, 86 % of the change; confidence high" in lines
    assert "    its own operations take 3.0 times as long" in lines
    assert f"    next: {DOCTOR}" in lines


def test_docs_have_every_kind_of_cause() -> None:
    """The table of docs/causes.md has all kinds of causes."""
    from pytest_dtfperf.datamodel.explanation import CauseKind

    table = DOCUMENT.partition("\n## Causes\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(CauseKind)


def test_escape_sequences_of_a_record_are_escaped() -> None:
    """Escape sequences in texts of a record are not printed."""
    bad = replace(FOUND, causes=[replace(FOUND.causes[0], words="\x1b[2Jx")], against="\x1b[2Jy")
    assert "\x1b" not in "\n".join(
        [*list_explanation(make_record(bad)), format_largest_cause(make_record(bad)), *describe_explanation(bad)]
    )
