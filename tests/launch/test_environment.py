"""Tests of the environment that a spec requires of its tasks."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, place
from pytest_dtfperf.launch import agents
from pytest_dtfperf.spec import Spec
from tests.launch.stage import CONFIG, start_stage
from tests.node.handheld import HandheldAgent

HOST = HostView("h", "10.0.0.1", cpus=tuple(range(8)))


def make_start_order(**changes: Any) -> dict[str, Any]:
    """Make the order to start a run with these changes of a spec."""
    spec = Spec(model="trivial", batch_size=32, gpus=2, num_ps=1, **changes)
    tasks = place(spec, [HOST], ClusterConfig(name="environment"))
    return agents.start_order(
        tasks, [HOST], run="r", spec=spec, cluster={}, injected_slowdowns={}, checkpoint=None, cold=False, isolated=True
    )


def test_variables_are_set_before_tensorflow_is_imported(tmp_path: Path) -> None:
    """Without oneDNN a convolution is TensorFlow's own operation, the environment is set before the import, and all cores are
    used."""
    config = dataclasses.replace(CONFIG, entry="tests.launch.recording_training:run", start="cold")
    with start_stage(tmp_path, config) as stage:
        stage.run(gpus=1, num_ps=0, steps=1, onednn=False, environment=("TF_CPP_MIN_LOG_LEVEL=1",), cpu_affinity=False)
    used = json.loads((tmp_path / "used.json").read_text())
    assert "Conv2D" in used["operations"]
    assert not [operation for operation in used["operations"] if "Mkl" in operation]
    assert used["imported at"] == "1"
    assert used["cores"] == len(os.sched_getaffinity(0))


def test_variables_of_tensorflow_need_a_cold_start() -> None:
    """Variables of NCCL reach forked tasks, variables of TensorFlow need a cold start, and only the order of GPUs is set by
    default."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert (make_start_order()["env"], make_start_order()["cold"]) == (order, False)
    nccl = make_start_order(environment=("NCCL_ALGO=Ring", "NCCL_DEBUG=a=b"))
    assert (nccl["env"], nccl["cold"]) == ({"NCCL_ALGO": "Ring", "NCCL_DEBUG": "a=b", **order}, False)
    assert make_start_order(environment=("NCCL_ALGO=Ring", "OMP_NUM_THREADS=2"))["cold"]
    for onednn, value in ((True, "1"), (False, "0")):
        start_order = make_start_order(onednn=onednn)
        assert (start_order["env"], start_order["cold"]) == ({"TF_ENABLE_ONEDNN_OPTS": value, **order}, True)


def test_tasks_keep_to_their_cores_by_default() -> None:
    """Each worker has half of the cores and the server those of both. Without affinity all have all, and as many threads."""
    kept, free = make_start_order(), make_start_order(cpu_affinity=False)
    assert [task["cpus"] for task in kept["tasks"]] == [[], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert [task["cpus"] for task in free["tasks"]] == [[], [], []]
    assert [task["order"]["threads"] for task in free["tasks"]] == [task["order"]["threads"] for task in kept["tasks"]]


def test_common_environment_reaches_every_task() -> None:
    """The common environment of an order reaches each task, beside the task's own variables."""
    with HandheldAgent() as agent:
        for cold in (False, True):
            tasks = [
                {"host": 0, "task": task, "order": {"job": "worker", "index": at}, "env": {"TOY": task}, "cpus": []}
                for at, task in enumerate(("worker:0", "worker:1"))
            ]
            script = {"at": "start", "do": "show"}
            agent.order("start", run=f"{cold}", cold=cold, env={"FOR_ALL": "7"}, common={"script": script}, tasks=tasks)
            shown = [agent.expect("task", kind="shown", run=f"{cold}")["env"] for _ in tasks]
            assert sorted(env["TOY"] for env in shown) == ["worker:0", "worker:1"]
            assert [env["FOR_ALL"] for env in shown] == ["7", "7"]
            agent.order("stop", run=f"{cold}")
            agent.expect("stopped")
