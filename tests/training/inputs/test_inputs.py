"""Every input, by the same rules: what a data set holds is delivered once in each pass, in an order that a seed decides."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pytest_dtfperf.spec import INPUTS, MODELS, Spec
from pytest_dtfperf.training.inputs.shards import find_shards
from pytest_dtfperf.training.inputs.zmq_producer import IMAGES as MADE_IN_PYTHON
from tests.training.inputs.conftest import EDGE, IMAGES, Ask, Deliver, DeliverInTurn, Delivery

MADE_BY_TENSORFLOW = 256  # synthetic_host's; this process cannot import it
IN_A_PASS = {
    "synthetic-host": MADE_BY_TENSORFLOW,
    "python-queue": MADE_IN_PYTHON,
    "python-dataset": MADE_IN_PYTHON,
    "zmq": MADE_IN_PYTHON,
    "mnist": IMAGES,
    "cifar10": IMAGES,
    "imagenet": IMAGES,
}
STEPS_IN_A_PASS = 2  # of two workers with two towers each
PASSES = 2


@dataclass(frozen=True)
class Delivered:
    """Deliveries of the same data set, to several workers and to one."""

    workers: list[Delivery]  # two, each with two towers
    alone: Delivery  # to one process, with four times the batch
    again: Delivery  # to another such process, in the other data format
    otherwise: Delivery  # under another seed


def spec_of(data: str, data_dirs: dict[str, str], **changes: object) -> Spec:
    """Return a spec of four towers, of two workers or of one."""
    model = next(name for name, row in MODELS.items() if data in row.data)
    spec = Spec(
        model=model, batch_size=IN_A_PASS.get(data, IMAGES) // 8, gpus=4, num_ps=1, data=data, data_dir=data_dirs.get(data)
    )
    return spec.replace(**changes)


@pytest.fixture(scope="module", params=[data for data in INPUTS if data != "synthetic"])
def data(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def deliveries(data: str, deliver_in_turn: DeliverInTurn, data_dirs: dict[str, str]) -> Delivered:
    spec, steps = spec_of(data, data_dirs), PASSES * STEPS_IN_A_PASS
    one = spec.replace(gpus=1, num_ps=0, batch_size=4 * spec.batch_size)
    first, second = (Ask(spec, steps, index=index, workers=2) for index in range(2))
    its, alone = deliver_in_turn([first, Ask(one, steps)])
    others, again, otherwise = deliver_in_turn(
        [second, Ask(one.replace(data_format="NCHW"), steps), Ask(one.replace(seed=99), steps)]
    )
    return Delivered(workers=[its, others], alone=alone, again=again, otherwise=otherwise)


def test_two_workers_of_two_towers_get_every_image_once_in_a_pass(deliveries: Delivered, data: str) -> None:
    """The towers' batches of a pass are the whole data set, each image once, in both passes."""
    assert [worker.message for worker in deliveries.workers] == ["", ""]
    passes = []
    for number in range(PASSES):
        steps = range(number * STEPS_IN_A_PASS, (number + 1) * STEPS_IN_A_PASS)
        seen = [pair for worker in deliveries.workers for step in steps for pair in worker.step(step)]
        assert len(seen) == len(set(seen)) == IN_A_PASS[data]
        passes.append(seen)
    assert set(passes[0]) == set(passes[1])


def test_step_of_all_towers_equals_one_large_batch(deliveries: Delivered) -> None:
    """The images of all towers in a step are those of one batch of the total size."""
    for step in range(PASSES * STEPS_IN_A_PASS):
        together = [pair for worker in deliveries.workers for pair in worker.step(step)]
        assert sorted(together) == sorted(deliveries.alone.step(step))


def test_order_follows_from_the_seed(deliveries: Delivered) -> None:
    """The order of labels is equal for equal seeds, and differs between seeds and between passes."""
    labels, again, otherwise = (
        [batch.labels for (batch,) in delivery.steps] for delivery in (deliveries.alone, deliveries.again, deliveries.otherwise)
    )
    assert labels == again
    assert labels != otherwise
    assert labels[:STEPS_IN_A_PASS] != labels[STEPS_IN_A_PASS:]


def test_images_come_in_the_data_format_and_as_numbers(deliveries: Delivered, data: str) -> None:
    """float32 images, (batch, height, width, channels) or channels first with the same pixels, and int32 labels."""
    (batch,), (other,) = deliveries.alone.steps[0], deliveries.again.steps[0]
    height, width, channels = INPUTS[data].image_shape or (EDGE, EDGE, 3)
    count = IN_A_PASS[data] // STEPS_IN_A_PASS
    assert batch.dtypes == other.dtypes == ["float32", "int32"]
    assert (batch.shape, other.shape) == ([count, height, width, channels], [count, channels, height, width])
    np.testing.assert_allclose(batch.means, other.means, atol=1e-5)


