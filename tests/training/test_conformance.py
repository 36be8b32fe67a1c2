"""Tests of all variable updates: the network learns the same as in one process. Each row of the table is tested."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pytest_dtfperf.spec import MODE_OPTIONS, VARIABLE_PLACEMENTS, VARIABLE_UPDATES, Spec, VariableUpdate
from pytest_dtfperf.spec.tables import OPTIMIZERS, WIRE_PRECISIONS
from pytest_dtfperf.training.exchange_plan import assign_servers, make_part_names
from tests.training.conftest import RunTraining, assert_same_variables, orders_of

VARIABLE_BYTES = 4 * (9 * 12 + 12 + 108 * 64 + 64 + 64 * 10 + 10)  # of the network "tiny"
IMAGES = 12  # of a whole step, however many devices share them: one process trains with as many


class Layout(NamedTuple):
    """Hold the numbers of workers, devices and servers."""

    workers: int
    gpus: int  # of all workers together
    num_ps: int = 0

    def __str__(self) -> str:
        return f"{self.workers}_workers_of_{self.gpus}_devices" + (f"_{self.num_ps}_ps" if self.num_ps else "")


PAIR, DOUBLE, FOUR, UNEVEN = Layout(2, 2), Layout(1, 2), Layout(2, 4), Layout(2, 3)

# Each alone makes something different of the same training.
OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "local_parameter_device": ("gpu",),
    "hierarchical_copy": (True,),
    "gradient_repacking": (3,),
    "agg_small_grads_max_bytes": (0, 4096),
    "agg_small_grads_max_group": (2,),
}
DELAYED = {"staged_vars", "variable_consistency"}  # another training: see the tests of the modes that know them
BY_ROW = {"all_reduce_spec"}
ROUNDS = {"wire_precision"}  # tried with every placement, and with every algorithm
NEEDS_GPUS = "nccl"


def list_layouts(row: VariableUpdate) -> tuple[Layout, ...]:
    if row.one_process:
        return (DOUBLE, Layout(1, 3))
    if row.one_device or row.one_cpu:
        return (PAIR,)
    if row.parameter_servers:
        without = [(DOUBLE, 0)] if row.local else []
        found = [*without, (PAIR, 1), (PAIR, 3), (DOUBLE, 1), (FOUR, 2), (UNEVEN, 2)]
        return tuple(layout._replace(num_ps=num_ps) for layout, num_ps in found)
    return (PAIR, DOUBLE, FOUR, UNEVEN)


def list_options(row: VariableUpdate) -> Iterator[dict[str, Any]]:
    for name in sorted(row.knows & OPTIONS.keys()):
        yield from ({name: value} for value in OPTIONS[name])


def list_algorithms(row: VariableUpdate) -> Iterator[str]:
    yield from (algorithm for algorithm in row.all_reduce if not algorithm.startswith(NEEDS_GPUS))
    if row.all_reduce_by_size:
        yield "pscpu:1k:xring#2"


def choose_layout(row: VariableUpdate, option: Mapping[str, Any]) -> Layout:
    return Layout(1, 4) if "hierarchical_copy" in option and row.even_hierarchy else list_layouts(row)[-1]


def list_cases() -> Iterator[Any]:
    """Yield each mode in each of its layouts, and in the last of them with each of its options."""
    for mode, row in VARIABLE_UPDATES.items():
        if row.synchronous and row.lockstep:
            # What is packed is on one server: with several, see to it that each has something.
            spread: dict[str, Any] = {"agg_small_grads_max_bytes": 0} if row.parameter_servers else {}
            found = [*((layout, spread if layout.num_ps > 1 else {}) for layout in list_layouts(row))]
            found += [(choose_layout(row, option), option) for option in list_options(row) if option != spread]
            on_devices: dict[str, Any] = {"local_parameter_device": "gpu"}
            found += [(DOUBLE, {**on_devices, **more}) for more in ({}, {"variable_placement": "split"})] if row.local else []
            yield from (pytest.param(mode, layout, option, id=_id(mode, layout, option)) for layout, option in found)


def _id(mode: str, layout: Layout, option: Mapping[str, Any]) -> str:
    return "-".join([mode, str(layout), *(f"{name}={value}" for name, value in option.items())])


@pytest.fixture(scope="module")
def momentum(tiny: Spec) -> Spec:
    """Return a spec with momentum, a state beside the variables that must be updated as often as they are."""
    return tiny.replace(optimizer="momentum")


@pytest.fixture(scope="module")
def reference(run_training: RunTraining, momentum: Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the variables that one process on one device learns in the same steps from the same images."""
    path = tmp_path_factory.mktemp("alone") / "variables.npz"
    run_training(momentum.replace(batch_size=IMAGES), checkpoint=str(path))
    run_training(momentum.replace(batch_size=IMAGES, learning_rate=0.0, steps=1), checkpoint=str(path.with_name("start.npz")))
    return path


