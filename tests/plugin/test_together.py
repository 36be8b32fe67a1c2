"""Tests of the plugin with xdist, strict settings, rerunfailures, timeout, benchmark, and signals."""

import json
import os
import signal
import subprocess
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dtfperf.clusters import local
from pytest_dtfperf.clusters.locks import LockHolder, lock_hosts
from pytest_dtfperf.plugin import adapter
from pytest_dtfperf.testing.backends import wait_until
from tests.plugin.conftest import ENDS_S, PerfTests
from tests.plugin.test_verdicts import records

MANY = """
import pytest

@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_throughput(train, baseline, batch_size):
    baseline.check(train(model="trivial", gpus=1, batch_size=batch_size))
"""


def sessions(perf: PerfTests) -> list[Path]:
    return sorted((perf.folder / "perf_results").iterdir())


def of_session(folder: Path) -> list[int]:
    """Processes of agents, zygotes and tasks that pytest started in this folder and that still live."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if b"DTFPERF_SESSION=" in environment and str(folder).encode() in environment:
            found.append(int(process.name))
    return found


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while left := of_session(folder):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def test_xdist_workers_share_one_session(perf: PerfTests) -> None:
    """With -n 2 the workers write into one session folder, and baselines are merged once."""
    perf.write(MANY)
    ended = perf.run("-n2", "--update-baselines")
    assert ended.code == 0, ended.out
    (session,) = sessions(perf)
    assert len(records(perf)) == 3
    (file,) = (perf.folder / "baselines").glob("*.json")
    assert len(json.loads(file.read_text())["entries"]) == 3
    assert json.loads((session / "session.json").read_text())["verdicts"] == {"NO_BASELINE": 3}
    assert ended.out.count("Baselines written") == 1


def test_xdist_without_a_cluster_file_shows_the_table(perf: PerfTests) -> None:
    """The controller shows the table of its workers' measurements, though it has found no cluster file itself."""
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.rename(perf.folder / "clusters.toml")
    perf.write("def test_x(train, baseline): baseline.check(train(model='trivial'))\n")
    perf.run("-n1").line("trivial b10 gpus=1", "NO_BASELINE")


@pytest.mark.parametrize(
    "plugins", [["-W", "error", "--strict-markers", "--strict-config"], ["-n1", "-W", "error"], ["--timeout=100"]]
)
def test_strict_settings_pass(perf: PerfTests, plugins: list[str]) -> None:
    """A perf test passes with warnings as errors, strict markers or a timeout."""
    perf.write("import pytest\n@pytest.mark.dtfperf(margin=0.1)\ndef test_x(train): train(model='trivial')\n")
    ended = perf.run(*plugins)
    assert ended.code == 0, ended.out + ended.err


def test_rerun_measures_again(accepted_tests: PerfTests) -> None:
    """A failing test that pytest-rerunfailures repeats is measured again, and both attempts are recorded."""
    ended = accepted_tests.run("--gpus=1", "--reruns=1", TOY_STEP_S="0.02")
    assert ended.code == 1
    ended.line("1 failed", "1 rerun")
    assert [record.get("attempt", 1) for record in records(accepted_tests)] == [1, 2]
    ended.line("trivial b10", "REGRESSED, attempt 2")


def test_time_limit_excludes_the_wait_for_a_lock(perf: PerfTests) -> None:
    """pytest-timeout does not count the time that a test waits while another session measures on this machine."""
    perf.write("def test_x(train): train(model='trivial')\n")
    tickets = perf.folder / "runtime" / "dtfperf"
    tickets.mkdir(mode=0o700)
    output = perf.folder / "output"
    with output.open("w") as out:
        with lock_hosts(local.get_machine(), 1, LockHolder.make_own("other", "test_of_another_session"), print, folder=tickets):
            process = perf.start("--timeout=5", out=out.fileno())
            wait_until("it waits", lambda: "waiting for local: held by process" in output.read_text(), ENDS_S)
            time.sleep(6)
        assert process.wait(ENDS_S) == 0, output.read_text()
    assert "1 passed" in output.read_text()


def test_time_limit_includes_training(perf: PerfTests) -> None:
    """A test that trains longer than its limit ends with pytest-timeout's message, which has the whole limit."""
    perf.write("def test_x(train): train(model='trivial')\n")
    ended = perf.run("--timeout=3", TOY_WALL_S="60")
    assert ended.code == 1, ended.out
    ended.line("Timeout (>3.0s) from pytest-timeout")


