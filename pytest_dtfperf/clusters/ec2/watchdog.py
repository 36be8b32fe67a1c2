"""The process that ends a run when its session was killed: `python -m pytest_dtfperf.clusters.ec2.watchdog`.

It waits at the end of a pipe (`clusters.children`), and imports not even boto3 until that breaks. Then it goes on until
Amazon shows that nothing of the run is left. A kept run that was ready is left for the next session.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_dtfperf.node.module_command import make_module_command

PAUSES_S = (0, 2, 5, 20, 60, 240, 600)  # the session may have ended because of the network


def make_watchdog_command(ledger: Path, settle_s: float) -> list[str]:
    return make_module_command(sys.executable, __name__, str(ledger), "--settle-s", str(settle_s))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--settle-s", type=float, required=True)
    args = parser.parse_args(arguments)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.readline() == b"over\n":
        return 0
    os.chdir("/")  # release the session's folder
    return 0 if any(_has_ended(args.ledger, args.settle_s, pause) for pause in PAUSES_S) else 1


def _has_ended(path: Path, settle_s: float, pause_s: float) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.ledger import Ledger
    from pytest_dtfperf.clusters.ec2.teardown import tear_down
    from pytest_dtfperf.errors import DtfPerfError

    time.sleep(pause_s)
    ledger = Ledger(path)
    record = ledger.read_record()
    if record is None or record.is_closed or (record.plan.keep and record.is_ready):
        return True
    try:
        tear_down(Account.open_region(record.plan.region), ledger.run, ledger, settle_s=settle_s)
    except (DtfPerfError, BotoCoreError, ClientError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
