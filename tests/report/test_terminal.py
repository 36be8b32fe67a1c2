"""The summary of a session, word for word."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.datamodel.explanation import Bound, Limit
from pytest_dtfperf.datamodel.fingerprint import AllocationCheck, Fingerprint
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.notes import AcceptedBaseline, list_next_steps
from pytest_dtfperf.report.series import PublishedPoint
from pytest_dtfperf.report.terminal import format_failure, format_summary, list_costs
from pytest_dtfperf.session.context import TimeBudget
from tests.records.samples import disturbed_but_one, make_comparison, record, spec

REGRESSED = record(
    spec(gpus=2, num_ps=1),
    *(15.2, 15.4, 15.3),
    test="perf_tests/test_inception3.py::test_throughput[2-1]",
    efficiency=0.78,
    baseline=make_comparison(17.6, -0.131),
    verdict=Verdict.REGRESSED,
    reason="every run lies below 16.72",
    injected_slowdowns={"worker:1": 0.2},
)
RECORDS = [
    record(
        spec(),
        *(9.7, 9.81, 10.1),
        efficiency=1.0,
        baseline=make_comparison(9.75, 0.0062),
        verdict=Verdict.PASSED,
    ),
    REGRESSED,
    record(spec(gpus=2, variable_update="replicated"), *(18.2, 18.4), efficiency=0.93, verdict=Verdict.NO_BASELINE),
    record(spec(model="mnist", batch_size=64, gpus=2, num_ps=1, data="mnist", data_dir="/digits"), *(1817.2, 1900.4)),
]


def make_published_point(
    system: str, gpus: int, images_per_sec: float, efficiency: float | None = None, data: str = "synthetic"
) -> PublishedPoint:
    return PublishedPoint(
        system=system,
        model="inception3",
        batch_size=64,
        gpus=gpus,
        images_per_sec=images_per_sec,
        citation=f"the makers of {system} 2017, Table 1",
        efficiency=efficiency,
        variable_update="parameter_server",
        data=data,
    )


PUBLISHED = [
    *(make_published_point("NVIDIA DGX-1", gpus, 142.0 * gpus, 1.0) for gpus in (1, 2, 4, 8)),
    *(make_published_point("Piz Daint", gpus, 130.0 * gpus, 0.95) for gpus in (1, 2, 4, 8, 16, 32, 64, 128)),
    make_published_point("Piz Daint", 2, 260.84, data="imagenet"),
    make_published_point("EC2 r4.16xlarge, CPU", 0, 3.54),
]

FIRST_AT_80 = """\
REGRESSED: inception3 b8 gpus=2 num_ps=1 parameter_server: every run lies below
  16.72
Injected slow-down (DTFPERF_SLOWDOWN): worker:1 slept 0.2 s in every step
1 measurement has no baseline. Accept what was measured with the same command
  and --update-baselines=new: later sessions are compared with it

"""

TABLE_AT_80 = """\
spec                 images/sec  efficiency  baseline   change  verdict
───────────────────────────────────────────────────────────────────────────
inception3 b8 parameter_server
  gpus=1 num_ps=0   9.81 ±2.0 %     100.0 %      9.75   +0.6 %  PASSED
  gpus=2 num_ps=1  15.30 ±0.7 %      78.0 %     17.60  -13.1 %  REGRESSED
inception3 b8 replicated
  gpus=2 num_ps=0  18.30 ±0.5 %      93.0 %         -        -  NO_BASELINE
mnist b64 parameter_server data=mnist
  gpus=2 num_ps=1   1859 ±2.2 %           -         -        -  -
"""

BENEATH_AT_80 = """\
images/sec is the median of 2 to 3 runs; ± is half their range, (largest -
  smallest) / 2, over the median
inception3: 34.3 GFLOP per training image; best 18.30 images/sec = 627 GFLOP/s
mnist: 83.3 MFLOP per training image; best 1859 images/sec = 155 GFLOP/s
FLOP: 2 x multiply-adds of convolutions and dense layers, and 3 x as many in
  training as forward

published: inception3  devices  images/sec  efficiency  source
──────────────────────────────────────────────────────────────
  NVIDIA DGX-1, b64          2       284.0     100.0 %  [1]
  Piz Daint, b64             2       260.0      95.0 %  [2]
  and 12 more
  [1] the makers of NVIDIA DGX-1 2017, Table 1
  [2] the makers of Piz Daint 2017, Table 1
