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
from tests.clusters.ec2.test_teardown import launched
from tests.full_disk import full_behind


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return runs.account(cloud)


Keep = Callable[[Ledger, bytes], int]


@pytest.fixture
def keep(sessions: Sessions) -> Keep:
    """What a watchdog does once its session has said so much, and closed the line. Its exit code."""
    return lambda ledger, words: sessions.watch(ledger.path, 0.1, words)


def test_a_session_that_has_given_back(cloud: Cloud, account: Account, keep: Keep, tmp_path: Path) -> None:
    """A watchdog that is cancelled leaves everything as it is."""
    ledger, _ = launched(account, runs.young(cloud), tmp_path)
    assert keep(ledger, b"over\n") == 0
    assert len(cloud.left().instances) == 2


@pytest.mark.parametrize("words", [b"", b"ov"])
def test_a_session_that_is_gone(cloud: Cloud, account: Account, keep: Keep, tmp_path: Path, words: bytes) -> None:
    """Any other end of the line means that there is something to end, and it ends all of it."""
    ledger, _ = launched(account, runs.young(cloud), tmp_path)
    assert keep(ledger, words) == 0
    assert cloud.left() == NOTHING
    record = ledger.read_record()
    assert record
    assert record.is_closed


def test_instances_that_are_to_be_kept(cloud: Cloud, account: Account, keep: Keep, tmp_path: Path) -> None:
    """Once they were logged in to they wait for the next session; before that they are of no use to anybody."""
    ledger, found = launched(account, runs.young(cloud, keep=True), tmp_path)
    ledger.note("ready", instances=[each.id for each in found])
    assert keep(ledger, b"") == 0
    assert len(cloud.left().instances) == 2
    ledger.note("ending")
    assert keep(ledger, b"") == 0
    assert cloud.left() == NOTHING


def test_a_run_that_never_began(cloud: Cloud, keep: Keep, tmp_path: Path) -> None:
    """Where no plan is on disk nothing was asked for, and nothing is asked about."""
    assert keep(Ledger.of(runs.PLAN, tmp_path), b"") == 0
    assert cloud.names() == []


def test_amazon_is_busy(cloud: Cloud, account: Account, keep: Keep, tmp_path: Path) -> None:
    """It begins again when it has failed: the network may be what has ended the session."""
    ledger, _ = launched(account, runs.young(cloud), tmp_path)
    cloud.faults.error("GetCallerIdentity", "ServiceUnavailable", times=3)
    assert keep(ledger, b"") == 0
    assert cloud.left() == NOTHING


def test_a_full_disk_is_no_obstacle(cloud: Cloud, account: Account, keep: Keep, tmp_path: Path) -> None:
    """A session that has died of a full disk leaves one to its watchdog, which ends everything all the same."""
    ledger, _ = launched(account, runs.young(cloud), tmp_path)
    with full_behind(ledger.path):
        assert keep(ledger, b"") == 0
    assert cloud.left() == NOTHING


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_do_not_end_it(cloud: Cloud, account: Account, tmp_path: Path, number: signal.Signals) -> None:
    """Whoever ends everything at a terminal does not end what sees to the instances."""
    ledger, _ = launched(account, runs.young(cloud), tmp_path)
    with subprocess.Popen(watchdog.make_watchdog_command(ledger.path, 0.1), stdin=subprocess.PIPE) as process:
        wait_until("it ignores the signal", lambda: _ignored(process.pid) & (1 << (number - 1)))
        process.send_signal(number)
        assert process.stdin
        process.stdin.close()
        assert process.wait(2 * PATIENCE_S) == 0
    assert cloud.left() == NOTHING


def _ignored(pid: int) -> int:
    """The signals that a process ignores, as a mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)


def test_it_is_small_while_it_waits() -> None:
    """Nothing of boto3 is read before there is something to do: many sessions may run on one machine."""
    code = "import sys, pytest_dtfperf.clusters.ec2.watchdog as k; print(sorted(n for n in sys.modules if 'boto' in n))"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout
    assert output == "[]\n"
