"""`dtfperf qualify`: slow hosts and links of simulated hosts, and a slow training on machines over SSH."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_dtfperf.cli import main
from pytest_dtfperf.cli.slow_hosts import choose_qualify_code
from pytest_dtfperf.clusters.slurm.client import SlurmClient
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.qualification import CapacityResult, HostResult, HostVerdict, PairResult, Qualification
from pytest_dtfperf.history.enter import remember
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.qualify import qualification
from pytest_dtfperf.qualify.pairs import Pair, draw_matching
from pytest_dtfperf.qualify.qualification import list_drain_commands, list_families
from pytest_dtfperf.records.host_readings import append_host_readings, load_host_readings
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.testing.backends import wait_until
from tests import campaign
from tests.cli.table import read
from tests.clusters.slurm.conftest import NewSite, new_site
from tests.clusters.ssh.lab import Lab, why_not
from tests.history.sessions import folder_of as make_session_folder
from tests.plugin import zygote
from tests.plugin.conftest import ENDS_S, PerfTests, perf_tests_in, wait_for_progress
from tests.plugin.test_slurm import Mini
from tests.plugin.test_ssh import SETUP, TOY, TRAINING

__all__ = ["new_site"]

SIM = """
[sim]
backend = "simulated"
hosts = 8
gpus_per_host = 2
rates = { mnist = 3000.0 }
link = "10gbit"
"""
SLOW = 'slow_hosts = [{ host = 3, slowdown = 1.13 }]\nslow_links = [{ host = 5, link = "2gbit" }]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run_qualify(folder: Path, lines: str, *arguments: str) -> int:
    """Return the exit code on a simulated cluster."""
    (folder / "clusters.toml").write_text(SIM + lines)
    return main(["qualify", "--cluster=sim", *arguments])


def test_qualify_names_slow_hosts_and_their_capacities(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that computes slowly and one with a slow link are named with what is slow, and all others are fit."""
    assert run_qualify(folder, SLOW, "--hosts=6") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "6 hosts, " in out
    assert "4 fit, 2 slow, 0 not judged (at most 2.0 % of qualifications call any fit host slow)" in out
    assert re.search(r"sim-0003: gpu\.0\.matmul: [\d.]+ % slower than its peers; .*; training: [\d.]+ % slower", out)
    assert re.search(r"sim-0005: link in: [\d.]+ Gbit/s, of its peers [\d.]+ Gbit/s; link out: ", out)
    assert "--exclude=sim-0003,sim-0005" in out


def test_qualify_prints_json_of_its_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the result, which is also in qualification.json, and both can be read again."""
    assert run_qualify(folder, SLOW, "--json", "--no-training") == 1
    found = Qualification.from_json(read("qualify", capsys.readouterr().out))
    assert found.list_hosts(HostVerdict.SLOW) == ["sim-0003", "sim-0005"]
    (path,) = (folder / "perf_results").glob("*/qualification.json")
    stored = Qualification.from_json(json.loads(path.read_text()))
    assert stored.list_hosts(HostVerdict.SLOW) == ["sim-0003", "sim-0005"]


def test_qualify_of_simulated_hosts_does_not_enter_the_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A qualification of simulated hosts makes no history and stores no readings."""
    assert run_qualify(folder, "", "--hosts=4", "--no-training") == 0
    assert not (folder / "perf_results" / "history.sqlite").exists()
    assert not list((folder / "perf_results").glob("*/hosts.jsonl"))


def test_qualify_writes_metrics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--metrics writes the gauges of the result into a file for node_exporter, beside the usual output."""
    assert run_qualify(folder, SLOW, "--no-training", f"--metrics={folder / 'q.prom'}", "--exclude-list") == 1
    families = {family.name: family for family in text_string_to_metric_families((folder / "q.prom").read_text())}
    verdicts = families["dtfperf_qualification_host_verdict"].samples
    assert {each.labels["host"] for each in verdicts if each.value and each.labels["verdict"] == "SLOW"} == {
        "sim-0003",
        "sim-0005",
    }
    printed = capsys.readouterr()
    assert printed.out == "sim-0003,sim-0005\n"
    assert f"metrics in {folder / 'q.prom'}" in printed.err


def test_qualify_compares_the_reading_of_the_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a data set, each host's reading and decoding of its files is a capacity; with synthetic data it is not."""
    data = folder / "data"
    assert main(["make-data", "mnist", f"--out={data}", "--images=64"]) == 0
    for fields, is_read in (([f"data_dir={data}", "data=mnist"], True), ([], False)):
        capsys.readouterr()
        assert run_qualify(folder, "", "mnist", *fields, "--hosts=3", "--no-training", "--json") == 0
        found = Qualification.from_json(read("qualify", capsys.readouterr().out))
        assert all(("input" in host.capacities) == is_read for host in found.hosts.values())


