"""Tests of a session's measurements as inputs of predictions, and of the advice for slow ones that links decide."""

from dataclasses import replace

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import Bound, Limit
from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.predict.event_model import NetworkRates, StepModel
from pytest_dtfperf.predict.inputs import find_advice, find_probed_link, select_measured
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.notes import list_hints
from pytest_dtfperf.spec import Spec
from tests.explain.probed import make_link as probed_link
from tests.records import samples

LINK = 1.25e9


def make_record(
    images_per_sec: float, verdict: Verdict | None = Verdict.REGRESSED, link: float | None = LINK, **fields: object
) -> Record:
    """Return a measurement of VGG16 on eight hosts with a server on each, and the limit of their links."""
    values = {"model": "vgg16", "batch_size": 32, "gpus": 8, "num_ps": 8, "variable_update": "parameter_server", **fields}
    spec = Spec(**values)  # type: ignore[arg-type]
    hosts = {f"{job}:{number}": f"n{number}" for job, count in (("ps", spec.num_ps), ("worker", 8)) for number in range(count)}
    found = samples.record(spec, images_per_sec, verdict=verdict)
    runs = [replace(run, task_hosts=hosts) for run in found.measurement.runs]
    limit = None
    if link:
        step_s = StepModel(spec, Layout(hosts)).busiest_link_bytes / link
        limit = Limit(images_per_sec=1e6, bounds=[Bound(resource="link", host="n0", step_s=step_s, needs="")])
    return replace(found, measurement=replace(found.measurement, runs=runs), limit=limit)


def test_advice_is_one_line_on_the_best_change() -> None:
    """If VGG16's largest variable keeps one link busy, the advice has a change, its factor and its interval, and is shown
    once."""
    found = make_record(50.0, variable_placement="greedy")
    line = find_advice(found) or ""
    assert line.startswith("vgg16 b32 gpus=8 num_ps=8 parameter_server: variable_")
    assert "is predicted to be " in line
    assert " times as fast (" in line
    assert list_hints([found, found])[-1] == f"Hint (no verdict): {line}"


def test_low_efficiency_has_advice() -> None:
    """A measurement without a verdict has advice at an efficiency of 50 %, and not at 90 % or without one."""
    found = make_record(50.0, verdict=None, variable_placement="greedy")
    assert find_advice(found) is None
    for value, has_advice in ((0.5, True), (0.9, False)):
        assert bool(find_advice(replace(found, efficiency=value, anchor="a0"))) is has_advice


def make_record_of_links(part: float, efficiency: float) -> Record:
    """Return a measurement with a step that is a part of the time that its links need alone."""
    found = make_record(50.0)
    model = StepModel(found.spec, Layout(found.measurement.runs[0].task_hosts))
    alone_s = model.step_s(0.0, NetworkRates(link_bytes_per_s=LINK))
    slow = make_record(found.spec.gpus * found.spec.batch_size / (part * alone_s))
    return replace(slow, efficiency=efficiency, anchor="a0")


@pytest.mark.parametrize("part", [1.0, 1.05])
def test_efficiency_gives_advice_if_links_take_the_step(part: float) -> None:
    """If links take the whole step, a low efficiency shows the computing that they hide, and there is advice."""
    assert "wire_precision=bf16 is predicted to be " in (find_advice(make_record_of_links(part, 0.1)) or "")


def test_step_longer_than_its_links_explain_has_no_advice() -> None:
    """A step that is twice as long as its links explain, as on a slow host, has no advice."""
    assert find_advice(make_record_of_links(2.0, 0.05)) is None


@pytest.mark.parametrize(
    "found",
    [
        make_record(50.0, verdict=Verdict.PASSED, variable_placement="greedy"),
        make_record(50.0, link=None, variable_placement="greedy"),
        make_record(2.0, link=1e12, variable_placement="greedy"),
        make_record(2.0, num_ps=0, variable_update="independent"),
        samples.record(samples.spec(), 50.0, verdict=Verdict.REGRESSED),
    ],
    ids=["passed", "no link known", "computing decides", "nothing is sent", "one host without a limit"],
)
def test_measurement_that_links_do_not_limit_has_no_advice(found: Record) -> None:
    """A measurement that passed, has no known link, is limited by computing or sends nothing has no advice."""
    assert find_advice(found) is None


def test_injected_slow_down_has_no_advice() -> None:
    """A measurement with an injected slow-down has no advice."""
    found = make_record(50.0, variable_placement="greedy")
    slept = replace(found, measurement=replace(found.measurement, injected_slowdowns={"worker:0": 0.1}))
    assert find_advice(slept) is None


def test_latest_valid_measurement_of_each_size_is_selected() -> None:
    """The latest valid measurement of each size is selected, and other trainings, invalid rates and injected slow-downs are
    not."""
    spec = samples.spec(variable_update="parameter_server", num_ps=1)
    local = spec.replace(gpus=2, variable_placement="greedy")
    records = [
        samples.record(local, 10.0),
        samples.record(local, 19.0, 21.0),
        samples.record(spec.replace(gpus=4, batch_size=4), 40.0),
        samples.record(spec.replace(gpus=8), 80.0, verdict=Verdict.INVALID),
        samples.record(spec.replace(gpus=16), 16.0, injected_slowdowns={"worker:1": 0.5}),
    ]
    (found,) = select_measured(records, spec.replace(data_format="NCHW", variable_placement="split"))
    assert (found.spec, found.images_per_sec) == (local, records[1].images_per_sec)
    assert found.noise > 0
    assert len(set(found.layout.hosts.values())) == 1


def test_other_placement_between_hosts_is_another_training() -> None:
    """A measurement on several hosts with another variable placement is not selected."""
    found = make_record(50.0, verdict=None, variable_placement="greedy")
    assert len(select_measured([found], found.spec.replace(gpus=1, num_ps=1))) == 1
    assert select_measured([found], found.spec.replace(variable_placement="split")) == []


def test_probed_links_give_a_range_around_their_median() -> None:
    """The range of probed links is 10 % around their median, and there is none without a probed link."""
    found = make_record(50.0)
    ways = {"*>n0": probed_link(1e9), "n0>*": probed_link(3e9), "*>n1": probed_link(2e9)}
    probes = Probes(hosts={"n0": HostProbe(), "n1": HostProbe()}, links=ways)
    probed = replace(found, measurement=replace(found.measurement, probes=probes))
    link = find_probed_link([probed, found])
    assert link
    assert (link.low, link.high) == pytest.approx((2e9 / 1.1, 2e9 * 1.1))
    assert find_probed_link([found]) is None
