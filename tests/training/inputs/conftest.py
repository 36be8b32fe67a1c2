"""Deliveries of real inputs: this process itself imports no TensorFlow."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from pytest_dtfperf.spec import Spec, TaskOrder
from tests.training.programs import run_with_requests

# What the made-up data sets hold: small, and with a number of images that two workers of two towers can share out evenly.
IMAGES = 24
EDGE = 12  # pixels, of what networks look at where the data set leaves it open


@dataclass(frozen=True)
class Ask:
    """A request for the batches of one worker."""

    spec: Spec
    steps: int = 1
    index: int = 0
    workers: int = 1
    image_shape: tuple[int, int, int] = (EDGE, EDGE, 3)
    classes: int = 1001
    test_set: bool = False
    input: str | None = None  # "module:Class", instead of the spec's
    environment: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # modules that cannot be imported

    def to_json(self) -> dict[str, Any]:
        spec = self.spec
        order = TaskOrder(
            run="test",
            job="worker",
            index=self.index,
            spec=spec,
            cluster={"worker": ("nowhere:1",) * self.workers} if self.workers > 1 else {},
            num_devices=spec.gpus // self.workers,
        )
        fixed = {"image_shape": spec.input.image_shape or self.image_shape, "classes": spec.input.classes or self.classes}
        return {**self.__dict__, **fixed, "spec": None, "order": order.to_json()}


@dataclass(frozen=True)
class Batch:
    """The content of a tower's batch: each image by a digest of its pixels."""

    images: list[str]
    labels: list[int]
    means: list[float]
    shape: list[int]
    dtypes: list[str]
    range: list[float]


@dataclass(frozen=True)
class Delivery:
    """The batches of a worker's input: a list of steps, each with the batch of every tower."""

    steps: list[list[Batch]]
    error: str | None = None
    message: str = ""

    def step(self, number: int) -> list[tuple[str, int]]:
        """Images and labels of all towers."""
        return [pair for batch in self.steps[number] for pair in zip(batch.images, batch.labels, strict=True)]


Deliver = Callable[[Ask], Delivery]
DeliverInTurn = Callable[[Sequence[Ask]], list[Delivery]]


class Driver:
    """The program that has imported TensorFlow, and forks for each request."""

    def __init__(self, questions: IO[str], answers: IO[str], log: Path) -> None:
        self._questions = questions
        self._answers = answers
        self._log = log

    def ask(self, request: dict[str, Any]) -> Any:
        self._questions.write(json.dumps(request) + "\n")
        self._questions.flush()
        answer = self._answers.readline()
        assert answer.strip(), f"no answer: {self._log.read_text()[-2000:]}"
        return json.loads(answer)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("delivery") / "log"
    with run_with_requests("tests.training.inputs.delivery", log) as (questions, answers):
        yield Driver(questions, answers, log)


@pytest.fixture(scope="session")
def deliver(deliver_in_turn: DeliverInTurn) -> Deliver:
    """Ask a worker's input for the batches of some steps."""

    def deliver_one(ask: Ask) -> Delivery:
        (delivery,) = deliver_in_turn([ask])
        return delivery

    return deliver_one


@pytest.fixture(scope="session")
def deliver_in_turn(driver: Driver) -> DeliverInTurn:
    """Ask several, one after the other, in one process: TensorFlow begins once for all of them."""

    def deliver_all(asks: Sequence[Ask]) -> list[Delivery]:
        answers = driver.ask({"deliver": [ask.to_json() for ask in asks]})
        return [
            Delivery(**{**answer, "steps": [[Batch(**batch) for batch in step] for step in answer["steps"]]})
            for answer in answers
        ]

    return deliver_all


@pytest.fixture(scope="session")
def data_dirs(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small made-up data set for each input that reads one."""
    folders = {data: str(tmp_path_factory.mktemp(data)) for data in ("mnist", "cifar10", "imagenet")}
    for data, folder in folders.items():
        wanted: dict[str, Any] = {"data": data, "out": folder, "images": IMAGES, "test_images": 7, "seed": 5}
        if data == "imagenet":
            wanted |= {"classes": 8, "shards": 4, "test_shards": 2, "height": 20, "width": 24}
        driver.ask({"make": wanted})
    return folders