def test_qualify_reads_the_input_from_its_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every probe of a qualification drops the data's files from the page cache before it reads them."""
    measure, is_cold = Launcher.probe, list[object]()

    def note_and_probe(self: Launcher, *args: Any, **options: Any) -> Probes:
        is_cold.append(options["cold_input"])
        return measure(self, *args, **options)

    monkeypatch.setattr(Launcher, "probe", note_and_probe)
    assert run_qualify(folder, "", "--hosts=3", "--no-training", "--json") == 0
    assert is_cold
    assert all(is_cold)


def test_qualify_exclude_list_is_the_whole_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--exclude-list prints only the slow hosts, as srun takes them."""
    assert run_qualify(folder, SLOW, "--exclude-list", "--no-training") == 1
    assert capsys.readouterr().out == "sim-0003,sim-0005\n"


def test_qualify_of_equal_hosts_ends_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal hosts are fit after the screening."""
    assert run_qualify(folder, "", "--hosts=4") == 0
    out = capsys.readouterr().out
    assert "4 fit, 0 slow, 0 not judged" in out
    assert "3 rounds" in out


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [([], 8), (["--hosts=4"], 4), (["--hosts=4", "mnist", "num_ps=3"], 4)],
    ids=["all hosts", "some hosts", "several servers"],
)
def test_qualify_trains_on_all_devices_beside_separate_servers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], hosts: int
) -> None:
    """Where parameter servers have hosts of their own, each host still trains with all of its devices, and all are judged."""
    train, used = Launcher.run, list[tuple[int, int]]()

    def note_and_train(self: Launcher, spec: Spec, **options: Any) -> Run:
        used.append((len(self.hosts) - len(options["without"]), spec.gpus))
        return train(self, spec, **options)

    monkeypatch.setattr(Launcher, "run", note_and_train)
    assert run_qualify(folder, "ps_on_worker_hosts = false\n", "--json", *arguments) == 0
    found = Qualification.from_json(read("qualify", capsys.readouterr().out))
    assert len(found.hosts) == hosts
    assert found.list_hosts(HostVerdict.FIT) == list(found.hosts)
    assert set(used) == {(1, 2), (2, 4)}


