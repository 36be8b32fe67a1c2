"""A chief and an evaluator among the tasks of an external command, as TensorFlow names them in TF_CONFIG. Pure.

They are placed as workers, with a worker's devices each. https://www.tensorflow.org/guide/distributed_training, "TF_CONFIG".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.launch.placement import PlacedTask


@dataclass(frozen=True)
class Roles:
    """Who leads a run, and who is sent away when those who lead it have ended well.

    Without a chief all workers lead. Beside a chief they may serve it for ever, as ParameterServerStrategy's do. Parameter
    servers and an evaluator never lead.
    """

    chief: bool = False
    evaluator: bool = False
    grace_s: float = 0.0  # before what is sent away gets its SIGTERM

    @property
    def more(self) -> int:
        """Tasks besides parameter servers and workers."""
        return self.chief + self.evaluator

    def named(self, tasks: Sequence[PlacedTask]) -> list[PlacedTask]:
        """Placed as workers: the first of them is the chief, the last the evaluator."""
        last = max(task.index for task in tasks if task.job == "worker")
        return [self._named(task, last) if task.job == "worker" else task for task in tasks]

    def _named(self, task: PlacedTask, last: int) -> PlacedTask:
        if self.chief and task.index == 0:
            return replace(task, job="chief")
        if self.evaluator and task.index == last:
            return replace(task, job="evaluator", index=0)
        return replace(task, index=task.index - self.chief)

    def stays(self, task: PlacedTask) -> bool:
        """Whether it is there until it is sent away, its program may have ended or not."""
        return task.job in ("ps", "evaluator") or (self.chief and task.job == "worker")


WORKERS_LEAD = Roles()
