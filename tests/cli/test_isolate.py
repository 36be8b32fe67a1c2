"""`dtfperf isolate`: slow hosts and links found on machines over SSH. The measured times are invented and exact."""

import functools
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read, read_refusal
from tests.clusters.slurm.conftest import new_site, shared_site, site
from tests.clusters.slurm.site import Site
from tests.clusters.ssh.lab import Lab, why_not
from tests.machines.machine import Machine
from tests.plugin import zygote
from tests.plugin.conftest import ENDS_S, Ended, PerfTests, perf_tests_in, wait_for_progress
from tests.plugin.test_slurm import Mini
from tests.plugin.test_ssh import SETUP, TOY, TRAINING

__all__ = ["new_site", "shared_site", "site"]

SLOW_S = 0.02


@pytest.fixture(scope="module")
def machines() -> Iterator[Lab]:
    """Four machines."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(4) as lab:
        yield lab


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


@pytest.fixture
def lab(machines: Lab) -> Iterator[Lab]:
    """The machines; no session is left on them after the test."""
    yield machines
    for each in machines.machines:
        wait_until(f"no session is left on {each.name}", functools.partial(_is_quiet, each))


def _is_quiet(machine: Machine) -> bool:
    return not machine.sessions()


def run_isolate(perf: PerfTests, lab: Lab, slow: Mapping[str, float], *arguments: str, lines: tuple[str, ...] = ()) -> Ended:
    """Search with one worker on each machine; `slow` is seconds of a step by machines, as in "m1+m2"."""
    command = _prepare(perf, lab, slow, *lines)
    return perf.run_python("-m", "pytest_dtfperf.cli", *command, *arguments)


def _prepare(perf: PerfTests, lab: Lab, slow: Mapping[str, float], *lines: str, patience_s: int = 60) -> list[str]:
    """Write the cluster file, and return the command."""
    of_hosts = {"+".join(lab[name].address for name in key.split("+")): seconds for key, seconds in slow.items()}
    setup = [SETUP, f"export TOY_SLOW_HOSTS='{json.dumps(of_hosts)}'", *lines]
    table = lab.toml(TRAINING, TOY, f"connect_s = {patience_s}", f"setup = {json.dumps(setup)}")
    (perf.folder / "perf" / "clusters.toml").write_text(table)
    return ["isolate", "trivial", f"gpus={len(lab.machines)}", "--cluster=lab", "--clusters-file=perf/clusters.toml"]


def test_isolate_names_the_slow_host(perf: PerfTests, lab: Lab) -> None:
    """A host that doubles a step is named and confirmed, the others are fit, and the exit code is 1."""
    ended = run_isolate(perf, lab, {"m3": SLOW_S})
    assert ended.code == 1, ended.err
    ended.line("4 hosts: one training on all of them")
    ended.line("the search takes")
    ended.line("host m3", "-50")
    ended.line("Found:", "3 of 4 hosts fit")
    ended.line("--exclude=m3")
    ended.line("dtfperf doctor --cluster=lab --hosts=m3,m1")
    (folder,) = (perf.folder / "perf_results").iterdir()
    assert json.loads((folder / "isolation.json").read_text())["conclusion"]["findings"][0]["hosts"] == ["m3"]


def test_isolate_of_equal_hosts_ends_with_0(perf: PerfTests, lab: Lab) -> None:
    """If all hosts are equal, no host is named, and all pairs of hosts have trained together."""
    ended = run_isolate(perf, lab, {}, "--json")
    assert ended.code == 0, ended.err
    found = read("isolate", ended.out)
    assert found["conclusion"]["outcome"] == "equal"
    assert found["conclusion"]["fit"] == ["m1", "m2", "m3", "m4"]
    assert found["conclusion"]["pairs"] == 1


def test_isolate_names_two_hosts_that_are_slow_together(perf: PerfTests, lab: Lab) -> None:
    """A slow link between two hosts is one finding with both hosts."""
    ended = run_isolate(perf, lab, {"m1+m4": SLOW_S}, "--json")
    assert ended.code == 1, ended.err
    found = read("isolate", ended.out)
    (finding,) = found["conclusion"]["findings"]
    assert (finding["kind"], finding["hosts"]) == ("link", ["m1", "m4"])


@pytest.mark.parametrize("what", ["die", "lose agent"])
def test_isolate_names_a_host_where_trainings_fail(perf: PerfTests, lab: Lab, what: str) -> None:
    """A host on which each training or agent dies is named with a slow-down of 1, and the messages of failures are kept."""
    ended = run_isolate(perf, lab, {}, "--json", lines=(f"export TOY_DO='{what} on m2'",))
    assert ended.code == 1, ended.err
    found = read("isolate", ended.out)
    (finding,) = found["conclusion"]["findings"]
    assert (finding["hosts"], finding["slowdown"]) == (["m2"], 1.0)
    assert found["images_per_sec"] is None
    assert all("m2" in each for each in found["failures"])


@pytest.mark.parametrize("phase", ["connection", "training on all hosts", "groups"])
def test_isolate_ends_all_trainings_when_it_is_interrupted(perf: PerfTests, lab: Lab, tmp_path: Path, phase: str) -> None:
    """Ctrl-C ends each phase, prints the state of a search, and leaves no session on any host."""
    held = tmp_path / "held"
    held.mkdir()
    waits = [f"touch {held}/1 {held}/2; sleep 300"] if phase == "connection" else []
    command = _prepare(perf, lab, {"m3": SLOW_S}, f"export TOY_HOLD={held}", *waits)
    if phase == "training on all hosts":
        (held / "hold").touch()
    with perf.start_command(*command, "--json") as process:
        if phase == "groups":
            wait_for_progress(process, "round 1:")
            (held / "hold").touch()  # no round ends from now on, so the search cannot end before the signal
        wait_until("two workers train, or two hosts are being connected", lambda: len(list(held.glob("[0-9]*"))) > 1)
        process.send_signal(signal.SIGINT)
        if phase == "groups":
            process.send_signal(signal.SIGINT)  # as `timeout` and some batch systems do: to a process and to its group
        out, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == 130, errors
    if phase == "groups":
        assert read("isolate", out)["conclusion"]["outcome"] == "stopped"
    else:
        assert not out


@pytest.mark.parametrize("command", ["isolate", "qualify"])
def test_second_interruption_ends_trainings_with_an_agent_that_does_not_answer(
    perf: PerfTests, lab: Lab, tmp_path: Path, command: str
) -> None:
    """A second Ctrl-C, while an agent does not confirm the end, ends all trainings, prints the result and leaves no session."""
    held = tmp_path / "held"
    held.mkdir()
    isolating = _prepare(perf, lab, {}, f"export TOY_HOLD={held}")
    options = isolating[1:] if command == "isolate" else [each for each in isolating[1:] if not each.startswith("gpus=")]
    with perf.start_command(command, *options, "--json") as process:
        if command == "isolate":
            wait_for_progress(process, "round 1:")
        (held / "hold").touch()
        wait_until("two workers train", lambda: len(list(held.glob("[0-9]*"))) > 1)
        for pid in lab["m2"].processes("DTFPERF_SESSION"):
            os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        wait_for_progress(process, "interrupted: the trainings are being ended")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == 130, errors
    found = read(command, out)
    if command == "isolate":
        assert found["conclusion"]["outcome"] == "stopped"
    else:
        assert {host["verdict"] for host in found["hosts"].values()} == {"NOT_JUDGED"}


def test_isolate_names_a_host_that_is_switched_off(perf: PerfTests) -> None:
    """A host that is switched off during the search is left out with the reason, and the others are compared."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(3) as lab:
        command = _prepare(perf, lab, {}, "export TOY_WALL_S=4", patience_s=10)
        with perf.start_command(*command, "--json") as process:
            wait_for_progress(process, "round 1:")
            lab["m3"].power_off()
            out, errors = process.communicate(timeout=2 * ENDS_S)
            assert all(_is_quiet(lab[name]) for name in ("m1", "m2"))
    assert process.returncode == 1, errors
    found = read("isolate", out)
    assert list(found["lost"]) == found["exclude"] == ["m3"]
    assert "m3" in found["lost"]["m3"]
    assert found["conclusion"]["fit"] == ["m1", "m2"]


