"""Tests of real training on data in S3, which are pushed, brought to the hosts and read; results are uploaded."""

import json
from pathlib import Path

import pytest

from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records
from tests.real.imported import use_forks
from tests.s3 import NAME, S3, amazon, s3

__all__ = ["amazon", "s3"]  # fixtures

URL = f"s3://{NAME}/sets/digits"
CLUSTERS = f"""
[cloud]
backend = "local"
dedicated = false
hosts = 2
devices_per_host = 1
device = "cpu"
data = "{URL}"

[cloud.training]
repeats = 1
warmup_steps = 1
steps = 3
batch_size = 8
"""
TEST = """
import pytest

@pytest.mark.dtfperf(gpus=[2], num_ps=[1])
@pytest.mark.parametrize("data", ["synthetic", "mnist"])
def test_mnist(train, gpus, num_ps, data):
    assert train(model="lenet", gpus=gpus, num_ps=num_ps, data=data).images_per_sec > 0
"""


def test_mnist_is_read_from_s3(s3: S3, perf: PerfTests, tmp_path: Path) -> None:
    """Two hosts train on MNIST from S3 with each file fetched once, no output has a signed URL, and the session folder is
    pushed."""
    pytest.importorskip("sklearn", reason="the offline data set needs scikit-learn")
    from perf_tests.digits import FILES, make

    digits = make(tmp_path / "digits")
    (perf.folder / "perf" / "clusters.toml").write_text(use_forks(CLUSTERS))
    perf.write(TEST)

    def data(*arguments: str) -> None:
        ended = perf.run_python("-m", "pytest_dtfperf.cli", "data", *arguments)
        assert ended.code == 0, ended.out + ended.err

    data("push", str(digits), URL)
    ended = perf.run("--cluster=cloud")
    assert ended.code == 0, ended.out
    ended.line("2 passed")
    assert "X-Amz" not in ended.out + ended.err
    assert {name: s3.count_requests("GET", f"sets/digits/{name}") for name in FILES} == dict.fromkeys(FILES, 1)

    real, synthetic = sorted((record["spec"] for record in records(perf)), key=lambda spec: spec["data"])
    assert (real["data_dir"], synthetic["data_dir"]) == (URL, None)

    (session,) = (perf.folder / "perf_results").glob("*-*")
    data("push", str(session), f"s3://{NAME}/results/{session.name}")
    assert json.loads(s3.contents()[f"results/{session.name}/session.json"])["cluster"] == "cloud"


def test_missing_data_is_an_error(s3: S3, perf: PerfTests) -> None:
    """A missing data set is an error with advice, and not a failure, and a test without data passes."""
    (perf.folder / "perf" / "clusters.toml").write_text(
        CLUSTERS.replace("device =", 'entry = "tests.plugin.toy_training:run"\ndevice =')
    )
    perf.write(TEST)
    ended = perf.run("--cluster=cloud")
    assert ended.code == 1, ended.out
    ended.line("1 passed", "1 error")
    ended.line(f"there is nothing below {URL}. Push it with: dtfperf data push FOLDER {URL}")
