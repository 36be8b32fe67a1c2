"""A test of the tests: each deliberate defect of the backend is noticed by the scenario that is meant for it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from pytest_dtfperf.errors import DtfPerfError
from tests.clusters.ec2 import mutants, test_scenarios
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.clusters.ec2.mutants import MUTANTS, SetAttribute
from tests.clusters.ec2.sessions import Sessions

NOTICED = (AssertionError, DtfPerfError, pytest.fail.Exception)
Table = Mapping[Callable[[SetAttribute], None], Callable[..., None]]

ON_THE_WIRE: Table = {
    mutants.default_retries_for_launch: test_scenarios.test_no_room_in_the_first_zone,
    mutants.min_count_one: test_scenarios.test_no_room_in_the_first_zone,
    mutants.random_client_token: test_scenarios.test_lost_answer,
    mutants.token_without_attempt: test_scenarios.test_accepted_then_terminated,
    mutants.ignore_state_reason: test_scenarios.test_accepted_then_terminated,
    mutants.notfound_is_fatal: test_scenarios.test_new_instances_are_not_seen_at_once,
    mutants.tags_after_launch: test_scenarios.test_no_room_anywhere,
    mutants.delete_group_without_waiting: test_scenarios.test_interfaces_linger,
}
AFTER_A_CRASH: Table = {
    mutants.no_settle: test_scenarios.test_empty_list_after_an_outage_is_not_final,
    mutants.no_ledgers_in_reap: test_scenarios.test_empty_list_after_an_outage_is_not_final,
}
ON_MACHINES: Table = {
    mutants.accept_any_host_key: test_scenarios.test_wrong_host_key,
    mutants.private_address_for_ssh: test_scenarios.test_two_instances_work_together,
    mutants.ingress_from_anywhere: test_scenarios.test_strangers_are_kept_out,
}
IN_THE_SESSION: Table = {mutants.shutdown_behaviour_default: test_scenarios.test_instances_end_themselves}


def make_params(table: Table) -> list[Any]:
    return [pytest.param(mutant, scenario, id=mutant.__name__) for mutant, scenario in table.items()]


@pytest.fixture
def set_attribute(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetAttribute]:
    """Puts a defect in, and takes it out before anything else is taken down."""
    with monkeypatch.context() as patch:
        yield patch.setattr


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("mutant, scenario", make_params(ON_THE_WIRE))
def test_defects_of_calls_are_noticed(
    cloud: Cloud, set_attribute: SetAttribute, mutant: Callable[[SetAttribute], None], scenario: Callable[..., None]
) -> None:
    """Defects of launching and of the end are noticed without a login."""
    mutant(set_attribute)
    with pytest.raises(NOTICED):
        scenario(cloud)


@pytest.mark.parametrize("mutant, scenario", make_params(AFTER_A_CRASH))
def test_defects_of_reaping_are_noticed(
    cloud: Cloud,
    sessions: Sessions,
    set_attribute: SetAttribute,
    mutant: Callable[[SetAttribute], None],
    scenario: Callable[..., None],
) -> None:
    """Defects of reaping are noticed by what it leaves."""
    mutant(set_attribute)
    with pytest.raises(NOTICED):
        scenario(cloud, sessions)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("mutant, scenario", make_params(ON_MACHINES))
def test_defects_of_logins_are_noticed(
    datacenter: DataCenter,
    set_attribute: SetAttribute,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[SetAttribute], None],
    scenario: Callable[..., None],
) -> None:
    """Defects of trust and of addresses are noticed by logins to machines."""
    mutant(set_attribute)
    arguments = [monkeypatch] if scenario is test_scenarios.test_wrong_host_key else []
    with pytest.raises(NOTICED):
        scenario(datacenter, *arguments)


@pytest.mark.parametrize("mutant, scenario", make_params(IN_THE_SESSION))
def test_defects_of_sessions_are_noticed(
    datacenter: DataCenter, sessions: Sessions, mutant: Callable[[SetAttribute], None], scenario: Callable[..., None]
) -> None:
    """Defects of a session's requests are noticed after its death."""
    with sessions.with_mutant(mutant.__name__), pytest.raises(NOTICED):
        scenario(datacenter, sessions)


def test_each_defect_has_its_scenario() -> None:
    """No defect is left untried."""
    tried = {mutant.__name__ for table in (ON_THE_WIRE, AFTER_A_CRASH, ON_MACHINES, IN_THE_SESSION) for mutant in table}
    assert tried == MUTANTS.keys()