"""

FIRST_AT_120 = """\
REGRESSED: inception3 b8 gpus=2 num_ps=1 parameter_server: every run lies below 16.72
Injected slow-down (DTFPERF_SLOWDOWN): worker:1 slept 0.2 s in every step
1 measurement has no baseline. Accept what was measured with the same command and --update-baselines=new: later sessions
  are compared with it

"""

TABLE_AT_120 = """\
spec                                                     images/sec  efficiency  baseline   change  verdict
───────────────────────────────────────────────────────────────────────────────────────────────────────────────
inception3 b8 gpus=1 num_ps=0 parameter_server          9.81 ±2.0 %     100.0 %      9.75   +0.6 %  PASSED
inception3 b8 gpus=2 num_ps=1 parameter_server         15.30 ±0.7 %      78.0 %     17.60  -13.1 %  REGRESSED
inception3 b8 gpus=2 num_ps=0 replicated               18.30 ±0.5 %      93.0 %         -        -  NO_BASELINE
mnist b64 gpus=2 num_ps=1 parameter_server data=mnist   1859 ±2.2 %           -         -        -  -
"""

BENEATH_AT_120 = """\
images/sec is the median of 2 to 3 runs; ± is half their range, (largest - smallest) / 2, over the median
inception3: 34.3 GFLOP per training image; best 18.30 images/sec = 627 GFLOP/s
mnist: 83.3 MFLOP per training image; best 1859 images/sec = 155 GFLOP/s
FLOP: 2 x multiply-adds of convolutions and dense layers, and 3 x as many in training as forward

published: inception3  devices  images/sec  efficiency  source
────────────────────────────────────────────────────────────────────────────────────────────────
  NVIDIA DGX-1, b64          2       284.0     100.0 %  the makers of NVIDIA DGX-1 2017, Table 1
  Piz Daint, b64             2       260.0      95.0 %  the makers of Piz Daint 2017, Table 1
  and 12 more
"""

LAST = """\
Baselines written, in images/sec:
  inception3 b8 gpus=1 num_ps=0 parameter_server: 9.75 -> 9.81 (+0.6 %)
  mnist b64 gpus=2 num_ps=1 parameter_server data=mnist: new, 1859
Written: inception3_b8.csv, mnist_b64.csv
Session folder: /home/me/perf_results/20260131T021503Z-9f3c1a
"""

FOLDER = Path("/home/me/perf_results/20260131T021503Z-9f3c1a")


ACCEPTED = [
    AcceptedBaseline("inception3 b8 gpus=1 num_ps=0 parameter_server", 9.75, 9.81),
    AcceptedBaseline("mnist b64 gpus=2 num_ps=1 parameter_server data=mnist", None, 1858.8),
]
PARTS = {
    80: (FIRST_AT_80, TABLE_AT_80, BENEATH_AT_80, LAST),
    120: (FIRST_AT_120, TABLE_AT_120, BENEATH_AT_120, LAST),
}


@pytest.mark.parametrize("verbose", [False, True], ids=["brief", "verbose"])
@pytest.mark.parametrize("width", PARTS)
def test_summary_word_for_word(width: int, verbose: bool) -> None:
    """Bad verdicts are first, then the table and the files; with -v also descriptions and published rates."""
    first, rates, beneath, last = PARTS[width]
    text = format_summary(
        RECORDS,
        PUBLISHED,
        width=width,
        verbose=verbose,
        folder=FOLDER,
        accepted=ACCEPTED,
        remarks=["Written: inception3_b8.csv, mnist_b64.csv"],
    )
    assert text == f"{first}{rates}{beneath if verbose else ''}\n{last}"


def test_reasons_are_limited() -> None:
    """Of many different reasons the gravest are shown, and the number of the others."""
    found = [
        record(spec(gpus=n), 9.0 * n, verdict=Verdict.REGRESSED if n > 19 else Verdict.INCONCLUSIVE, reason=f"for reason {n}")
        for n in range(1, 21)
    ]
    before, _, after = format_summary(found, width=120).partition("\n\n")
    assert before.splitlines()[0].startswith("REGRESSED: inception3 b8 gpus=20")
    assert before.splitlines()[8:] == ["and 12 reasons more: see the tests, or report.html"]
    assert after.startswith("spec")


def test_new_baselines_are_counted() -> None:
    """A changed baseline has both rates; new ones are counted, or all listed with -v."""
    new = [AcceptedBaseline(f"inception3 b8 gpus={n} num_ps=0 replicated", None, 9.0 * n) for n in range(1, 9)]
    brief, whole = (
        format_summary(RECORDS, width=120, accepted=[*ACCEPTED, *new], verbose=verbose) for verbose in (False, True)
    )
    assert "9.75 -> 9.81 (+0.6 %)\n  9 new: their verdicts in the table show accepted\n" in brief
    assert brief.count(": new, ") == 0
    assert whole.count(": new, ") == 9


@pytest.mark.parametrize("width", [72, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """No line of the summary is wider than the terminal."""
    assert max(map(len, format_summary(RECORDS, PUBLISHED, width=width, verbose=True).splitlines())) <= width


def test_colour_changes_no_word() -> None:
    """Colours are added only when requested, and change no text."""
    plain, coloured = (format_summary(RECORDS, PUBLISHED, width=120, colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[1;31mREGRESSED" in coloured
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()


def test_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Width and colour are the caller's, independent of COLUMNS and FORCE_COLOR."""
    before = format_summary(RECORDS, PUBLISHED, width=120)
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert format_summary(RECORDS, PUBLISHED, width=120) == before


