"""The process that ends a run when its session is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ec2 import watchdog
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.sessions import Sessions
from tests.clusters.ec2.test_teardown import launch_run
from tests.full_disk import full_behind


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return runs.account(cloud)


RunWatchdog = Callable[[Ledger, bytes], int]


@pytest.fixture
def run_watchdog(sessions: Sessions) -> RunWatchdog:
    """Return a function that runs a watchdog after a session sent `words` and disconnected, and returns its exit code."""
    return lambda ledger, words: sessions.watch(ledger.path, 0.1, words)


def test_cancelled_watchdog_ends_nothing(cloud: Cloud, account: Account, run_watchdog: RunWatchdog, tmp_path: Path) -> None:
    """A watchdog that is cancelled leaves everything as it is."""
    ledger, _ = launch_run(account, runs.make_new_plan(cloud), tmp_path)
    assert run_watchdog(ledger, b"over\n") == 0
    assert len(cloud.list_resources().instances) == 2


@pytest.mark.parametrize("words", [b"", b"ov"])
def test_watchdog_ends_run_of_a_dead_session(
    cloud: Cloud, account: Account, run_watchdog: RunWatchdog, tmp_path: Path, words: bytes
) -> None:
    """Any other end of the connection than the cancellation ends the whole run."""
    ledger, _ = launch_run(account, runs.make_new_plan(cloud), tmp_path)
    assert run_watchdog(ledger, words) == 0
    assert cloud.list_resources() == NOTHING
    record = ledger.read_record()
    assert record
    assert record.is_closed


def test_watchdog_keeps_ready_instances(cloud: Cloud, account: Account, run_watchdog: RunWatchdog, tmp_path: Path) -> None:
    """Instances with `keep` stay after the first login, and are ended before it."""
    ledger, found = launch_run(account, runs.make_new_plan(cloud, keep=True), tmp_path)
    ledger.note("ready", instances=[each.id for each in found])
    assert run_watchdog(ledger, b"") == 0
    assert len(cloud.list_resources().instances) == 2
    ledger.note("ending")
    assert run_watchdog(ledger, b"") == 0
    assert cloud.list_resources() == NOTHING


def test_run_without_a_plan_sends_no_calls(cloud: Cloud, run_watchdog: RunWatchdog, tmp_path: Path) -> None:
    """The watchdog of a run without a plan on disk sends no calls."""
    assert run_watchdog(Ledger.from_plan(runs.PLAN, tmp_path), b"") == 0
    assert cloud.names() == []


def test_watchdog_retries(cloud: Cloud, account: Account, run_watchdog: RunWatchdog, tmp_path: Path) -> None:
    """A watchdog that fails tries again, because the network may have ended the session."""
    ledger, _ = launch_run(account, runs.make_new_plan(cloud), tmp_path)
    cloud.faults.error("GetCallerIdentity", "ServiceUnavailable", times=3)
    assert run_watchdog(ledger, b"") == 0
    assert cloud.list_resources() == NOTHING


def test_watchdog_ends_run_on_a_full_disk(cloud: Cloud, account: Account, run_watchdog: RunWatchdog, tmp_path: Path) -> None:
    """The watchdog of a session that died of a full disk ends everything."""
    ledger, _ = launch_run(account, runs.make_new_plan(cloud), tmp_path)
    with full_behind(ledger.path):
        assert run_watchdog(ledger, b"") == 0
    assert cloud.list_resources() == NOTHING


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_do_not_end_the_watchdog(cloud: Cloud, account: Account, tmp_path: Path, number: signal.Signals) -> None:
    """A watchdog ignores the signals of a terminal."""
    ledger, _ = launch_run(account, runs.make_new_plan(cloud), tmp_path)
    with subprocess.Popen(watchdog.make_watchdog_command(ledger.path, 0.1), stdin=subprocess.PIPE) as process:
        wait_until("it ignores the signal", lambda: _get_ignored_signals(process.pid) & (1 << (number - 1)))
        process.send_signal(number)
        assert process.stdin
        process.stdin.close()
        assert process.wait(2 * PATIENCE_S) == 0
    assert cloud.list_resources() == NOTHING


def _get_ignored_signals(pid: int) -> int:
    """The signals that a process ignores, as a mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)


def test_waiting_watchdog_does_not_import_boto3() -> None:
    """A waiting watchdog has not imported boto3: many sessions may run on one machine."""
    code = "import sys, pytest_dtfperf.clusters.ec2.watchdog as k; print(sorted(n for n in sys.modules if 'boto' in n))"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout
    assert output == "[]\n"