@pytest.mark.campaign
@pytest.mark.parametrize("mode, layout, option", [*list_cases()])
def test_mode_learns_the_same_as_one_process(
    run_training: RunTraining,
    reference: Path,
    momentum: Spec,
    tmp_path: Path,
    mode: str,
    layout: Layout,
    option: dict[str, Any],
) -> None:
    """After three steps of each mode, layout and option all variables are those of one process."""
    spec = momentum.replace(
        variable_update=mode, gpus=layout.gpus, num_ps=layout.num_ps, batch_size=IMAGES // layout.gpus, **option
    )
    run_training(spec, workers=layout.workers, checkpoint=str(tmp_path / "together.npz"))
    assert_same_variables(tmp_path / "together.npz", reference, rtol=1e-5, atol=1e-7)


def list_exchanges() -> Iterator[Any]:
    """Yield each mode with servers, each placement and precision on the wire, with and without packs, also with a lone
    asynchronous worker."""
    for mode, row in VARIABLE_UPDATES.items():
        if not (row.parameter_servers and row.synchronous):
            continue
        ways: list[tuple[Layout, dict[str, Any]]] = [
            (layout, {}) for layout in (Layout(2, 2, 3), Layout(2, 3, 2), Layout(1, 2, 2))
        ]
        ways += [(Layout(1, 1, 2), {"cross_replica_sync": False})] if row.asynchronous else []
        packings: list[dict[str, Any]] = [{}, {"agg_small_grads_max_bytes": 0}]
        for placement, wire, (layout, way), packing in product(VARIABLE_PLACEMENTS, WIRE_PRECISIONS, ways, packings):
            option = {**way, **packing}
            yield pytest.param(mode, placement, wire, layout, option, id=_id(f"{mode}-{placement}-{wire}", layout, option))


@pytest.mark.campaign
@pytest.mark.parametrize("mode, placement, wire, layout, option", [*list_exchanges()])
def test_placement_learns_the_same_as_one_process(
    run_training: RunTraining, reference: Path, momentum: Spec, tmp_path: Path, mode: str, placement: str, wire: str,
    layout: Layout, option: dict[str, Any],
) -> None:  # fmt: skip
    """Each placement, split or whole, packed or not, learns the same as one process, and the servers hold all variables."""
    spec = momentum.replace(
        variable_update=mode, variable_placement=placement, wire_precision=wire, gpus=layout.gpus, num_ps=layout.num_ps,
        batch_size=IMAGES // layout.gpus, **option,
    )  # fmt: skip
    reports = run_training(spec, workers=layout.workers, checkpoint=str(tmp_path / "together.npz"))
    assert_learnt(tmp_path / "together.npz", reference, wire)
    held = [size for device, size in reports[layout.num_ps].variable_bytes.items() if device.startswith("/job:ps")]
    assert sum(held) == VARIABLE_BYTES
    if placement == "split":
        assert len(held) == layout.num_ps
        assert max(held) <= 1.02 * VARIABLE_BYTES / layout.num_ps


