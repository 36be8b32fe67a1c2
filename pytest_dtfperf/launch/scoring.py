"""From the stamps that workers send to the scores of a run: whatever goes wrong here costs the scores, and nothing else."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.explain.scores import scores_of
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.stamps import MOST_STEPS, InvalidStamps, Stamps, unpack


@dataclass
class Scoring:
    """What the tasks of one run have stamped."""

    spec: Spec
    tasks: Collection[str]
    packed: dict[str, str] = field(default_factory=dict)  # task -> what it has sent
    _refused: str = ""

    def hear(self, task: str, data: str | None, error: str | None) -> None:
        """Take what a task has sent: stamps, or why there are none."""
        if data is not None:
            self.packed[task] = data
        else:
            self._refused = self._refused or f"{task} has no stamps: {error}"

    def outcome(self) -> tuple[Mapping[str, Any] | None, str]:
        """The run's scores as they are stored, or why something went wrong with them. Neither: nothing is known."""
        if self._refused:
            return None, self._refused
        try:
            scores = scores_of(self._stamps(), lockstep=self.spec.in_lockstep)
        except InvalidStamps as error:
            return None, f"the stamps {error}"
        return (scores.to_json() if scores else None), ""

    def _stamps(self) -> list[Stamps]:
        """By the workers' numbers. Raises `InvalidStamps`."""
        found: dict[str, Stamps] = {}
        for task, packed in self.packed.items():
            for stamps in unpack(packed):
                self._check(task, stamps, found)
                found[stamps.worker] = stamps
        return sorted(found.values(), key=lambda stamps: int(stamps.worker.partition(":")[2]))

    def _check(self, task: str, stamps: Stamps, found: Collection[str]) -> None:
        if stamps.worker != task and not self.spec.mode.single_session:
            raise InvalidStamps(f"of {task} are those of {stamps.worker}")
        if stamps.worker not in self.tasks or not stamps.worker.startswith("worker:"):
            raise InvalidStamps(f"of {task} name {stamps.worker}, which is no worker of this run")
        if stamps.worker in found:
            raise InvalidStamps(f"of {stamps.worker} are there twice")
        # Of a coordinator's batches all may go to one worker; how many steps a program makes is its own affair.
        most = MOST_STEPS if self.spec.command else self.spec.steps * self.spec.gpus
        if len(stamps) > most:
            raise InvalidStamps(f"of {stamps.worker} are of {len(stamps)} steps, there are {most}")


def with_cpu(scores: Mapping[str, Any] | None, cpu_s: Mapping[str, float], steps: int) -> Mapping[str, Any] | None:
    """With the CPU time that whole tasks report, where nobody has stamped it: of workers that others' sessions compute on.

    `cpu_s`: task -> seconds in as many measured steps. A worker that a coordinator gives batches, or that reports steps of its
    own, has as many as were told of it: the slower it is, the fewer.
    """
    if scores is None or not steps:
        return scores
    workers = {worker: _with_cpu(score, cpu_s.get(worker), steps) for worker, score in scores["workers"].items()}
    return {**scores, "workers": workers}


def _with_cpu(score: Mapping[str, Any], cpu_s: float | None, steps: int) -> Mapping[str, Any]:
    own_steps = steps if score["ready_s"] is not None else score["steps"]
    if score["cpu_s"] is not None or not cpu_s or not own_steps:
        return score
    return {**score, "cpu_s": round(cpu_s / own_steps, 6)}
