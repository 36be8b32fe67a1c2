"""Tests of --num-ps=sweep, which finds the fastest number of parameter servers by few runs."""

import json
import signal
from pathlib import Path

import pytest

from pytest_dtfperf.datamodel.explanation import SweepState
from pytest_dtfperf.session.sweep import load_sweep
from pytest_dtfperf.testing.backends import wait_until
from tests.plugin.conftest import ENDS_S, Ended, PerfTests
from tests.plugin.test_verdicts import records

# Of eight, three servers are fastest. On one host nothing is known of links, so that counts far from each other are tried.
SECONDS = {1: 0.030, 2: 0.020, 3: 0.010, 4: 0.012, 5: 0.014, 6: 0.016, 7: 0.018, 8: 0.022}
IN_TURN = """
def test_scaling(train, baseline, gpus, num_ps):
    one, many = train.in_turn({"gpus": 1, "num_ps": 1}, {"gpus": gpus, "num_ps": num_ps}, model="trivial", batch_size=10)
    baseline.check_efficiency(many, anchor=one, at_least=0.01)
"""


@pytest.fixture
def eight_devices(perf: PerfTests) -> PerfTests:
    """Perf tests on a host with eight devices."""
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("devices_per_host = 2", "devices_per_host = 8"))
    return perf


def run_sweep(perf: PerfTests, *options: str, seconds: dict[int, float] = SECONDS, **environment: str) -> Ended:
    by_servers = json.dumps({str(count): each for count, each in seconds.items()})
    return perf.run("--gpus=8", "--num-ps=sweep", *options, TOY_PS_STEP_S=by_servers, **environment)


def list_states(perf: PerfTests) -> list[Path]:
    return list((perf.folder / "perf_results" / "sweeps").glob("*"))


def test_sweep_finds_the_fastest_with_few_runs(eight_devices: PerfTests) -> None:
    """Of eight counts four have a short run and two are measured in full, the fastest is accepted, and `best` takes it."""
    ended = run_sweep(eight_devices, "--update-baselines=new", "-v")
    assert ended.code == 0, ended.out
    ended.line("gpus8-pssweep-parameter_server")
    measured = {record["spec"]["num_ps"]: record for record in records(eight_devices)}
    assert measured.keys() == {3, 5}
    sweep = measured[3]["sweep"]
    assert (sweep["most"], sweep["failed"], set(sweep["predicted"])) == (8, {}, set("12345678"))
    assert {name.split()[0]: rate for name, rate in sweep["tried"].items()} == {
        str(count): pytest.approx(80 / SECONDS[count]) for count in (1, 3, 5, 8)
    }
    assert measured[3]["accepted"]
    assert measured[3]["images_per_sec"] == pytest.approx(8000)
    assert "sweep" not in measured[5]
    ended.line("trivial b10 parameter_server", "8", "3", "8000", "1: 2667, 3: 8000, 5: 5714, 8: 3636")
    assert list_states(eight_devices) == []

    best = eight_devices.run("--gpus=8", "--num-ps=best", TOY_PS_STEP_S=json.dumps({"3": 0.010}))
    assert best.code == 0, best.out
    best.line("gpus=8 num_ps=3", "PASSED")


def test_sweep_in_turn_measures_the_fastest_count(eight_devices: PerfTests) -> None:
    """In a test that takes turns with an anchor, only the fastest count of the short runs is measured."""
    eight_devices.write(IN_TURN)
    ended = run_sweep(eight_devices)
    assert ended.code == 0, ended.out
    assert [(record["spec"]["gpus"], record["spec"]["num_ps"]) for record in records(eight_devices)] == [(1, 1), (8, 3)]


def test_sweep_of_a_mode_without_servers_is_skipped(eight_devices: PerfTests) -> None:
    """A mode without servers is measured once, without a sweep."""
    ended = eight_devices.run("--gpus=8", "--num-ps=sweep", "--variable-update=replicated")
    assert ended.code == 0, ended.out
    (record,) = records(eight_devices)
    assert (record["spec"]["num_ps"], "sweep" in record) == (0, False)