def test_isolate_leaves_out_a_host_that_cannot_be_reached(perf: PerfTests) -> None:
    """A host that is off before the start is left out with the reason, and the slow one among the others is found."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(4) as lab:
        lab["m2"].power_off()
        command = _prepare(perf, lab, {"m3": SLOW_S}, patience_s=10)
        ended = perf.run_python("-m", "pytest_dtfperf.cli", *command, "--json")
    assert ended.code == 1, ended.err
    found = read("isolate", ended.out)
    assert list(found["lost"]) == ["m2"]
    assert [each["hosts"] for each in found["conclusion"]["findings"]] == [["m3"]]
    assert (found["exclude"], found["conclusion"]["fit"]) == (["m3", "m2"], ["m1", "m4"])


def test_isolate_searches_the_nodes_of_a_slurm_job(perf: PerfTests, site: Site) -> None:
    """On Slurm, groups train side by side as steps of one job, and equal nodes are all fit."""
    mini = Mini(perf, site)
    command = ["isolate", "trivial", "gpus=4", "--cluster=mini", "--clusters-file=perf/clusters.toml", "--json"]
    ended = perf.run_python("-m", "pytest_dtfperf.cli", *command, "--layouts=1")
    assert ended.code == 0, ended.err
    assert read("isolate", ended.out)["conclusion"]["fit"] == ["n1", "n2", "n3", "n4"]
    assert len(mini.jobs) == 1


def test_isolate_stops_at_the_time_limit(perf: PerfTests, lab: Lab) -> None:
    """A search without time for a round reports that it is not judged, with exit code 3."""
    ended = run_isolate(perf, lab, {"m3": SLOW_S}, "--time-limit=1s", "--json")
    assert ended.code == 3, ended.err
    found = read("isolate", ended.out)
    assert (found["conclusion"]["outcome"], found["conclusion"]["reason"]) == ("stopped", "the time limit was reached")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--smallest=2"], "--smallest is a fraction below 0.5"),
        (["--layouts=0"], "--layouts must be 1 or more"),
        (["mnist"], "with one training"),
        (["num_ps=best"], "with the number of parameter servers itself"),
        (["variable_update=replicated"], "trains in one process"),
    ],
)
def test_isolate_refuses_wrong_arguments(
    perf: PerfTests,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """Wrong arguments are exit code 2 with a message, before anything is started."""
    monkeypatch.chdir(perf.folder)
    assert message in read_refusal(capfd, *_prepare(perf, lab, {}), *arguments)
    assert not (perf.folder / "perf_results").exists()


def test_isolate_of_simulated_hosts_uses_calibrated_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The calibrated noise of a baseline is used, and no doctor is suggested for simulated hosts."""
    monkeypatch.chdir(tmp_path)
    table = '[sim]\nbackend = "simulated"\nhosts = 4\ngpus_per_host = 1\nrates = { mnist = 3000.0 }\nlink = "10gbit"\n'
    (tmp_path / "clusters.toml").write_text(f"{table}slow_hosts = [{{ host = 3, slowdown = 1.2 }}]\n")
    assert main(["run", "mnist", "gpus=4", "--cluster=sim", "--update-baselines"]) == 0
    (path,) = (tmp_path / "baselines").glob("*.json")
    stored = json.loads(path.read_text())
    for entries in stored["entries"].values():
        entries[0]["noise"] = {
            "run": 0.0123,
            "session": 0.0,
            "degrees_of_freedom": 20,
            "sessions": 5,
            "date": "2026-11-28T00:00:00Z",
        }
    path.write_text(json.dumps(stored))
    capsys.readouterr()
    assert main(["isolate", "mnist", "gpus=4", "--cluster=sim"]) == 1
    printed = capsys.readouterr()
    assert "runs of this training scatter by 1.2 %, as its baseline was calibrated" in printed.err
    assert "--exclude=sim-0003" in printed.out
    assert "doctor" not in printed.out


