"""A bad record among good ones: in every engine of training or evaluation, the task that reads it names it."""

from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.inputs.shards import find_shards, iterate_records
from tests.training.conftest import RunTasks, orders_of
from tests.training.inputs.test_files import make_record

GARBAGE = b"\xff\xfe\0no \xc3 words"  # which TensorFlow quotes

# A spec's changes, and how many workers share its devices.
MODES: dict[str, tuple[dict[str, Any], int]] = {
    "parameter_server": ({}, 1),
    "distributed_all_reduce": ({"gpus": 2}, 2),
    "mirrored": ({"gpus": 2}, 1),
    "parameter_server_v2": ({"gpus": 2, "num_ps": 1, "cross_replica_sync": False}, 2),
}


@pytest.mark.campaign
@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("mode", MODES)
def test_bad_record_is_named(
    run_tasks: RunTasks, tiny: Spec, data_dirs: dict[str, str], tmp_path: Path, mode: str, part: str
) -> None:
    """The error names the record by file and byte, in the package's own message."""
    for name in ("train", "validation"):
        good = find_shards(Path(data_dirs["imagenet"]), name)[0]
        bad = make_record(GARBAGE) if name == part else b""
        (tmp_path / f"{name}-00000-of-00001").write_bytes(good.read_bytes() + bad)
    *_, last = iterate_records(tmp_path / f"{part}-00000-of-00001")
    changes, workers = MODES[mode]
    spec = tiny.replace(
        model="colours", data="imagenet", data_dir=str(tmp_path), variable_update=mode, batch_size=4, steps=4, evaluate=True,
        **changes,
    )  # fmt: skip
    with orders_of(spec, workers=workers) as orders:
        outcomes = run_tasks(orders)
    output = [event["reason"] for outcome in outcomes for event in outcome["events"] if event["kind"] == "failed"]
    record = f"{tmp_path}/{part}-00000-of-00001: the record at byte {last.offset}"
    assert [f"DataError: {record} is no tf.train.Example. Fetch or make the file again."] in output, outcomes