Settings = namedtuple("Settings", ["timeout", "method"])


def test_time_limit_is_reduced_by_all_but_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an injected clock, two waits take nothing off a limit of 60 s, and all other time does."""
    clock = iter([100.0, 110.0, 150.0, 155.0, 200.0])
    monkeypatch.setattr("pytest_dtfperf.plugin.adapter.monotonic", lambda: next(clock))
    limit = adapter.TimeLimit()
    left_s: list[float] = []

    class Hook:
        def pytest_timeout_set_timer(self, item: Any, settings: Settings) -> None:
            left_s.append(float(settings.timeout))
            assert str(settings.timeout) == "60"
            limit.pytest_timeout_set_timer(item, settings)

        def pytest_timeout_cancel_timer(self, item: Any) -> None:
            limit.pytest_timeout_cancel_timer(item)

    item: Any = SimpleNamespace(config=SimpleNamespace(hook=Hook()))
    limit.pytest_timeout_set_timer(item, Settings(60, "signal"))
    for _ in range(2):
        with adapter.pause_time_limit():
            assert not adapter._RUNNING
    limit.pytest_timeout_cancel_timer(item)
    with adapter.pause_time_limit():
        pass
    assert left_s == [50.0, 45.0]


def test_rerun_drops_the_verdict_of_the_first_attempt(perf: PerfTests) -> None:
    """A test that passes after its cluster had failed is not shown or counted as INFRASTRUCTURE."""
    perf.write(
        """
tries = []

def test_x(train, monkeypatch):
    tries.append(1)
    if len(tries) == 1:
        monkeypatch.setenv("TOY_DO", "lose agent")
    train(model="trivial", gpus=1)
"""
    )
    ended = perf.run("-v", "--reruns=1")
    assert ended.code == 0
    ended.line("1 passed", "1 rerun")
    assert "PASSED (INFRASTRUCTURE)" not in ended.out
    (session,) = sessions(perf)
    assert json.loads((session / "session.json").read_text())["verdicts"] == {}


def test_xfail_is_counted_by_pytest(accepted_tests: PerfTests) -> None:
    """A perf test marked xfail is xfailed if it regresses, and xpassed if it does not."""
    accepted_tests.write(
        """
import pytest

pytestmark = pytest.mark.xfail

def test_slow(train, baseline, monkeypatch):
    monkeypatch.setenv("TOY_STEP_S", "0.02")
    baseline.check(train(model="trivial", gpus=1))

def test_new(train, baseline):
    baseline.check(train(model="trivial", gpus=1, batch_size=7))
"""
    )
    ended = accepted_tests.run("--junitxml=junit.xml")
    assert ended.code == 0
    ended.line("1 xfailed, 1 xpassed")
    assert "dtfperf_skipped" not in (accepted_tests.folder / "junit.xml").read_text()


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["alone", "xdist"])
def test_subtests_are_counted_by_pytest(perf: PerfTests, workers: list[str]) -> None:
    """A test with a failed subtest fails with any verdict, and a verdict within a subtest is counted once."""
    pytest.importorskip("_pytest.subtests", reason="pytest has subtests from 9.0 on")
    perf.write(
        """
def test_good(train, baseline, subtests):
    measurement = train(model="trivial", gpus=1)
    with subtests.test("rate"):
        baseline.check(measurement)
    with subtests.test("runs"):
        assert measurement.images_per_sec > 0

def test_bad(train, baseline, subtests):
    measurement = train(model="trivial", gpus=1, batch_size=7)
    baseline.check(measurement)
    with subtests.test("runs"):
        assert measurement.images_per_sec < 0
