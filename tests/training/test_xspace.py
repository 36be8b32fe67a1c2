"""TensorFlow's profile of a process as operations that ran: planes, lines and events as TensorFlow 2.21 writes them.

Those of GPUs are made by hand from the source of its CUPTI collector: no GPU has been at hand.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dtfperf.traces import KERNEL, XLA_MODULE
from pytest_dtfperf.training import xspace
from pytest_dtfperf.training.xspace import Profile

BEGAN_NS = 1_795_417_405_000_000_000
BEGAN_US = BEGAN_NS // 1000
HERE, THERE = "/job:worker/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"


class Stat(SimpleNamespace):
    def WhichOneof(self, _: str) -> str:
        return str(self.which)


class Plane:
    """`lines`: name -> events as (name, start in us, how long in us, statistics)."""

    def __init__(self, name: str, lines: Mapping[str, list[tuple[Any, ...]]], **stats: Any) -> None:
        self.name = name
        self.event_metadata: dict[int, Any] = {}
        self.stat_metadata: dict[int, Any] = {}
        self.stats = self._stats(stats)
        self.lines = [
            SimpleNamespace(name=line, timestamp_ns=3000, events=[self._event(*event) for event in events])
            for line, events in lines.items()
        ]

    def _event(self, name: str, start: int, lasts: int, stats: Mapping[str, Any] | None = None) -> Any:
        number = len(self.event_metadata)
        self.event_metadata[number] = SimpleNamespace(name=name, stats=[])
        values = {"metadata_id": number, "offset_ps": (start - 3) * 10**6, "duration_ps": lasts * 10**6}
        return SimpleNamespace(**values, stats=self._stats(stats or {}))

    def _stats(self, stats: Mapping[str, Any]) -> list[Stat]:
        return [self._stat(name, value) for name, value in stats.items()]

    def _stat(self, name: str, value: Any) -> Stat:
        """Every second text is a reference, as TensorFlow has them."""
        which = "str_value" if isinstance(value, str) else "uint64_value"
        if which == "str_value" and len(self.stat_metadata) % 2:
            which, value = "ref_value", self._add_name(value)
        return Stat(metadata_id=self._add_name(name), which=which, **{which: value})

    def _add_name(self, name: str) -> int:
        self.stat_metadata[len(self.stat_metadata)] = SimpleNamespace(name=name)
        return len(self.stat_metadata) - 1


def profile(*planes: Plane, **host: list[tuple[Any, ...]]) -> Profile:
    """Return a profile of worker:1."""
    environment = Plane("Task Environment", {}, profile_start_time=BEGAN_NS)
    return Profile(SimpleNamespace(planes=[Plane("/host:CPU", host), *planes, environment]), "worker:1")


def list_activities(profile: Profile) -> list[tuple[str, str, str, int, int]]:
    """Microseconds since the profile began."""
    found = profile.activities()
    return [(*each.operation[:3], each.start_us - BEGAN_US, each.end_us - BEGAN_US) for each in found]


def test_operations_are_distinguished_from_runtime_events() -> None:
    """Operations have a name and a kind, on any thread; the eager runtime's and the executor's own events are left out."""
    found = profile(
        python=[("EagerLocalExecute: Identity", 0, 50), ("FunctionRun", 1, 5)],
        tf_Compute=[
            ("ExecutorState::Process", 5, 40),
            ("replica_1/tower1/Relu_1:_MklNativeFusedConv2D", 10, 5),
            ("EagerService:Enqueue", 6, 3),
        ],
        tf_data_iterator_get_next=[("IteratorGetNextOp::DoCompute", 4, 2), ("Iterator::Root::Prefetch", 4, 1)],
    )
    assert list_activities(found) == [
        ("IteratorGetNext", "IteratorGetNext", "worker:1/CPU:0", 4, 6),
        ("replica_1/tower1/Relu_1", "_MklNativeFusedConv2D", "worker:1/CPU:0", 10, 15),
    ]


def test_receive_lasts_from_request_to_arrival() -> None:
    """Two events of the executor, on two threads, are one receive per step; a receive without an end is omitted."""

    def note(word: str, at: int, step: int, name: str = "tower0/Read/ReadVariableOp/_8") -> tuple[Any, ...]:
        return f"ExecutorState::ProcessAsync::{word}", at, 1, {"name": name, "kernel_type": "_Recv", "step_id": step}

    found = profile(
        tf_Compute=[note("Start", 10, 1), note("Start", 30, 2), note("Start", 31, 2, "tower0/never/_9")],
        tf_GrpcWorkerEnvQueues=[note("Done", 22, 1), note("Done", 33, 2)],
    )
    assert [each[3:] for each in list_activities(found)] == [(10, 22), (30, 33)]


def test_transfers_within_a_task_are_omitted() -> None:
    """Transfers between devices of one process are neither sends nor receives."""
    start = ("ExecutorState::ProcessAsync::Start", 1, 1, {"name": "loss/_12", "kernel_type": "_Recv", "step_id": 1})
    done = ("ExecutorState::ProcessAsync::Done", 9, 1, {"name": "loss/_12", "kernel_type": "_Recv", "step_id": 1})
    handed = ("loss/_11:_Send", 7, 1, {"key": f"{HERE};75d4;{HERE[:-1]}1;edge;0:0"})
    sent = ("gradient/_21:_Send", 11, 4, {"key": f"{HERE};75d4;{THERE};edge;0:0"})
    assert [each[0] for each in list_activities(profile(tf_Compute=[start, done, handed, sent]))] == ["gradient/_21"]


def test_instructions_of_one_module_are_one_run_of_it() -> None:
    """XLA's instructions of one module are one run with the module's name; another run begins after a gap."""
    module = {"hlo_module": "a_inference_update_593__.1", "hlo_op": "fusion"}
    found = profile(tf_Compute=[("copy.2", 10, 5, module), ("fusion", 16, 4, module), ("fusion", 500, 5, module)])
    (name, kind, _, *first), (_, _, _, *second) = list_activities(found)
    assert (name, kind) == ("a_inference_update_593__.1", XLA_MODULE)
    assert (first, second) == ([10, 20], [500, 505])


def test_streams_of_a_gpu_time_its_operations() -> None:
    """Kernels time the operations that launched them; copies and exchanges have their own names."""
    streams: dict[str, list[tuple[Any, ...]]] = {
        "Stream #13(Compute)": [
            ("void cutlass::conv", 40, 20, {"tf_op": "tower0/Relu:Conv2D"}),
            ("odd_kernel", 70, 5),
            ("loop_fusion", 80, 6, {"hlo_module": "cluster_0", "tf_op": "cluster_0_1:_XlaRun"}),
        ],
        "Stream #14(MemcpyH2D)": [("MemcpyH2D", 30, 6, {"tf_op": "tower0/split:Split"})],
        "Stream #21(Compute)": [
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 90, 9, {"tf_op": "CollectiveReduceV2:CollectiveReduceV2"})
        ],
        "TensorFlow Ops": [("tower0/Relu", 40, 20)],
    }
    found = profile(Plane("/device:GPU:0", streams), tf_Compute=[("tower0/Relu:Conv2D", 10, 2), ("concat:ConcatV2", 3, 2)])
    assert list_activities(found) == [
        ("concat", "ConcatV2", "worker:1/CPU:0", 3, 5),
        ("tower0/split", "MemcpyH2D", "worker:1/GPU:0", 30, 36),
        ("tower0/Relu", "Conv2D", "worker:1/GPU:0", 40, 60),
        ("odd_kernel", KERNEL, "worker:1/GPU:0", 70, 75),
        ("cluster_0", XLA_MODULE, "worker:1/GPU:0", 80, 86),
        ("CollectiveReduceV2", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "worker:1/GPU:0", 90, 99),
    ]


def test_batches_of_a_coordinator_are_functions_that_run() -> None:
    """Each is from begin to end one run of the coordinator's function, on whichever thread; other functions are none."""
    found = profile(
        tf_Compute=[("EagerLocalExecute: __inference__train_303", 100, 50), ("EagerLocalExecute: __inference_other_1", 1, 9)],
        tf_Compute_2=[("EagerLocalExecute: __inference__train_303", 10, 60)],
    )
    assert [(start - BEGAN_US, end - BEGAN_US) for start, end in found.batches()] == [(10, 70), (100, 150)]


def test_too_large_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile with too many events is refused before any event is read."""
    monkeypatch.setattr(xspace, "MOST_EVENTS", 1)
    with pytest.raises(ValueError, match="the profile has 2 events, 1 can be used"):
        profile(tf_Compute=[("a:B", 1, 1), ("b:B", 1, 1)])