def test_session_without_measurements_has_no_summary() -> None:
    """A session without measurements prints nothing."""
    assert format_summary([], PUBLISHED, width=80) == ""


def test_single_run_has_no_spread() -> None:
    """A single run has only its rate, and the footnote has the reason."""
    text = format_summary([record(spec(), 9.81)], width=80, verbose=True)
    assert "9.81 ±" not in text
    assert "images/sec is of a single run, which has no spread" in text


def test_single_undisturbed_run_has_no_spread() -> None:
    """A single undisturbed run beside disturbed ones has no spread."""
    text = format_summary([disturbed_but_one(record(spec(), 9.81, 5.0, 4.9))], width=80, verbose=True)
    assert "9.81 ±" not in text
    assert "images/sec is of a single run, which has no spread" in text


def test_failure_word_for_word() -> None:
    """A failure has the rates, the comparison, the hosts, the logs and the command that reruns it."""
    assert (
        format_failure(REGRESSED, logs=Path("perf_results/x/logs/y"), options=["--cluster=daint"])
        == """\
REGRESSED: inception3 b8 gpus=2 num_ps=1 parameter_server
  measured    15.30 ±0.7 % images/sec (runs: 15.20, 15.40, 15.30)
  baseline    17.60 images/sec (-13.1 %, margin 5.0 %)
  efficiency  78.0 %
  reason      every run lies below 16.72
  hosts       localhost
  injected    worker:1 slept 0.2 s in every step
  logs        perf_results/x/logs/y
  rerun       pytest --cluster=daint \\
                'perf_tests/test_inception3.py::test_throughput[2-1]'"""
    )


def test_failure_wraps_between_words() -> None:
    """Texts wrap within the terminal's width, and commands with a backslash; words stay whole."""
    reason = "every run is slower than 16.72 images/sec, " * 4
    options = ["--cluster=daint", "-k", "throughput and not 64", f"--clusters-file={'long/' * 20}clusters.toml"]
    text = format_failure(replace(REGRESSED, reason=reason), options=options, width=60)
    lines = text.splitlines()
    assert all(len(line) <= 60 or "/" in line.split()[0] for line in lines)
    first, last = (next(n for n, line in enumerate(lines) if line.startswith(f"  {name} ")) for name in ("reason", "hosts"))
    assert " ".join(line[14:] for line in lines[first:last]).split() == reason.split()
    command = "\n".join(line[14:] for line in lines[lines.index(next(line for line in lines if "rerun" in line)) :])
    assert shlex.split(command.replace("\\\n", "")) == ["pytest", *options, REGRESSED.test]
    assert command.count("\\\n") == command.count("\n") == 3


def test_failure_has_only_known_lines() -> None:
    """A measurement without baseline, efficiency, reason or logs has no lines for them."""
    assert format_failure(record(spec(), 9.7, 9.9)).splitlines() == [
        "not judged: inception3 b8 gpus=1 num_ps=0 parameter_server",
        "  measured    9.80 ±1.0 % images/sec (runs: 9.70, 9.90)",
        "  hosts       localhost",
        "  rerun       pytest perf_tests/test_inception3.py::test_throughput",
    ]


