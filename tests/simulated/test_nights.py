"""Tests of nights on simulated hosts: baselines, verdicts, causes, and a history of their own."""

from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.where import parse_address
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session import Session
from pytest_dtfperf.session.settings import Settings

CLUSTER = """
[sim]
backend = "simulated"
hosts = {hosts}
gpus_per_host = 8
rates = {{ alexnet = 142.0, resnet50 = 219.0 }}
link = "100gbit"
noise = 0.02
seed = {night}
{fault}
"""
SIZES = [pytest.param(4, id="32 devices"), pytest.param(128, id="1,024 devices")]


def measure_night(folder: Path, hosts: int, night: int, fault: str = "") -> list[Record]:
    """Measure two trainings in a session, of which the first accepts its rates, and return their records.

    The models are chosen for their traces: a step of 1,024 workers with 64 parameter servers has 32,512 transfers with AlexNet,
    which has variables on 16 of them, and none in the traces of an all-reduce. InceptionV3 has variables on all 64, and 130,048
    transfers in each of six traced steps.
    """
    (folder / "clusters.toml").write_text(CLUSTER.format(hosts=hosts, night=night, fault=fault))
    settings = Settings(repeats=3, history=folder / "history.sqlite", update_baselines=None if night else "new")
    with Session.open(
        "sim",
        clusters_file=folder / "clusters.toml",
        baselines=folder / "baselines",
        results=folder / "results",
        settings=settings,
        tests=2,
        quiet=True,
    ) as session:
        for model, mode, servers in (("alexnet", "parameter_server", hosts // 2), ("resnet50", "collective_all_reduce", 0)):
            training = session.spec(
                model, gpus=8 * hosts, num_ps=servers, variable_update=mode, batch_size=64, steps=30, warmup_steps=5
            )
            session.check(session.measure(training))
        return session.folder.measurements()


# Nights of eight devices, with the same faults, verdicts, causes and file of the history, are in test_nightly.py.
@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("hosts", SIZES)
def test_nights_have_the_right_verdicts_and_causes(tmp_path: Path, hosts: int) -> None:
    """A slow host and a slow link are REGRESSED with themselves as the only cause, and a usual night is PASSED."""
    measure_night(tmp_path, hosts, 0)
    slow_host = f"slow_hosts = [{{ host = {hosts - 2}, slowdown = 2.5 }}]"
    slow_link = f'slow_links = [{{ host = {hosts - 1}, link = "1gbit" }}]'
    ends = [measure_night(tmp_path, hosts, night, fault) for night, fault in enumerate(("", slow_host, slow_link), 1)]
    verdicts = [[record.verdict for record in records] for records in ends]
    assert verdicts == [[Verdict.PASSED] * 2, [Verdict.REGRESSED] * 2, [Verdict.REGRESSED] * 2]
    for records, kind, host in ((ends[1], "compute", hosts - 2), (ends[2], "link", hosts - 1)):
        for record in records:
            assert record.explanation
            assert [(each.kind, each.location) for each in record.explanation.causes] == [(kind, f"sim-{host:04}")]
    address = parse_address(tmp_path / "history.simulated.sqlite", tmp_path)
    assert address
    assert not (tmp_path / "history.sqlite").exists()
    with Database.open(address).reading() as connection:
        folders = [row["folder"] for row in store.read_sessions(connection)]
    assert len(folders) == 4
