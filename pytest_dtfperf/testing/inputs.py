"""Check that an input fulfils the contract: a test module derives from `InputContract` and names the input and its model.

    class TestStripes(InputContract):
        \"\"\"stripes is an input as all others are.\"\"\"

        data, model = "stripes", "lenet"

TensorFlow runs the input on this machine, alone and in training.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_dtfperf.node.module_command import make_project_command
from pytest_dtfperf.session import Session, Settings
from pytest_dtfperf.spec import INPUTS
from pytest_dtfperf.training.models import get_network

STEPS, BATCH_SIZE = 3, 4


class InputContract:
    """The tests of an input. Derive from it, and set `data`, `model`, and `data_dir` where it needs one."""

    data: ClassVar[str]
    model: ClassVar[str]
    data_dir: ClassVar[str | None] = None

    @pytest.fixture(autouse=True)
    def working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run each test in a folder without a clusters.toml."""
        monkeypatch.chdir(tmp_path)

    def build_settings(self) -> dict[str, Any]:
        found = {"data": self.data, "batch_size": BATCH_SIZE, "steps": STEPS, "warmup_steps": 1}
        return found | ({"data_dir": self.data_dir} if self.data_dir else {})

    def test_its_name_is_free(self) -> None:
        """No row of pytest-dtfperf has its name, so that the name selects this one."""
        assert self.data in INPUTS
        assert self.data not in INPUTS.data

    def test_batches(self) -> None:
        """Images are float32 in the requested format and size. Labels are int32 and classes of the network."""
        with Session.open("local", quiet=True) as session:
            specs = [
                session.spec(self.model, data_format=data_format, **self.build_settings()) for data_format in ("NHWC", "NCHW")
            ]
        program = make_project_command(sys.executable, "pytest_dtfperf.testing.fed")
        asked = json.dumps([spec.to_json() for spec in specs])
        done = subprocess.run(program, input=asked, stdout=subprocess.PIPE, text=True, check=True)
        network = get_network(specs[0])
        height, width, channels = network.image_shape
        for shape, batches in zip([(height, width, channels), (channels, height, width)], json.loads(done.stdout), strict=True):
            for batch in batches:
                least, most = batch.pop("labels")
                assert batch == {
                    "images": [[BATCH_SIZE, *shape], "float32"],
                    "finite": True,
                    "labels_of": [[BATCH_SIZE], "int32"],
                }
                assert 0 <= least <= most < network.classes

    def test_it_feeds_training(self) -> None:
        """It feeds a training on up to two devices, and the losses are finite."""
        with Session.open("local", settings=Settings(explain="never"), quiet=True) as session:  # no probe of the host
            spec = session.spec(self.model, gpus=min(2, session.cluster.devices or 2), **self.build_settings())
            (run,) = session.measure(spec, repeats=1).measurement.runs
        assert len(run.loss) == STEPS
        assert all(math.isfinite(loss) for loss in run.loss)