def test_pixels_are_in_their_range(deliveries: Delivered, data: str) -> None:
    """Pixels are from 0 to 1 in MNIST, as in its tutorial, and around 0 elsewhere, as in tf_cnn_benchmarks."""
    least = 0.0 if data == "mnist" else -1.0
    for (batch,) in deliveries.alone.steps:
        assert least <= batch.range[0] < 0.3 * least + 0.2
        assert 0.7 < batch.range[1] <= 1.0


def test_synthetic_images_stay_and_differ_between_towers(deliver_in_turn: DeliverInTurn, data_dirs: dict[str, str]) -> None:
    """Each tower has a batch of its own, the same in every step."""
    spec = spec_of("synthetic", data_dirs)
    workers = deliver_in_turn([Ask(spec, steps=2, index=index, workers=2) for index in range(2)])
    for worker in workers:
        assert worker.step(0) == worker.step(1)
    of_towers = [tuple(batch.images) for worker in workers for batch in worker.steps[0]]
    assert len(set(of_towers)) == 4


def test_any_number_of_workers_share_one_order(deliver_in_turn: DeliverInTurn, data_dirs: dict[str, str]) -> None:
    """Each tower gets its own images only, if the shards cannot be divided evenly."""
    spec = spec_of("imagenet", data_dirs, gpus=3, batch_size=4)
    got = deliver_in_turn([Ask(spec, steps=2, index=index, workers=3) for index in range(3)])
    seen = [pair for delivery in got for step in range(2) for pair in delivery.step(step)]
    assert len(set(seen)) == len(seen) == IMAGES


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("data", ["cifar10", "imagenet"])
def test_distortions_follow_the_image_not_the_worker(
    deliver_in_turn: DeliverInTurn, data_dirs: dict[str, str], data: str
) -> None:
    """Distorted images have the labels of undistorted ones, other pixels, and are the same for any number of workers."""
    spec = spec_of(data, data_dirs, distortions=True, resize_method="round_robin")
    one = spec.replace(gpus=1, num_ps=0, batch_size=4 * spec.batch_size)
    first, second = (Ask(spec, steps=2, index=index, workers=2) for index in range(2))
    alone, its = deliver_in_turn([Ask(one, steps=2), first])
    plain, others = deliver_in_turn([Ask(one.replace(distortions=False), steps=2), second])
    workers = [its, others]
    for step in range(2):
        assert sorted(pair for worker in workers for pair in worker.step(step)) == sorted(alone.step(step))
        assert [label for _, label in alone.step(step)] == [label for _, label in plain.step(step)]
        assert not {image for image, _ in alone.step(step)} & {image for image, _ in plain.step(step)}


@pytest.mark.parametrize("shuffles", [True, False])
def test_batch_waits_for_a_full_buffer_only_if_records_are_shuffled(
    deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path, shuffles: bool
) -> None:
    """A training fills its buffer before the first batch, and a probe does not: a damaged last record shows it."""
    content = bytearray(find_shards(Path(data_dirs["imagenet"]), "train")[0].read_bytes())
    content[-1] ^= 1  # of the checksum of the last record
    (tmp_path / "train-00000-of-00001").write_bytes(content)
    spec = spec_of("imagenet", {"imagenet": str(tmp_path)}, gpus=1, num_ps=0, batch_size=2)
    delivery = deliver(Ask(spec, input=None if shuffles else "tests.training.inputs.unshuffled:UnshuffledRecords"))
    assert len(delivery.steps) == (0 if shuffles else 1), delivery.message
    assert (delivery.error is not None) == shuffles


@pytest.mark.parametrize("data", [data for data, row in INPUTS.items() if row.test_set])
def test_test_set_is_read_once(deliver: Deliver, data_dirs: dict[str, str], data: str) -> None:
    """The images of a test set are delivered once each, and then the input ends."""
    delivery = deliver(Ask(spec_of(data, data_dirs), steps=2, test_set=True))
    assert delivery.error == "OutOfRangeError"
    seen = [pair for step in range(len(delivery.steps)) for pair in delivery.step(step)]
    assert len(set(seen)) == len(seen) == 7


@pytest.mark.parametrize("data", [data for data, row in INPUTS.items() if not row.test_set])
def test_synthetic_images_have_no_test_set(deliver: Deliver, data_dirs: dict[str, str], data: str) -> None:
    """An input of synthetic images refuses a test set, because accuracy would mean nothing."""
    delivery = deliver(Ask(spec_of(data, data_dirs), test_set=True))
    assert delivery.error == "SpecError"
    assert "has no test set: accuracy on made-up images means nothing" in delivery.message