def test_common_reason_is_shown_once() -> None:
    """The reason of several INCOMPARABLE measurements is shown once; those on wrong hosts are not suggested as baselines."""
    placement = AllocationCheck(requested=["2 nodes"], granted=["1 node"], nodes=[], matches=False)
    elsewhere = "the baseline was measured on other hardware (gpus)"
    misplaced = record(spec(gpus=4, num_ps=1), 15.2, verdict=Verdict.INCOMPARABLE, reason="requested: 2 nodes; granted: 1 node")
    misplaced = replace(misplaced, measurement=replace(misplaced.measurement, fingerprint=Fingerprint(placement=placement)))
    foreign = [record(spec(gpus=gpus, num_ps=1), 9.7, verdict=Verdict.INCOMPARABLE, reason=elsewhere) for gpus in (1, 2)]
    text = format_summary([*foreign, misplaced], width=160)
    assert f"INCOMPARABLE (2 measurements): {elsewhere}\n" in text
    assert f"INCOMPARABLE: {misplaced.spec.label}: requested: 2 nodes; granted: 1 node\n" in text
    assert "2 measurements have no baseline." in text


def test_summary_of_a_dumb_terminal_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary is the same with `TERM=dumb`."""
    expected = format_summary(RECORDS, width=120, colour=True)
    monkeypatch.setenv("TERM", "dumb")
    assert format_summary(RECORDS, width=120, colour=True) == expected


def test_costs_are_summed() -> None:
    """The costs of all allocations are one line with the source of prices; without prices there is none."""
    bill = Bill(usd=1.204, price_source="Amazon's price list", price_date="2026-11-20")
    assert list_costs([bill, bill]) == ["Spent on hosts, estimated: 2.41 USD (price: Amazon's price list, 2026-11-20)"]
    assert list_costs([]) == []


def test_differences_of_published_rows_are_not_cut() -> None:
    """If a published name is too long, the system is cut, and the differing settings stay."""
    rows = [make_published_point("GCE n1-standard-32, 8 K80 (its makers)", 2, 57.80, data="imagenet")]
    (line,) = [line for line in format_summary(RECORDS, rows, width=80, verbose=True).splitlines() if "57.80" in line]
    assert "…, imagenet, b64  " in line
    assert len(line) <= 80


def test_session_without_baselines_has_next_steps(tmp_path: Path) -> None:
    """Three commands follow, with descriptions beside or below them; the files are one line."""
    for name in ("measurements.csv", "mnist_b64.csv", "figures/mnist_b64.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    steps = list_next_steps(RECORDS, ["/opt/bin/pytest", "perf_tests", "--explain=auto"], "daint")
    text = format_summary(RECORDS, width=120, next_steps=steps, folder=tmp_path)
    assert (
        """
Next:
  pytest perf_tests --update-baselines=new  accept these rates
  pytest perf_tests --explain=always        see where the time goes
  dtfperf doctor --cluster=daint            check the hosts
