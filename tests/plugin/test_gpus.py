"""Tests of this machine's GPUs as nvidia-smi lists them: a dry run, a run, the doctor and `init`."""

import json
import os
from pathlib import Path

import pytest

from tests.doctor.interpreters import make_interpreter
from tests.node.stand_in_smi import MISMATCH, UNKNOWN, gpu, write_smi
from tests.plugin.conftest import CLUSTERS, PerfTests

TEST = "def test_x(train, baseline): baseline.check(train(model='trivial', gpus=1, num_ps=0))\n"


@pytest.fixture
def gpu_tests(perf: PerfTests) -> PerfTests:
    """Return perf tests on a machine that may have GPUs, with a clusters.toml without a device."""
    clusters = "\n".join(line for line in CLUSTERS.splitlines() if not line.startswith("device"))
    (perf.folder / "perf" / "clusters.toml").write_text(clusters)
    perf.write(TEST)
    perf.environment.pop("CUDA_VISIBLE_DEVICES", None)
    return perf


def path_with(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("failure", [(18, MISMATCH), (255, UNKNOWN), (4, "Insufficient Permissions\n")], ids=["18", "255", "4"])
def test_failing_nvidia_smi_ends_all_commands(gpu_tests: PerfTests, tmp_path: Path, failure: tuple[int, str]) -> None:
    """A dry run, a run, the doctor and `init` end with a line that quotes nvidia-smi, and nothing is measured."""
    write_smi(tmp_path, failure=failure)
    words = f"nvidia-smi ended with exit code {failure[0]}, and printed {' '.join(failure[1].split())!r}"
    for options in (["--dry-run"], []):
        ended = gpu_tests.run("--cluster=local", *options, PATH=path_with(tmp_path))
        assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.out
        assert words in ended.err
    doctor = gpu_tests.run_python("-m", "pytest_dtfperf.cli", "doctor", "--cluster=local", PATH=path_with(tmp_path))
    assert (doctor.code, words in doctor.err) == (2, True)
    begun = gpu_tests.run_python("-m", "pytest_dtfperf.cli", "init", str(tmp_path / "mine"), PATH=path_with(tmp_path))
    assert (begun.code, words in begun.err) == (2, True)
    assert not (gpu_tests.folder / "perf_results").exists()


def test_cpu_device_ignores_a_failing_nvidia_smi(gpu_tests: PerfTests, tmp_path: Path) -> None:
    """With device = "cpu" a session trains on cores though nvidia-smi fails."""
    write_smi(tmp_path, failure=(18, MISMATCH))
    (gpu_tests.folder / "perf" / "clusters.toml").write_text(CLUSTERS)
    ended = gpu_tests.run("--cluster=local", PATH=path_with(tmp_path))
    assert ended.code == 0, ended.out
    ended.line("dtfperf: cluster local (local, 2 cpu devices)")


def test_dry_run_run_and_doctor_count_the_same_gpus(gpu_tests: PerfTests, tmp_path: Path) -> None:
    """A dry run, a run and the doctor have the same number of devices, of which one is a part of a GPU (MIG)."""
    write_smi(tmp_path, [gpu("GPU-a", [("3g.20gb", "MIG-a"), ("3g.20gb", "MIG-b")]), gpu("GPU-b")])
    environment = {"PATH": path_with(tmp_path), "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
    planned = gpu_tests.run("--cluster=local", "--dry-run", **environment)
    planned.line("cluster local (local, 2 gpu devices)")
    measured = gpu_tests.run("--cluster=local", **environment)
    assert measured.code == 0, measured.out
    (file,) = (gpu_tests.folder / "perf_results").glob("*/measurements.jsonl")
    record = json.loads(file.read_text().splitlines()[-1])
    assert [each["name"] for each in record["fingerprint"]["hardware"]["gpus"]] == [
        "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    ]  # fmt: skip
    clusters = gpu_tests.folder / "perf" / "clusters.toml"  # the doctor imports TensorFlow, which takes seconds
    python = make_interpreter(tmp_path / "venv", gpus=2)
    clusters.write_text(clusters.read_text().replace("[local]", f'[local]\npython = "{python}"'))
    words = ("doctor", "--cluster=local", "--clusters-file=perf/clusters.toml", "--json")
    seen = gpu_tests.run_python("-m", "pytest_dtfperf.cli", *words, **environment)
    (host,) = json.loads(seen.out)["hosts"]
    assert (len(host["gpus"]), host["tensorflow"]) == (2, "2.21.0")