def list_reductions() -> Iterator[Any]:
    """Yield each algorithm, and with short numbers on the wire also several layouts."""
    for mode, row in VARIABLE_UPDATES.items():
        shorter = (PAIR, Layout(3, 3), FOUR, UNEVEN) if "wire_precision" in row.knows else ()
        if row.synchronous and row.lockstep:
            for algorithm in list_algorithms(row):
                for wire, layout in (("fp32", list_layouts(row)[-1]), *(("bf16", layout) for layout in shorter)):
                    yield pytest.param(mode, algorithm, wire, layout, id=f"{mode}-{algorithm}-{wire}-{layout}")


@pytest.mark.campaign
@pytest.mark.parametrize("mode, algorithm, wire, layout", [*list_reductions()])
def test_algorithm_learns_the_same_as_one_process(
    run_training: RunTraining,
    reference: Path,
    momentum: Spec,
    tmp_path: Path,
    mode: str,
    algorithm: str,
    wire: str,
    layout: Layout,
) -> None:
    """Each algorithm learns the same as one process, or nearly the same with bf16 on the wire."""
    spec = momentum.replace(
        variable_update=mode, all_reduce_spec=algorithm, gpus=layout.gpus, batch_size=IMAGES // layout.gpus,
        wire_precision=wire,
    )  # fmt: skip
    run_training(spec, workers=layout.workers, checkpoint=str(tmp_path / "together.npz"))
    assert_learnt(tmp_path / "together.npz", reference, wire, near=0.02)


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("mode", [mode for mode, row in VARIABLE_UPDATES.items() if "wire_precision" in row.knows])
def test_single_process_is_not_rounded(
    run_training: RunTraining, reference: Path, momentum: Spec, tmp_path: Path, mode: str
) -> None:
    """A single process learns the same with bf16 on the wire, since it sends nothing."""
    devices = 1 if VARIABLE_UPDATES[mode].parameter_servers else 2
    spec = momentum.replace(variable_update=mode, gpus=devices, batch_size=IMAGES // devices, wire_precision="bf16")
    run_training(spec, workers=1, checkpoint=str(tmp_path / "together.npz"))
    assert_learnt(tmp_path / "together.npz", reference, "fp32")


def compute_norm(values: Any) -> float:
    return float(np.sqrt(np.sum(np.square(values.astype(np.float64)))))


def assert_learnt(found: Path, reference: Path, wire: str, *, near: float = 0.1) -> None:
    """Assert that variables are those of one process, except for the order of sums, or in bf16 near them.

    A number is rounded by up to 1 in 256, and what is learnt from many by less: 1 in 50 is allowed. But where values are
    rounded, a ReLU or a maximum may be decided otherwise. With 12 images whole layers show it, alike in all layouts: 1 in 10.
    """
    if wire == "fp32":
        assert_same_variables(found, reference, rtol=1e-5, atol=1e-7)
        return
    with np.load(found) as values, np.load(reference) as expected, np.load(reference.with_name("start.npz")) as start:
        assert set(values) == set(expected)
        off = {
            name: compute_norm(values[name] - expected[name]) / compute_norm(expected[name] - start[name]) for name in expected
        }
    assert max(off.values()) <= near, off
    assert max(off.values()) > 1e-5, "nothing was rounded"


@pytest.fixture(scope="module")
def growing_rate_spec(tiny: Spec) -> Spec:
    """Return a spec with a growing learning rate, so that there is state of all kinds: slots, powers and the count of steps."""
    # Adam divides a gradient by its own size, so that the rounding of the smallest is as large as any step: small steps, then.
    return tiny.replace(batch_size=IMAGES, learning_rate=0.001, num_learning_rate_warmup_epochs=0.001)


@pytest.fixture(scope="module")
def optimizer_references(run_training: RunTraining, growing_rate_spec: Spec, tmp_path_factory: Any) -> Callable[[str], Path]:
    """Return a function of an optimizer, for the variables that one process on one device learns with it."""

    @cache
    def learn_alone(optimizer: str) -> Path:
        path: Path = tmp_path_factory.mktemp(optimizer) / "alone.npz"
        run_training(growing_rate_spec.replace(optimizer=optimizer), checkpoint=str(path))
        return path

    return learn_alone


def test_gradients_sent_in_turn_all_count(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """With links between hosts two workers send large gradients in turn to two servers, and learn the same as when they send
    at once, while a loss scale is halved."""
    spec = tiny.replace(
        model="heavy", data="synthetic", data_dir=None, variable_update="distributed_replicated", variable_placement="split",
        gpus=2, num_ps=2, batch_size=IMAGES // 2, learning_rate=0.001, steps=7, precision="fp16", fp16_loss_scale=2.0**19,
        fp16_enable_auto_loss_scale=True,
    )  # fmt: skip
    with orders_of(spec, workers=2) as (order, *_):
        held = assign_servers(order, spec.num_ps)
    large = [server for name, server in held.items() if re.match(r"dense[012]/weights", name)]
    assert sorted(large) == [0, 0, 1, 1]
    losses = []
    for host in ("localhost", "127.0.0.1"):
        *_, chief, _ = run_training(spec, workers=2, checkpoint=str(tmp_path / f"{host}.npz"), servers_host=host)
        losses.append(chief.loss)
    assert_same_variables(tmp_path / "localhost.npz", tmp_path / "127.0.0.1.npz", rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert 0 < np.count_nonzero(np.diff(losses[0]) == 0) < spec.steps - 2  # steps that the scale was too large for
    run_training(tiny.replace(model="heavy", learning_rate=0.0, steps=1), checkpoint=str(tmp_path / "start.npz"))
    with np.load(tmp_path / "localhost.npz") as values, np.load(tmp_path / "start.npz") as start:
        assert all(compute_norm(values[name] - start[name]) > 0 for name in start)


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("wire", WIRE_PRECISIONS)
def test_delayed_values_are_those_of_the_step(run_training: RunTraining, tiny: Spec, tmp_path: Path, wire: str) -> None:
    """With links between hosts the last values come later, and two workers learn the same as when all come at once."""
    spec = tiny.replace(
        model="heavy", data="synthetic", data_dir=None, variable_update="parameter_server", variable_placement="split",
        gpus=2, num_ps=2, batch_size=IMAGES // 2, learning_rate=0.001, steps=5, wire_precision=wire,
    )  # fmt: skip
    for host in ("localhost", "127.0.0.1"):
        run_training(spec, workers=2, checkpoint=str(tmp_path / f"{host}.npz"), servers_host=host)
    assert_same_variables(tmp_path / "localhost.npz", tmp_path / "127.0.0.1.npz", rtol=1e-5, atol=1e-7)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    "mode, wire", [("parameter_server", "fp32"), ("parameter_server", "bf16"), ("distributed_replicated", "fp32")]
)
def test_parts_on_one_server_learn_the_same_as_the_whole(
    run_training: RunTraining, tiny: Spec, tmp_path: Path, mode: str, wire: str
) -> None:
    """A variable that is sent in parts to one server learns the same as when it is whole."""
    spec = tiny.replace(
        model="uneven", data="synthetic", data_dir=None, variable_update=mode, variable_placement="greedy", gpus=2, num_ps=2,
        batch_size=IMAGES // 2, learning_rate=0.001, steps=5, wire_precision=wire, optimizer="momentum",
    )  # fmt: skip
    for host, names in ("127.0.0.1", ["dense0/weights"]), ("localhost", make_part_names("dense0/weights", 2)):
        with orders_of(spec, workers=2, servers_host=host) as (order, *_):
            held = assign_servers(order, spec.num_ps)
        assert [name for name in held if name.startswith("dense0/weights")] == names
        assert len({held[name] for name in names}) == 1
        run_training(spec, workers=2, checkpoint=str(tmp_path / f"{host}.npz"), servers_host=host)
    # Sums in another order differ in their last bit, which may round to the neighbouring bfloat16: 2^-8 of a gradient of up to
    # 0.25, times the learning rate. Processors with AVX-512 sum a part in another order than the whole.
    atol = 1e-7 if wire == "fp32" else 0.25 * 2**-8 * spec.learning_rate
    assert_same_variables(tmp_path / "localhost.npz", tmp_path / "127.0.0.1.npz", rtol=1e-5, atol=atol)


def list_server_counts() -> Iterator[tuple[str, int, str]]:
    """Yield modes with one, two and three servers, of which two are enough for those above, and each placement with two."""
    for mode, row in VARIABLE_UPDATES.items():
        if row.parameter_servers:
            yield from ((mode, num_ps, "greedy") for num_ps in ((2,) if row.synchronous else (1, 2, 3)))
            yield from ((mode, 2, placement) for placement in VARIABLE_PLACEMENTS if placement != "greedy")


@pytest.mark.campaign
@pytest.mark.parametrize("mode, num_ps, placement", [*list_server_counts()])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_servers_learn_the_same_with_each_optimizer(
    run_training: RunTraining, growing_rate_spec: Spec, optimizer_references: Callable[[str], Path], tmp_path: Path,
    optimizer: str, mode: str, num_ps: int, placement: str,
) -> None:  # fmt: skip
    """With each optimizer, number of servers and placement, workers learn the same as one process, and all servers are used."""
    spec = growing_rate_spec.replace(optimizer=optimizer)
    row = VARIABLE_UPDATES[mode]
    workers = 2 if row.synchronous else 1
    spread: dict[str, Any] = {"agg_small_grads_max_bytes": 0} if "agg_small_grads_max_bytes" in row.knows else {}
    together = spec.replace(
        variable_update=mode, cross_replica_sync=row.synchronous, num_ps=num_ps, gpus=workers, batch_size=IMAGES // workers,
        variable_placement=placement, **spread,
    )  # fmt: skip
    reports = run_training(together, workers=workers, checkpoint=str(tmp_path / "together.npz"))
    used = {device for report in reports for device in report.variable_bytes if device.startswith("/job:ps")}
    assert len(used) == num_ps
    assert_same_variables(tmp_path / "together.npz", optimizer_references(optimizer), atol=1e-5)


def test_adam_on_two_copies_learns_the_same(
    run_training: RunTraining, growing_rate_spec: Spec, optimizer_references: Callable[[str], Path], tmp_path: Path
) -> None:
    """Adam with two copies of the variables learns the same as with one."""
    together = growing_rate_spec.replace(optimizer="adam", variable_update="replicated", gpus=2, batch_size=IMAGES // 2)
    run_training(together, checkpoint=str(tmp_path / "together.npz"))
    assert_same_variables(tmp_path / "together.npz", optimizer_references("adam"), atol=1e-5)


def test_every_option_of_a_mode_is_listed() -> None:
    """Each option of a mode is tested above, or listed as another training."""
    assert OPTIONS.keys() | BY_ROW | DELAYED | ROUNDS == set(MODE_OPTIONS)


def test_independent_worker_learns_the_same_as_alone(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """The chief beside an independent worker learns the same as alone, to the last bit."""
    spec = tiny.replace(data="synthetic", data_dir=None, batch_size=4)
    run_training(spec, checkpoint=str(tmp_path / "alone.npz"))
    beside = spec.replace(variable_update="independent", gpus=2)
    run_training(beside, workers=2, checkpoint=str(tmp_path / "beside.npz"))
    assert_same_variables(tmp_path / "beside.npz", tmp_path / "alone.npz", rtol=0, atol=0)
