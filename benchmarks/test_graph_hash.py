"""What it costs to tell who trained: the hash of a worker's graph, beside the building of that graph."""

import json
import subprocess
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

# Builds the graph of one worker, which takes seconds, and then hashes it as a task does at its end.
PROGRAM = """
import json, sys, time
import tensorflow as tf
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.devices import get_devices
from pytest_dtfperf.training.graph_hash import describe_computation
from pytest_dtfperf.training.replica import build

order = TaskOrder(run="x", job="worker", index=0, spec=Spec(model=sys.argv[1], batch_size=8), cluster={})
with tf.Graph().as_default() as graph:
    began = time.perf_counter()
    replica = build(order, get_devices(order))
    built_s = time.perf_counter() - began
fetches = [replica.loss.op.name, *(update.name for update in replica.updates)]
hashed_s = []
for _ in range(5):
    began = time.perf_counter()
    found = describe_computation(graph.as_graph_def(), fetches)
    hashed_s.append(time.perf_counter() - began)
print(json.dumps({"built_s": built_s, "hashed_s": min(hashed_s), "operations": sum(found.operations.values())}))
"""


@pytest.mark.parametrize("model", ["inception3", "resnet50"])
def test_hash_beside_building(benchmark: BenchmarkFixture, model: str) -> None:
    """Seconds to hash the graph of a step, and which part that is of the seconds to build it."""

    def run() -> dict[str, float]:
        done = subprocess.run([sys.executable, "-c", PROGRAM, model], capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found

    found = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info |= {**found, "ratio to building": round(found["hashed_s"] / found["built_s"], 3)}
