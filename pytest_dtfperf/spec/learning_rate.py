"""How the learning rate changes from step to step: tf_cnn_benchmarks' rules. Pure; `training/optimizers.py` has its graph."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import INPUTS

IMAGENET_IMAGES = 1_281_167  # of ILSVRC 2012's training set: what an epoch is where the input has no end

_DECAY = ("num_epochs_per_decay", "learning_rate_decay_factor")
_SCHEDULE = "piecewise_learning_rate_schedule"


@dataclass(frozen=True)
class LearningRate:
    """The rate as a function of the steps done before. A step is one update from all devices' batches."""

    starts: tuple[int, ...]  # the first step of each of the values; the first is 0
    values: tuple[float, ...]
    decay_steps: int = 0  # multiply by the factor each time so many steps are done; 0: never
    decay_factor: float = 1.0
    minimum: float = 0.0  # decay ends there
    warmup_steps: int = 0  # at first, grow from zero in a straight line

    @property
    def is_constant(self) -> bool:
        return len(self.values) == 1 and not self.decay_steps and not self.warmup_steps


def learning_rate_of(spec: Fields) -> LearningRate:
    """Return the rule that the spec asks for, with its epochs in steps.

    Raises `SpecError` if the spec asks for an impossible one.
    """
    steps_per_epoch = (INPUTS[spec.data].images_per_epoch or IMAGENET_IMAGES) / (spec.batch_size * spec.gpus)
    warmup_steps = int(steps_per_epoch * spec.num_learning_rate_warmup_epochs)
    if spec.piecewise_learning_rate_schedule is not None:
        values, epochs = _parse_schedule(spec.piecewise_learning_rate_schedule)
        starts = (0, *(int(steps_per_epoch * epoch) for epoch in epochs))
        return LearningRate(starts, values, warmup_steps=warmup_steps)
    if not spec.num_epochs_per_decay:
        return LearningRate((0,), (spec.learning_rate,), warmup_steps=warmup_steps)
    return LearningRate(
        (0,),
        (spec.learning_rate,),
        decay_steps=max(1, int(steps_per_epoch * spec.num_epochs_per_decay)),
        decay_factor=spec.learning_rate_decay_factor,
        minimum=spec.minimum_learning_rate,
        warmup_steps=warmup_steps,
    )


def check(spec: Fields) -> None:
    """Raise `SpecError` where the rules are in each other's way, or one cannot be understood."""
    if spec.piecewise_learning_rate_schedule is not None:
        for name in (*_DECAY, "minimum_learning_rate"):
            if getattr(spec, name):
                raise SpecError(f"{_SCHEDULE} defines the whole rate: leave out {name}")
        _parse_schedule(spec.piecewise_learning_rate_schedule)
    given = [name for name in _DECAY if getattr(spec, name)]
    if len(given) == 1:
        missing = next(name for name in _DECAY if name not in given)
        raise SpecError(
            f"{given[0]} needs {missing} of more than 0, too: the rate is multiplied by the factor every so many epochs"
        )
    if spec.minimum_learning_rate and not given:
        raise SpecError(f"minimum_learning_rate is where decay ends: it needs {' and '.join(_DECAY)}")


def _parse_schedule(schedule: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the rates, and between each two the epoch at which the second begins."""
    if not isinstance(schedule, str):
        raise SpecError(f"{_SCHEDULE} must be a text as 0.1;10;0.01, not {schedule!r}")
    parts = schedule.split(";")
    numbers: list[float] = []
    for index, word in enumerate(parts):
        number = _number(word)
        if number is None or number < 0:
            raise _make_error(parts, index, f"{'an epoch' if index % 2 else 'a learning rate'}: a number of at least 0")
        if index % 2 and number <= ([0.0, *numbers[1::2]])[-1]:
            raise _make_error(parts, index, "an epoch after the one before" if index > 1 else "an epoch after 0, the first")
        numbers.append(number)
    if len(parts) % 2 == 0:
        raise _make_error([*parts, ""], len(parts), "the learning rate from then on")
    return tuple(numbers[::2]), tuple(numbers[1::2])


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _make_error(parts: Sequence[str], index: int, expected: str) -> SpecError:
    text = ";".join(parts)
    column = len(";".join(parts[:index])) + bool(index)
    return SpecError(
        f"{_SCHEDULE} is RATE;EPOCH;RATE;EPOCH;RATE and so on, as 0.1;10;0.01;20;0.001. It cannot be read:\n"
        f"    {text}\n    {' ' * column}^ expected {expected}"
    )