"""
    )
    ended = perf.run("-v", *workers)
    assert ended.code == 1
    ended.line("2 failed, 2 subtests passed, 1 undecided")
    ended.line("SUBFAILED[runs]")
    (session,) = sessions(perf)
    assert json.loads((session / "session.json").read_text())["verdicts"] == {"NO_BASELINE": 2}


def test_xdist_without_a_terminal_measures(perf: PerfTests) -> None:
    """With `-p no:terminal` and xdist a test passes and is recorded."""
    perf.write("def test_x(train): train(model='trivial')\n")
    ended = perf.run("-n1", "-p", "no:terminal")
    assert ended.code == 0, ended.out + ended.err
    assert len(records(perf)) == 1


def test_pytest_benchmark_has_its_own_table(perf: PerfTests) -> None:
    """A benchmark of pytest-benchmark and a perf test run in one session, each with its own table."""
    perf.write("def test_b(benchmark): benchmark(sum, [1])\ndef test_x(train): train(model='trivial')\n")
    ended = perf.run("-p", "pytest_benchmark.plugin", "--benchmark-max-time=0.01")  # else a second
    assert ended.code == 0
    ended.line("distributed training performance")
    ended.line("Legend:")


def test_test_above_the_requested_devices_is_deselected(perf: PerfTests) -> None:
    """A test with a min_gpus above each requested count is deselected with the reason, and the others run."""
    perf.write(
        "import pytest\n@pytest.mark.dtfperf(min_gpus=2)\ndef test_scaling(train, gpus): train(model='trivial', gpus=gpus)\n"
        "def test_one(train, gpus): train(model='trivial', gpus=gpus)\n"
    )
    ended = perf.run("--gpus=1")
    assert ended.code == 0
    ended.line("1 passed, 1 deselected")
    ended.line("1 test deselected: for min_gpus=2 devices and more, gpus=1 is too few")


def test_test_above_the_devices_of_the_cluster_is_deselected(perf: PerfTests) -> None:
    """Device counts that the cluster does not have are deselected, and the summary has the reason."""
    ended = perf.run("--gpus=1,8")
    assert ended.code == 0
    ended.line("1 deselected, 1 undecided")
    ended.line("1 test deselected: local has 2 devices, gpus=8 needs more")


def test_cluster_that_cannot_start_is_an_error(perf: PerfTests) -> None:
    """A test on a cluster with an agent that cannot start has an error with the name of the missing module."""
    clusters = (perf.folder / "perf" / "clusters.toml").read_text()
    (perf.folder / "perf" / "clusters.toml").write_text(clusters.replace("toy_training:run", "no_such_module:run"))
    ended = perf.run("--gpus=1")
    assert ended.code == 1
    ended.line("no_such_module")
    ended.line("1 error")


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_run_all_teardown(perf: PerfTests, number: signal.Signals, workers: list[str]) -> None:
    """SIGINT, SIGTERM and SIGHUP end training, run teardown, leave no process, and set the exit code."""
    waits = perf.folder / "waits"
    perf.write(
        """
import pytest

@pytest.fixture
def teardown_file():
    yield
    open("torn-down", "w").close()

def test_x(teardown_file, train):
    train(model="trivial")
"""
    )
    with perf.start(*workers, variables={"TOY_DO": "wait", "TOY_WAITS": str(waits)}, leads=True) as process:
        deadline = time.monotonic() + ENDS_S
        while not waits.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, number)
        code = process.wait(ENDS_S)
    assert code == (2 if number == signal.SIGINT else 128 + number)
    wait_until_gone(perf.folder)
    assert (perf.folder / "torn-down").exists()


def test_session_ended_by_sigterm_shows_its_table(perf: PerfTests) -> None:
    """A session that SIGTERM ends shows the table of its measurements once."""
    perf.write(
        """
import os, signal

def test_a(train, baseline):
    baseline.check(train(model="trivial", gpus=1))

def test_b():
    os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    ended = perf.run()
    assert ended.code == 143, ended.out
    assert ended.out.count("= distributed training performance =") == 1
    ended.line("trivial b10", "NO_BASELINE")


def test_session_under_nohup_ignores_sighup(perf: PerfTests) -> None:
    """SIGHUP does not end a session under nohup."""
    perf.write("import os, signal\ndef test_x(cluster): os.kill(os.getpid(), signal.SIGHUP)\n")
    command = ["nohup", *perf.command("perf")]
    ended = subprocess.run(
        command, cwd=perf.folder, env=perf.environ(), capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["alone", "xdist"])
def test_killed_pytest_leaves_no_process(perf: PerfTests, workers: list[str]) -> None:
    """After kill -9 of pytest no agent, zygote or task of it is left."""
    waits = perf.folder / "waits"
    perf.write("def test_x(train):\n    train(model='trivial')\n")
    with perf.start(*workers, variables={"TOY_DO": "wait", "TOY_WAITS": str(waits)}) as process:
        deadline = time.monotonic() + ENDS_S
        while not waits.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert of_session(perf.folder)
        process.kill()
    wait_until_gone(perf.folder)