"""
        in text
    )
    assert text.endswith(f"Written: 2 CSV files, 1 SVG file\nSession folder: {tmp_path}\n")
    assert "1 measurement has no baseline. Later sessions are judged by accepted rates\n" in text
    narrow = format_summary(RECORDS, width=60, next_steps=steps)
    assert "  pytest perf_tests --explain=always\n      see where the time goes\n" in narrow


LIMIT = Limit(images_per_sec=30.0, bounds=[Bound(resource="cores", host="vm", step_s=0.08, needs="10.7 GFLOP")])


def make_first_session() -> list[Record]:
    """Return 26 measurements without a baseline, of four models in several modes on one and two devices."""
    modes = {"parameter_server": 1, "replicated": 0, "distributed_replicated": 1}
    specs = [
        spec(model=model, batch_size=64, gpus=gpus, num_ps=num_ps, variable_update=mode)
        for model in ("inception3", "resnet50", "alexnet", "mnist")
        for mode, num_ps in modes.items()
        for gpus in (1, 2)
    ]
    specs.append(spec(model="mnist", batch_size=64, gpus=2, variable_update="collective_all_reduce"))
    return [
        record(each, 9.81 * each.gpus, 9.9, efficiency=0.9 if each.gpus > 1 else None, verdict=Verdict.NO_BASELINE, limit=LIMIT)
        for each in specs
    ]


def test_first_session_fits_on_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """25 measurements with undecided checks, tests left out and files take 40 lines of 80, with pytest's three."""
    monkeypatch.chdir(tmp_path)  # a longer path would have lines of its own
    folder = Path("perf_results/20260131T021503Z-9f3c1a")
    for name in ("measurements.csv", *(f"{model}.csv" for model in "abcd"), *(f"figures/{model}.svg" for model in "abcd")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    records = make_first_session()
    records[3] = replace(records[3], verdict=Verdict.PASSED)  # by a check of its efficiency
    for at in range(5, 11):
        why = f"too few runs for a verdict: {'at least 4 are needed, of which each is made in turn with the others; ' * 4}{at}"
        records[at] = replace(records[at], verdict=Verdict.INCONCLUSIVE, reason=why)
    steps = list_next_steps(records, ["/opt/bin/pytest", "perf_tests"], "local")
    budget = TimeBudget(360.0, lambda: 25, lambda: 0.0)
    modes = ("distributed_all_reduce", "mirrored", "multi_worker_mirrored")
    budget.left_out += [f"perf_tests/test_learning.py::test_time_to_accuracy[gpus2-ps0-{mode}]" for mode in modes]
    budget.shortened.update("abc")
    remarks = [f"Report: {folder}/report.html", *budget.describe()]
    text = format_summary(records, width=80, next_steps=steps, folder=folder, remarks=remarks)
    lines = text.splitlines()
    assert len(lines) + 3 <= 40, text
    assert max(map(len, lines)) <= 80
    assert "and 12 measurements on fewer devices: see report.html, or -v" in lines
    assert "INCONCLUSIVE: 6 measurements. Reasons: see report.html, or -v" in lines
    assert sum(line.endswith(" cores") for line in lines) == 13
    assert sum("gpus=2" in line for line in lines) == 13
    assert "Written: 5 CSV files, 4 SVG files" in lines


def test_first_session_with_undecided_checks_has_short_lines() -> None:
    """Undecided checks do not add lines, rows are left out, and long specs are shortened."""
    records = make_first_session()
    long = spec(
        model="mnist",
        batch_size=32,
        gpus=2,
        num_ps=1,
        data="mnist",
        data_dir="/data",
        stop_at_top_1_accuracy=0.95,
        eval_during_training_every_n_steps=5,
    )
    records[3] = replace(records[3], verdict=Verdict.INCONCLUSIVE, reason="too few runs for a verdict")
    records[5] = replace(records[5], verdict=Verdict.INCONCLUSIVE, reason="the threshold is within this interval")
    records.append(record(long, 9.81, 9.9, verdict=None, limit=LIMIT))
    lines = format_summary(records, width=80).splitlines()
    assert "and 12 measurements on fewer devices: see report.html, or -v" in lines
    assert sum(line.endswith(" cores") for line in lines) == 14
    assert [line.split("…")[1].split() for line in lines if "…" in line] == [["9.86", "±0.5", "%", "33", "%", "cores"]]
    assert "INCONCLUSIVE: 2 measurements. Reasons: see report.html, or -v" in lines
    verbose = format_summary(records, width=200, verbose=True)
    assert "too few runs for a verdict" in verbose
    assert "the threshold is within this interval" in verbose


def test_first_session_beside_other_load_is_shortened() -> None:
    """Checks that other load made TAINTED are counted, as are undecided ones, and rows are left out all the same."""
    records = make_first_session()
    for at in (3, 5):
        records[at] = replace(records[at], verdict=Verdict.TAINTED, reason=f"every run was disturbed {at}")
    records[7] = replace(records[7], verdict=Verdict.INCONCLUSIVE, reason="too few runs for a verdict")
    lines = format_summary(records, width=80).splitlines()
    assert "TAINTED: 2 measurements; INCONCLUSIVE: 1. Reasons: see report.html, or -v" in lines
    assert "and 12 measurements on fewer devices: see report.html, or -v" in lines


def test_verbose_first_session_has_all_rows() -> None:
    """With -v all 25 measurements are shown, with their verdicts."""
    text = format_summary(make_first_session(), width=120, verbose=True)
    assert text.count("NO_BASELINE") == 25


def test_session_with_a_baseline_has_all_rows() -> None:
    """If one of many measurements is compared, no row is left out."""
    records = make_first_session()
    records[0] = replace(records[0], verdict=Verdict.PASSED, checks=(make_comparison(9.8, 0.001),))
    text = format_summary(records, width=120)
    assert text.count("NO_BASELINE") == 24
    assert "fewer devices" not in text


def test_compared_session_has_no_next_steps() -> None:
    """A session of measurements with baselines has no next steps."""
    assert list_next_steps([record for record in RECORDS if record.verdict != Verdict.NO_BASELINE], ["pytest"], "local") == []


def test_columns_without_a_value_are_left_out() -> None:
    """Columns without any value are left out."""
    found = record(spec(), 9.81, verdict=Verdict.NO_BASELINE)
    header = next(line for line in format_summary([found], width=80).splitlines() if line.startswith("spec"))
    assert header.split() == ["spec", "images/sec", "verdict"]