def test_sweep_excludes_counts_that_do_not_train(eight_devices: PerfTests) -> None:
    """A count with a failed run is excluded with its reason, also the first, and if all fail, the test has the reason of
    each."""
    ended = run_sweep(eight_devices, seconds={count: SECONDS[count] for count in (2, 3, 4, 5)})
    assert ended.code == 0, ended.out
    (swept_one,) = (record for record in records(eight_devices) if "sweep" in record)
    assert swept_one["spec"]["num_ps"] in (2, 3)
    assert "1" in swept_one["sweep"]["failed"]

    none = run_sweep(eight_devices, seconds={})
    assert none.code == 1
    none.line("trains with no number of servers", "num_ps=1:", "num_ps=8:")


def interrupt_sweep(eight_devices: PerfTests, do: str, *options: str) -> tuple[Path, SweepState]:
    """A sweep that Ctrl-C ends where a toy waits: what it has kept, and where."""
    waits = eight_devices.folder / "waits"
    seconds = json.dumps({str(count): each for count, each in SECONDS.items()})
    toy = {"TOY_PS_STEP_S": seconds, "TOY_DO": do, "TOY_WAITS": str(waits)}
    with eight_devices.start("--gpus=8", "--num-ps=sweep", *options, variables=toy) as process:
        wait_until("it waits", waits.exists, ENDS_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(ENDS_S) == 2
    (file,) = list_states(eight_devices)
    found = load_sweep(file)
    assert found
    return file, found


def test_interrupted_sweep_is_continued(eight_devices: PerfTests) -> None:
    """Ctrl-C keeps the finished short runs, the next session makes the others, and then no file is kept."""
    file, found = interrupt_sweep(eight_devices, "wait with 5 servers")
    assert {name.split()[0] for name in found.tried} == {"1", "3"}
    file.write_text(json.dumps({**found.to_json(), "most": 4}))  # as there were when the cluster had room for fewer

    faster_since = {**SECONDS, 1: 0.001}
    ended = run_sweep(eight_devices, seconds=faster_since)
    assert ended.code == 0, ended.out
    (sweep,) = (record["sweep"] for record in records(eight_devices) if "sweep" in record)
    assert sweep["most"] == 8
    tried = {name.split()[0]: rate for name, rate in sweep["tried"].items()}
    assert tried == {str(count): pytest.approx(80 / SECONDS[count]) for count in (1, 3, 5, 8)}
    assert list_states(eight_devices) == []


# Both read the short runs from the same file, as the interrupted sweep above does.
@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("source", [None, IN_TURN], ids=["alone", "in turn"])
def test_sweep_interrupted_in_a_full_run_keeps_short_runs(eight_devices: PerfTests, source: str | None) -> None:
    """Ctrl-C in a full run keeps all short runs, and the next session measures the fastest of these."""
    if source:
        eight_devices.write(source)
    _, found = interrupt_sweep(eight_devices, "wait in 50 steps", "--steps=50")
    assert {name.split()[0] for name in found.tried} == {"1", "3", "5", "8"}

    # If 8 servers were tried again, they would be the fastest.
    ended = run_sweep(eight_devices, "--steps=50", seconds={**SECONDS, 8: 0.001})
    assert ended.code == 0, ended.out
    assert records(eight_devices)[-1]["spec"]["num_ps"] in (3, 5)
    assert list_states(eight_devices) == []


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{",
        '{"unknown": 1}',
        '{"most": 8, "tried": {"1": 2.0}}',
        '{"most": 8, "tried": {"1 servers, 10 steps": -1}}',
        '{"most": 8, "tried": {"1 servers, 10 steps": 1e999}}',
        '{"most": 8, "failed": ["1"]}',
    ],
)
def test_unusable_sweep_file_is_ignored(tmp_path: Path, content: str | None) -> None:
    """A file that is missing, damaged, or of another version is read as None."""
    file = tmp_path / "sweep.json"
    if content is not None:
        file.write_text(content)
    assert load_sweep(file) is None


def test_sweep_file_keeps_its_state(tmp_path: Path) -> None:
    """The state of a sweep is the same after its file."""
    found = SweepState(most=8, tried={"3 servers, 10 steps": 95.5}, failed={"1": "no memory"})
    (tmp_path / "sweep.json").write_text(json.dumps(found.to_json()))
    assert load_sweep(tmp_path / "sweep.json") == found
