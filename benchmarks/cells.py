"""What is trained side by side: models at sizes that suit a CPU, over the ways of distributing them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, PlacedTask, place
from pytest_dtfperf.spec import MODELS, VARIABLE_UPDATES, Spec

WARMUP_STEPS = 3  # the first step builds and allocates, the heap still grows in the second


@dataclass(frozen=True)
class Size:
    """How much of a model is trained at a time."""

    batch_size: int  # images per device and step
    steps: int  # so many that they take ten seconds to a minute on two cores


@dataclass(frozen=True)
class Cell:
    """One way of distributing a training over this machine."""

    gpus: int  # devices, each an equal share of the cores
    num_ps: int
    variable_update: str

    @property
    def is_distributed(self) -> bool:
        return self.gpus > 1


# tf_cnn_benchmarks' own batch sizes are for GPUs: its AlexNet trains on 512 images at a time.
SIZES: Mapping[str, Size] = {
    "alexnet": Size(batch_size=32, steps=12),
    "resnet50": Size(batch_size=8, steps=8),
    "inception3": Size(batch_size=8, steps=6),
    "vgg16": Size(batch_size=4, steps=4),  # 138 million parameters: every copy of them takes 0.55 GB
    "trivial": Size(batch_size=32, steps=60),
}

CELLS: Mapping[str, Cell] = {
    "one_process": Cell(gpus=1, num_ps=0, variable_update="parameter_server"),
    "parameter_server": Cell(gpus=2, num_ps=1, variable_update="parameter_server"),
    "distributed_replicated": Cell(gpus=2, num_ps=2, variable_update="distributed_replicated"),
    "replicated": Cell(gpus=2, num_ps=0, variable_update="replicated"),  # two logical devices of one process
    "collective_all_reduce": Cell(gpus=2, num_ps=0, variable_update="collective_all_reduce"),
}


def explain_missing(model: str, cell: Cell) -> str | None:
    """Why this package cannot train that; None where it can."""
    known = {"model": (model, MODELS), "variable_update": (cell.variable_update, VARIABLE_UPDATES)}
    lacking = [f"{kind}={name}" for kind, (name, names) in known.items() if name not in names]
    return f"missing: this package does not know {' and '.join(lacking)}" if lacking else None


def cluster_of(spec: Spec) -> ClusterConfig:
    """This machine, whose cores the devices share evenly."""
    return ClusterConfig(name="local", device="cpu", devices_per_host=spec.gpus)


def tasks_of(spec: Spec, cpus: tuple[int, ...]) -> tuple[PlacedTask, ...]:
    """The tasks as this package starts them, so that the other program is given as many, with as many threads each."""
    return place(spec, [HostView("localhost", "127.0.0.1", cpus=cpus)], cluster_of(spec))