@pytest.mark.parametrize("hosts", [1, 2])
def test_qualify_does_not_judge_too_few_hosts(hosts: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One or two hosts are not judged, which is exit code 3."""
    assert run_qualify(folder, "", f"--hosts={hosts}") == 3
    assert "fewer than 3 hosts of its kind were read" in capsys.readouterr().out


def test_qualify_leaves_out_a_simulated_host_that_dies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that dies in its training is not judged, with the reason; the others are judged."""
    assert run_qualify(folder, "deaths = [{ host = 2, step = 5, run = 3 }]\n", "--hosts=4") == 3
    out = capsys.readouterr().out
    assert "3 fit, 0 slow, 1 not judged" in out
    assert "SIMULATED: the hosts of sim are simulated, and nothing was trained" in out
    assert re.search(r"(?m)^sim-0002: .+", out)
    assert list((folder / "perf_results").glob("*/qualification.json"))


def test_reason_of_a_lost_host_stays_when_the_time_is_over(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the time limit, the undecided hosts have that as their reason, and a host that died has its own."""
    monkeypatch.setattr(qualification, "time", SimpleNamespace(monotonic=count(0.0, 10.0).__next__))
    deaths = "deaths = [{ host = 2, step = 5, run = 1 }]\n"
    assert run_qualify(folder, deaths, "--hosts=4", "--time-limit=45s") == 3
    out = capsys.readouterr().out
    reached = "the time limit was reached after 2 rounds: 3 rounds are needed, and one takes up to 10 s (--time-limit)"
    assert f"\nsim-0000, sim-0001, sim-0003: {reached}\n" in out
    assert re.search(r"(?m)^sim-0002: .*died", out)


def slow_pair_down(monkeypatch: pytest.MonkeyPatch, slow: Pair) -> None:
    """Measure 30 % of its rate from one host of a pair to the other."""
    measure = qualification._list_pair_rates

    def slow_down(probes: Probes) -> dict[Pair, float]:
        return {pair: per_s * (0.3 if pair == slow else 1) for pair, per_s in measure(probes).items()}

    monkeypatch.setattr(qualification, "_list_pair_rates", slow_down)


@pytest.mark.parametrize(
    ("limit", "code", "says"),
    [("1h", 1, "% less than both with other hosts"), ("95s", 3, "it was not measured often enough")],
)
def test_slow_pair_is_measured_again_within_the_time_limit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, limit: str, code: int, says: str
) -> None:
    """A pair that may be slow is measured five times again, and is not judged if the time limit ends that before."""
    slow_pair_down(monkeypatch, ("sim-0000", "sim-0001"))
    monkeypatch.setattr(qualification, "time", SimpleNamespace(monotonic=count(0.0, 10.0).__next__))
    assert run_qualify(folder, "", "--hosts=4", f"--time-limit={limit}") == code
    assert re.search(f"sim-0000 to sim-0001: .*{says}", " ".join(capsys.readouterr().out.split()))


def test_slow_pair_is_named_that_has_not_met_in_the_rounds(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal hosts are decided after three rounds. The pairs of eight hosts that have not met by then are measured, too."""
    monkeypatch.setattr(qualification, "secrets", SimpleNamespace(randbits=lambda bits: 1))
    slow = draw_matching([f"sim-{number:04}" for number in range(8)], number=5, seed=1)[0]
    slow_pair_down(monkeypatch, slow)
    assert run_qualify(folder, "", "--hosts=8") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "8 fit, 0 slow, 0 not judged" in out
    assert re.search(f"{slow[0]} to {slow[1]}: .*% less than both with other hosts", out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json", "--exclude-list"], "two outputs"),
        (["--slow=0.01"], "--slow must be more than 0.02"),
        (["--slow=2"], "--slow is a fraction between 0 and 1"),
        (["--host"], "leave out --cluster and --hosts"),
        (["--drain"], "--drain is for nodes of Slurm"),
        (["--hosts=0"], "--hosts must be 1 or more, not 0"),
        (["--metrics=/nowhere/q.txt"], "--metrics takes a file *.prom in a folder that exists"),
        (["--hosts=sim-0001,sim-0002"], "does not allocate hosts by name: choose hosts by their number, or all"),
        (["--max-rounds=0"], "--max-rounds must be from 1 to 1000, not 0"),
        (["mnist", "gpus=4"], "leave out gpus"),
        (["mnist", "trivial"], "one model"),
        (["mnist", "variable_update=replicated"], "trains in one process"),
    ],
)
def test_qualify_refuses_wrong_arguments(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments are exit code 2 with one message, and there is no result."""
    assert run_qualify(folder, "", *arguments) == 2
    assert words in capsys.readouterr().err
    assert not list((folder / "perf_results").glob("*/qualification.json"))


@pytest.fixture
def host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which this host reports invented readings at once."""
    monkeypatch.setenv("PYTHONPATH", zygote.SEARCH_PATH["PYTHONPATH"])
    (folder / "clusters.toml").write_text(f'[local]\nbackend = "local"\ndedicated = false\ndevice = "cpu"\n{TOY}\n')
    return folder


@pytest.mark.campaign
@pytest.mark.parametrize("readings", ["invented", "measured"] if campaign.WHOLE else ["invented"])
def test_qualify_of_this_host_without_history_is_not_judged(
    host: Path, capsys: pytest.CaptureFixture[str], readings: str
) -> None:
    """--host measures this host alone. Without readings in the history it makes all rounds, and ends with exit code 3."""
    if readings == "measured":
        (host / "clusters.toml").unlink()
    assert main(["qualify", "--host", "--json", "--max-rounds=1", "--time-limit=10min"]) == 3
    found = Qualification.from_json(read("qualify", capsys.readouterr().out))
    (result,) = found.hosts.values()
    assert found.rounds == 4
    assert "training" not in result.capacities
    assert result.verdict is HostVerdict.NOT_JUDGED
    reasons = ["the history has fewer than 5 sessions", *(["undisturbed reading"] if readings == "measured" else [])]
    assert any(reason in result.reason for reason in reasons)


def enter_earlier_sessions(host: Path, nights: int) -> Address:
    """Enter the readings of the only session into a history, as those of so many earlier ones, and return its address."""
    (path,) = (host / "perf_results").iterdir()
    readings = load_host_readings(SessionFolder.open(path))
    address = parse_address(None, host)
    assert address
    for night in range(nights):
        earlier = make_session_folder(host / "earlier", night)
        append_host_readings(earlier, readings)
        remember(earlier, address)
    return address


TOO_FEW = {  # time limit: rounds within it, and the end of the reason
    "5s": (0, "before the first round: 3 rounds are needed (--time-limit)"),
    "25s": (1, "after 1 round: 3 rounds are needed, and one takes up to 10 s (--time-limit)"),
    "45s": (2, "after 2 rounds: 3 rounds are needed, and one takes up to 10 s (--time-limit)"),
}


def test_qualify_of_this_host_decides_nothing_before_three_rounds(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With time for fewer than three rounds, --host names the limit and the rounds, and is neither fit nor slow: exit code 3.

    By the same history, three rounds make the host fit, and slow if it trains in twice the time.
    """
    command = ["qualify", "--host", "trivial", "batch_size=10", "warmup_steps=1", "steps=4"]
    assert main([*command, "--max-rounds=1", "--time-limit=10min", "--history=never"]) == 3
    command.append(f"--history={enter_earlier_sessions(host, 6)}")

    def qualify(limit: str, *arguments: str) -> int:
        """Measure by a clock that goes on by 10 s when it is read: once at first, and before and after each round."""
        monkeypatch.setattr(qualification, "time", SimpleNamespace(monotonic=count(0.0, 10.0).__next__))
        capsys.readouterr()
        return main([*command, f"--time-limit={limit}", *arguments])

    for step_s, limits, verdict, code in (
        ("0.01", ["5s", "25s", "45s"], HostVerdict.FIT, 0),
        ("0.02", ["45s"], HostVerdict.SLOW, 1),
    ):
        monkeypatch.setenv("TOY_STEP_S", step_s)
        for limit in limits:
            rounds, reason = TOO_FEW[limit]
            assert qualify(limit, "--json") == 3
            printed = capsys.readouterr()
            found = Qualification.from_json(read("qualify", printed.out))
            (result,) = found.hosts.values()
            assert (result.verdict, result.reason) == (HostVerdict.NOT_JUDGED, f"the time limit was reached {reason}")
            assert all(each.verdict is HostVerdict.NOT_JUDGED for each in result.capacities.values())
            assert found.rounds == len(re.findall(r"round \d: 1 host\n", printed.err)) == rounds
        assert qualify("65s", "--json") == code
        found = Qualification.from_json(read("qualify", capsys.readouterr().out))
        assert (found.rounds, found.list_hosts(verdict)) == (3, list(found.hosts))
    assert qualify("5s") == 3
    out = capsys.readouterr().out
    assert "0 fit, 0 slow, 1 not judged" in out
    assert f": the time limit was reached {TOO_FEW['5s'][1]}\n0 rounds: " in out


@pytest.mark.parametrize("what", ["damaged history", "unwritable output"])
def test_qualify_of_this_host_that_fails_is_not_judged(host: Path, what: str) -> None:
    """A failure of the program itself is exit code 3, never 1, so that it drains no node."""
    (host / "history.sqlite").write_text("no database" * 100 if what == "damaged history" else "")
    command = ["-m", zygote.COMMANDS, "qualify", "--host", "--json"]
    # The first round of readings is enough: the output is written at any end.
    command += ["--history=history.sqlite"] if what == "damaged history" else ["--time-limit=1s"]
    env = {**os.environ, **zygote.SEARCH_PATH}
    with (
        open("/dev/full" if what == "unwritable output" else os.devnull, "w") as out,
        (host / "stderr").open("w") as err,
        zygote.start(command, host, env, stdout=out.fileno(), stderr=err.fileno()) as process,
    ):
        code = process.wait(ENDS_S)
    errors = (host / "stderr").read_text()
    assert code == 3, errors
    assert "not judged: " in errors
    assert "Traceback" not in errors


def test_pair_that_was_not_measured_again_is_not_judged() -> None:
    """A pair of hosts with a link that may be slow makes the exit code 3, and one with a slow link 1."""
    host = HostResult(verdict=HostVerdict.FIT, kind="cpu-x", capacities={})

    def choose(*verdicts: HostVerdict) -> int:
        pairs = [PairResult(hosts=("a", "b"), name="link", per_s=1e6, expected_per_s=2e6, verdict=each) for each in verdicts]
        found = Qualification(cluster="c", hosts={"a": host}, pairs=pairs, false_alarms=0.02, seconds=1.0, rounds=3)
        return choose_qualify_code(found)

    assert [choose(), choose(HostVerdict.NOT_JUDGED), choose(HostVerdict.NOT_JUDGED, HostVerdict.SLOW)] == [0, 3, 1]


@pytest.mark.parametrize(
    ("names", "families"),
    [
        (["link in", "training in pairs"], []),
        (["cores.matmul", "training"], ["cores"]),
        (["memory", "gpu.1.matmul", "core.convolution", "input"], ["core", "gpu", "memory", "input"]),
    ],
)
def test_qualify_probes_only_what_is_open(names: list[str], families: list[str]) -> None:
    """After the screening, only the probes of capacities run that are not decided."""
    assert list_families(names) == families


def test_drain_commands_have_the_reason() -> None:
    """Each slow host has a command of Slurm with its reason, quoted for a shell."""
    slow = HostResult(verdict=HostVerdict.SLOW, reason='memory: 11.8 % slower than "its" peers')
    fit = HostResult(verdict=HostVerdict.FIT, capacities={"memory": CapacityResult(verdict=HostVerdict.FIT)})
    found = Qualification(cluster="daint", hosts={"nid00012": fit, "nid00017": slow}, false_alarms=0.02)
    assert list_drain_commands(found) == [
        "scontrol update nodename=nid00017 state=drain 'reason=dtfperf: memory: 11.8 % slower than \"its\" peers'"
    ]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Four machines."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(4) as machines:
        yield machines


def test_qualify_names_a_slow_training_over_ssh(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four machines the one with a training of twice the time is slow, and the history has the readings."""
    perf: PerfTests = perf_tests_in(tmp_path)
    setup = [SETUP, f"export TOY_SLOW_HOSTS='{json.dumps({lab['m3'].address: 0.02})}'"]
    (perf.folder / "perf" / "clusters.toml").write_text(
        lab.toml(TRAINING, TOY, "connect_s = 60", f"setup = {json.dumps(setup)}")
    )
    options = ["--cluster=lab", "--clusters-file=perf/clusters.toml", "--history=history.sqlite", "--json"]
    ended = perf.run_python("-m", "pytest_dtfperf.cli", "qualify", "trivial", *options)
    found = Qualification.from_json(read("qualify", ended.out))
    assert ended.code == 1, ended.err
    assert found.list_hosts(HostVerdict.SLOW) == ["m3"]
    pairs = {host: result.capacities["training in pairs"].verdict for host, result in found.hosts.items()}
    assert pairs == {host: HostVerdict.SLOW if host == "m3" else HostVerdict.FIT for host in lab.names}
    assert main(["history", "hosts", "m3", f"--history={perf.folder / 'history.sqlite'}", "--json"]) == 0
    (host,) = read("history hosts", capsys.readouterr().out)["hosts"]
    readings = {series["capacity"]: series["points"][0]["verdict"] for series in host["series"]}
    assert (host["cluster"], host["verdict"], readings["training"], readings["core.matmul"]) == ("lab", "SLOW", "SLOW", "FIT")
    assert readings["training in pairs"] == "SLOW"


@pytest.mark.parametrize("container", [None, "bwrap --dev-bind / / --die-with-parent --"], ids=["no container", "bubblewrap"])
def test_qualify_names_an_unreachable_host_and_judges_the_others(lab: Lab, tmp_path: Path, container: str | None) -> None:
    """A host that is off before the start is not judged, with the reason, and the others are measured, also in a container."""
    if container and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    lines = [f'container = "{container}"', f'container_python = "{sys.executable}"'] if container else []
    perf: PerfTests = perf_tests_in(tmp_path)
    (perf.folder / "perf" / "clusters.toml").write_text(lab.toml(TRAINING, TOY, "connect_s = 10", *lines))
    options = ["--cluster=lab", "--clusters-file=perf/clusters.toml", "--max-rounds=1", "--no-training", "--json"]
    lab["m2"].power_off()
    try:
        ended = perf.run_python("-m", "pytest_dtfperf.cli", "qualify", "trivial", *options)
    finally:
        lab["m2"].power_on()
    found = Qualification.from_json(read("qualify", ended.out))
    assert found.hosts["m2"].verdict is HostVerdict.NOT_JUDGED
    assert f"m2 is left out from now on: {found.hosts['m2'].reason}" in ended.err
    assert all(max(each.readings for each in found.hosts[name].capacities.values()) >= 3 for name in ("m1", "m3", "m4"))


def test_qualify_prints_a_common_reason_once(lab: Lab, tmp_path: Path) -> None:
    """If no host can start, one line has the reason and all hosts, and the exit code is 3."""
    perf: PerfTests = perf_tests_in(tmp_path)
    (perf.folder / "perf" / "clusters.toml").write_text(lab.toml(TRAINING, TOY, 'python = "/nowhere/python3"'))
    options = ["--cluster=lab", "--clusters-file=perf/clusters.toml"]
    ended = perf.run_python("-m", "pytest_dtfperf.cli", "qualify", "trivial", *options)
    assert ended.code == 3, ended.err
    (line,) = (each for each in ended.err.splitlines() if "/nowhere/python3" in each)
    assert all(name in line for name in lab.names)


def test_qualify_prints_the_reason_of_all_agents_once(lab: Lab, tmp_path: Path) -> None:
    """If no agent starts, one line has the reason and all allocated hosts."""
    perf: PerfTests = perf_tests_in(tmp_path)
    lines = ["connect_s = 60", f"setup = {json.dumps([SETUP])}", 'entry = "tests.nowhere:run"']
    (perf.folder / "perf" / "clusters.toml").write_text(lab.toml(TRAINING, *lines))
    options = ["--cluster=lab", "--clusters-file=perf/clusters.toml"]
    ended = perf.run_python("-m", "pytest_dtfperf.cli", "qualify", "trivial", *options)
    assert (ended.code, ended.out) == (3, ""), ended.err
    (line,) = (each for each in ended.err.splitlines() if "tests.nowhere" in each)
    assert all(name in line for name in lab.names)
    assert "no host is left" in line


@pytest.mark.parametrize("what", ["switched off", "stopped"])
def test_qualify_names_a_lost_host_and_judges_the_others(lab: Lab, tmp_path: Path, what: str) -> None:
    """A host that is off, or does not answer, in the second round is not judged, and the others are. No process stays."""
    perf: PerfTests = perf_tests_in(tmp_path)
    lines = ["connect_s = 20", "heartbeat_timeout_s = 10", f"setup = {json.dumps([SETUP])}"]
    (perf.folder / "perf" / "clusters.toml").write_text(lab.toml(TRAINING, TOY, *lines))
    command = ["qualify", "trivial", "--cluster=lab", "--clusters-file=perf/clusters.toml", "--max-rounds=1", "--json"]
    try:
        with perf.start_command(*command) as process:
            wait_for_progress(process, "round 2:")
            if what == "switched off":
                lab["m4"].power_off()
            else:
                for pid in lab["m4"].processes("DTFPERF_SESSION"):
                    os.kill(pid, signal.SIGSTOP)
            out, errors = process.communicate(timeout=6 * ENDS_S)
        found = Qualification.from_json(read("qualify", out))
        on = [each for each in lab.machines if what == "stopped" or each.name != "m4"]
        wait_until("no session is left on any host", lambda: not any(each.sessions() for each in on))
    finally:
        if what == "switched off":
            lab["m4"].power_on()
    assert found.hosts["m4"].verdict is HostVerdict.NOT_JUDGED
    assert "m4 is left out from now on" in errors
    assert found.hosts["m4"].reason in errors
    assert all(max(each.readings for each in found.hosts[name].capacities.values()) >= 3 for name in ("m1", "m2", "m3"))
    assert process.returncode in (1, 3), errors


def test_qualify_does_not_judge_a_host_that_stalls_in_pairs(lab: Lab, tmp_path: Path) -> None:
    """A host that trains alone, and stalls with any partner, is never fit, and none of its partners is slow because of it."""
    perf: PerfTests = perf_tests_in(tmp_path)
    lines = ["connect_s = 60", "limits = { first_step_s = 10 }"]
    setup = json.dumps([SETUP, "export TOY_DO='stall beside others on m3'"])
    (perf.folder / "perf" / "clusters.toml").write_text(lab.toml(TRAINING, TOY, *lines, f"setup = {setup}"))
    options = ["--cluster=lab", "--clusters-file=perf/clusters.toml", "--max-rounds=1", "--json"]
    ended = perf.run_python("-m", "pytest_dtfperf.cli", "qualify", "trivial", *options)
    found = Qualification.from_json(read("qualify", ended.out))
    assert re.search(r"(m3 and m\d|m\d and m3) cannot train: ", ended.err), ended.err
    assert found.hosts["m3"].verdict is HostVerdict.NOT_JUDGED
    pairs = [found.hosts[name].capacities["training in pairs"] for name in ("m1", "m2", "m4")]
    assert all(each.readings and each.verdict is not HostVerdict.SLOW for each in pairs), pairs
    wait_until("no session is left on any host", lambda: not any(each.sessions() for each in lab.machines))


def test_job_that_excludes_the_slow_nodes_avoids_them(new_site: NewSite, tmp_path: Path) -> None:
    """On Slurm, --exclude-list prints the node that trains slowly, and `srun` with this list runs on the others."""
    site = new_site(nodes=3, networked=True)
    slow = SlurmClient(dict(os.environ) | site.environment).find_addresses(["n2"])["n2"]
    mini = Mini(perf_tests_in(tmp_path), site)
    options = ["--cluster=mini", "--clusters-file=perf/clusters.toml", "--hosts=3", "--exclude-list", "--history=never"]
    ended = mini.perf.run_python(
        "-m", "pytest_dtfperf.cli", "qualify", "trivial", *options, TOY_SLOW_HOSTS=json.dumps({slow: 0.02})
    )
    assert (ended.code, ended.out) == (1, "n2\n"), ended.err
    ran = site.run("srun", "--nodes=2", f"--exclude={ended.out.strip()}", "printenv", "SLURMD_NODENAME")
    assert sorted(ran.split()) == ["n1", "n3"]


@pytest.mark.campaign(part=2)  # one node and two have the same error of Slurm, which names them
@pytest.mark.parametrize("dead", [["n3"], ["n2", "n3"]], ids=" and ".join)
def test_qualify_names_nodes_of_its_job_that_do_not_start(new_site: NewSite, tmp_path: Path, dead: list[str]) -> None:
    """In a job of Slurm, nodes with daemons that start nothing are not judged, with the reason, and others are measured."""
    nodes = ["n1", "n2", "n3", "n4"]
    site = new_site(nodes=4, slurmd_timeout_s=300)  # until then, a node without its daemon is not down: the job runs
    options = ["--exclusive", "--output=/dev/null", "--chdir=/", "--wrap=sleep 600"]
    job = site.run("sbatch", "--parsable", "--nodes=4", *options)
    wait_until("the job runs", lambda: "R" in site.run("squeue", "--noheader", "--format=%t"))
    for name in dead:
        site.kill_slurmd(name)
    mini = Mini(perf_tests_in(tmp_path), site)
    options = ["--cluster=mini", "--clusters-file=perf/clusters.toml", "--max-rounds=1", "--no-training", "--json"]
    variables = {"SLURM_JOB_ID": job.strip(), "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4"}
    ended = mini.perf.run_python("-m", "pytest_dtfperf.cli", "qualify", "trivial", *options, **variables)
    found = Qualification.from_json(read("qualify", ended.out))
    for name in dead:
        assert found.hosts[name].verdict is HostVerdict.NOT_JUDGED
        assert re.search(rf"Task launch for StepId\S+ failed on node {name}", found.hosts[name].reason)
    verb = "is" if len(dead) == 1 else "are"
    assert f"{', '.join(dead)} {verb} left out from now on: {found.hosts[dead[0]].reason}" in ended.err
    living = [found.hosts[name] for name in nodes if name not in dead]
    assert all(max(each.readings for each in host.capacities.values()) >= 3 for host in living)
    assert ended.code in (1, 3), ended.err  # beside other work, an equal node may be slow


@pytest.mark.parametrize("command", ["qualify --host", "isolate mnist", "run mnist"])
def test_damaged_installation_is_no_slow_host(command: str) -> None:
    """If a module cannot be imported before the command runs, a command that judges hosts ends with 3, and others with 1."""
    program = (
        "import sys; sys.modules['pytest_dtfperf.cli.launch'] = None; from pytest_dtfperf.cli import main; sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *command.split()], capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    assert ended.returncode == (1 if command.startswith("run") else 3), ended.stderr
    assert "pytest_dtfperf.cli.launch" in ended.stderr
