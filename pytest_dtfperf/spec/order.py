"""What one task of a run is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.plain import Plain
from pytest_dtfperf.spec.own import OwnModel
from pytest_dtfperf.spec.spec import Spec


@dataclass(frozen=True, kw_only=True)
class TaskOrder(Plain):
    """What one task is told: the training, its own part in it, and who the others are."""

    run: str  # id of the run
    job: str  # "ps" or "worker"; of an external command "chief" and "evaluator", too
    index: int
    spec: Spec
    cluster: Mapping[str, tuple[str, ...]]  # job -> "address:port" of each of its tasks; empty for a lone process
    own: OwnModel | None = None  # where the spec's model is in no table, what it is and its code
    device: str = "cpu"  # "cpu" or "gpu": what does the arithmetic here. A ps always computes on its CPU
    num_devices: int = 1  # of this task
    threads: int = 1  # intra_op and inter_op threads of the task: its share of the host's cores
    sleep_s: float = 0.0  # an injected slow-down: sleep so long within every step, to see that the alarm works
    stamped: tuple[bool, ...] = (True,)  # whether a step has stamps, over and over. All have, but where their cost is measured
    traced_steps: int = 0  # to train after the measured ones, each with TensorFlow's full account of it
    streams: bool = False  # what an external command prints goes to the controller line by line, too
    stays: bool = False  # until it is sent away, though an external command may have ended: a ps, and who serves a chief
    grace_s: float = 0.0  # how long such a command may then go on before it is told to end
    checkpoint: str | None = None  # the chief saves the trained variables there (npz, by name)

    def to_json(self) -> dict[str, Any]:
        """Without what only a task with an own model is told."""
        return {name: value for name, value in super().to_json().items() if value is not None or name != "own"}

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def is_chief(self) -> bool:
        return self.job == "worker" and self.index == 0

    @property
    def lends_devices(self) -> bool:
        """Whether the chief's session computes on this worker, which has none of its own."""
        return self.spec.mode.single_session and self.job == "worker" and self.index > 0

    @property
    def workers(self) -> int:
        """How many worker tasks the run has."""
        return len(self.cluster["worker"]) if self.cluster else 1

    @property
    def is_between_hosts(self) -> bool:
        """Whether there are links between tasks."""
        return len({address.rpartition(":")[0] for addresses in self.cluster.values() for address in addresses}) > 1