@pytest.mark.parametrize("dead", [(0,), (3,), (3, 4)], ids=["of parameter servers", "of a worker", "of two workers"])
def test_isolate_leaves_out_hosts_that_die_beside_separate_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dead: tuple[int, ...]
) -> None:
    """If parameter servers have hosts of their own, any host that dies is left out, and the others are compared."""
    monkeypatch.chdir(tmp_path)
    deaths = ", ".join(f"{{ host = {number}, step = 5, run = 1 }}" for number in dead)
    (tmp_path / "clusters.toml").write_text(
        '[sim]\nbackend = "simulated"\nhosts = 6\ngpus_per_host = 1\nps_on_worker_hosts = false\n'
        f'rates = {{ mnist = 3000.0 }}\nlink = "10gbit"\ndeaths = [{deaths}]\n'
    )
    assert main(["isolate", "mnist", "gpus=4", "num_ps=2", "--cluster=sim", "--json"]) == 1
    found = read("isolate", capsys.readouterr().out)
    names = [f"sim-{number:04}" for number in dead]
    assert sorted(found["lost"]) == sorted(found["exclude"]) == names
    assert all("died" in reason or "death" in reason for reason in found["lost"].values())
    assert found["conclusion"]["fit"] == [f"sim-{number:04}" for number in (2, 3, 4, 5) if number not in dead]


