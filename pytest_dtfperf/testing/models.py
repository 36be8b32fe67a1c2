"""Check that a model fulfils the contract: a test module derives from `ModelContract` and names the model.

    class TestLinear(ModelContract):
        \"\"\"linear is a model as all others are.\"\"\"

        model = "linear"

TensorFlow trains it on this machine, for a few steps of a small batch.
"""

import math
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_dtfperf.session import Session, Settings
from pytest_dtfperf.spec import INPUTS, MODELS
from pytest_dtfperf.training.models import Network, make_default_network, make_network
from pytest_dtfperf.training.models.outline import compute_outline

STEPS, BATCH_SIZE = 3, 2


class ModelContract:
    """The tests of a model. Derive from it, and set `model`."""

    model: ClassVar[str]
    variable_updates: ClassVar[tuple[str, ...]] = ("parameter_server", "collective_all_reduce", "replicated")

    @pytest.fixture
    def network(self) -> Network:
        """Return the network at its own size."""
        return make_default_network(self.model)

    def test_its_name_is_free(self) -> None:
        """No row of pytest-dtfperf has its name, so that the name selects this one."""
        assert self.model in MODELS
        assert self.model not in MODELS.data

    def test_inputs_are_known(self) -> None:
        """All inputs of the model are known, and synthetic images are one of them."""
        assert not [data for data in MODELS[self.model].data if data not in INPUTS]
        assert "synthetic" in MODELS[self.model].data

    def test_counting_it_imports_no_tensorflow(self) -> None:
        """The variables and arithmetic of the model are counted without importing TensorFlow."""
        code = (
            "import os, sys; sys.path.append(os.getcwd()); from pytest_dtfperf.training.models.outline import multiply_adds; "
            f"multiply_adds({self.model!r}); sys.exit('tensorflow' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0

    def test_two_of_the_same_size_are_equal(self, network: Network) -> None:
        """Two networks of the same size are equal, and have the same hash."""
        again = make_default_network(self.model)
        assert (again, hash(again)) == (network, hash(network))

    def test_logits_are_one_number_per_class(self, network: Network) -> None:
        """The logits of an image are one number per class, and the names of the variables differ."""
        found = compute_outline(network)
        assert found.stages["logits"] == (network.classes,)
        names = [variable.name for variable in found.variables]
        assert found.trained_parameters > 0
        assert len(set(names)) == len(names)

    def test_it_takes_the_size_of_each_input(self) -> None:
        """The network is made for the image size and the classes of each input that defines them."""
        for data in MODELS[self.model].data:
            fixed = {"image_shape": INPUTS[data].image_shape, "classes": INPUTS[data].classes}
            network = make_network(self.model, **{name: value for name, value in fixed.items() if value is not None})
            assert compute_outline(network).stages["logits"] == (network.classes,)

    def test_it_trains(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It trains on up to two devices in each of `variable_updates`, with finite losses and a known hash of the graph."""
        monkeypatch.chdir(tmp_path)  # a folder without a clusters.toml
        with Session.open("local", settings=Settings(explain="never"), quiet=True) as session:  # no probe of the host
            for variable_update in self.variable_updates:
                gpus = min(2, session.cluster.devices or 2)
                sizes = {"gpus": gpus, "batch_size": BATCH_SIZE, "steps": STEPS, "warmup_steps": 1}
                measured = session.measure(session.spec(self.model, variable_update=variable_update, **sizes), repeats=1)
                (run,) = measured.measurement.runs
                assert len(run.loss) == STEPS
                assert all(math.isfinite(loss) for loss in run.loss)
                assert measured.measurement.fingerprint.program.graph
