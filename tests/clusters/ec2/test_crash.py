"""A session that dies at any moment leaves nothing that the next one does not end: tried after its calls to Amazon."""

from functools import partial
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ec2 import reap
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.ledger import get_state_folder
from pytest_dtfperf.testing.backends import wait_until
from tests import campaign
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.faults import Hang
from tests.clusters.ec2.driver import Order
from tests.clusters.ec2.runs import KIND, config
from tests.clusters.ec2.sessions import Session, Sessions, watchdogs

SETTLE_S = 0.1  # the pretend Amazon shows at once what it has accepted


def calls_of_a_run(cloud: Cloud, sessions: Sessions, order: Order) -> list[str]:
    """Return the calls of a session that launches instances and releases them without failures."""
    for _ in range(2):  # the first asks for more, which the second remembers
        before = len(cloud.calls)
        with sessions.begin(order) as session:
            sessions.wait_until_ended(session)
        assert session.code == 0, session.words
        wait_until("the watchdog has left", lambda: watchdogs() == [])
        assert cloud.list_resources() == NOTHING
    return cloud.names()[before:]


@pytest.mark.campaign
def test_killed_after_each_call(cloud: Cloud, sessions: Sessions) -> None:
    """Reaping leaves nothing of a session that is killed, with its watchdog, after a call and before its answer.

    In a campaign each call of a session is tested, otherwise one of each kind that makes or ends something, and one that only
    reads.
    """
    cloud.world.capacity["us-east-1a", KIND] = 0  # so that two zones are tried
    order = Order(config(cloud, spot=True), SETTLE_S)
    names = calls_of_a_run(cloud, sessions, order)
    assert {"RunInstances", "TerminateInstances", "CancelSpotInstanceRequests", "DeleteSecurityGroup"} <= set(names)
    account = Account.open_region(cloud.region)
    everything = range(len(names))
    kinds = [{"call": "asks" if name.startswith(("Describe", "Get")) else name} for name in names]
    for number in everything if campaign.WHOLE else sorted(campaign.draw_cases(kinds, campaign.SEED)):
        name = names[number]
        hang = cloud.faults.hang_after(".*", skip=number)
        with sessions.begin(order) as session:
            come_or_over = partial(_come_or_over, hang, session)
            sessions.wait(come_or_over, f"call {number}, {name}")  # one run may have one query less than another
            sessions.kill(session)
        cloud.faults.clear()
        reap.reap_runs(account, settle_s=SETTLE_S)
        assert cloud.list_resources() == NOTHING, f"killed after call {number} of {names}"
    assert list_keys() == []


def _come_or_over(hang: Hang, session: Session) -> bool:
    return hang.executed.is_set() or session.code is not None


def list_keys() -> list[Path]:
    """Return the private keys of runs, which are deleted with their runs."""
    return [path for path in get_state_folder().rglob("*") if path.is_file() and path.suffix != ".jsonl"]