def isolate_simulated(folder: Path, *arguments: str) -> int:
    """Return the exit code on four simulated hosts, of which the fourth is slow."""
    table = '[sim]\nbackend = "simulated"\nhosts = 4\ngpus_per_host = 1\nrates = { mnist = 3000.0 }\nlink = "10gbit"\n'
    (folder / "clusters.toml").write_text(f"{table}slow_hosts = [{{ host = 3, slowdown = 1.2 }}]\n")
    return main(["isolate", "mnist", "gpus=4", "--cluster=sim", *arguments])


def test_isolate_keeps_its_exit_code_if_the_disk_of_metrics_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics that cannot be written are reported, no partial file is left, and the result is the same."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    monkeypatch.chdir(tmp_path)
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", metrics], check=True)
    try:
        (metrics / "other").write_bytes(b"x" * 4096)
        assert isolate_simulated(tmp_path, f"--metrics={metrics / 'i.prom'}") == 1
        assert [path.name for path in metrics.iterdir()] == ["other"]
    finally:
        subprocess.run(["umount", metrics], check=True)
    printed = capsys.readouterr()
    assert "--exclude=sim-0003" in printed.out
    assert re.search(r"no metrics in \S+i\.prom: .*No space left", printed.err)


@pytest.mark.parametrize("command", ["isolate", "qualify"])
def test_failure_of_the_program_is_no_slow_host(tmp_path: Path, command: str) -> None:
    """A command that cannot print its result ends with exit code 3, because 1 means that a host is slow."""
    table = '[sim]\nbackend = "simulated"\nhosts = 4\ngpus_per_host = 1\nrates = { mnist = 3000.0 }\nlink = "10gbit"\n'
    (tmp_path / "clusters.toml").write_text(table)
    arguments = ["mnist", "gpus=4"] if command == "isolate" else ["mnist"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            zygote.make_command(command, *arguments, "--cluster=sim"),
            cwd=tmp_path,
            env={**os.environ, **zygote.SEARCH_PATH},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=ENDS_S,
            check=False,
        )
    assert ended.returncode == 3, ended.stderr
    assert "not judged: OSError" in ended.stderr
