"""What the plugin costs pytest: on runs that have nothing to do with it, in collecting, and in deciding.

ci/benchmarks            all benchmarks; nothing else should run on the machine meanwhile
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_dtfperf.baselines.compare import judge
from pytest_dtfperf.baselines.entry import Entry, Provenance
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.spec import Spec

PLUGIN = ("-p", "pytest_dtfperf.plugin.hooks")
PAIRS = 15


def run_pytest(folder: Path, *arguments: str) -> float:
    """Seconds of one pytest process, without any plugin that is not named."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def test_cost_on_a_foreign_run(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The ratio of a run of one empty test with the plugin loaded to the same run without it, in turns."""
    (tmp_path / "test_foreign.py").write_text("def test_foreign(): pass\n")
    run_pytest(tmp_path, *PLUGIN)  # compiles what is not compiled yet
    ratios = []

    def pair() -> None:
        without_s = run_pytest(tmp_path)
        ratios.append(run_pytest(tmp_path, *PLUGIN) / without_s)

    benchmark.pedantic(pair, rounds=PAIRS)
    benchmark.extra_info["ratio with / without"] = round(statistics.median(ratios), 3)


def test_collection_of_a_thousand_perf_tests(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The ratio of collecting 1,000 perf tests to collecting 1,000 tests of pytest's own parametrisation, in turns."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    counts = ",".join(str(n) for n in range(1, 1001))
    (tmp_path / "ours" / "test_perf.py").write_text("def test_x(train, gpus): ...\n")
    (tmp_path / "ours" / "clusters.toml").write_text('[local]\nbackend = "local"\ndevices_per_host = 1000\n')
    (tmp_path / "theirs" / "test_plain.py").write_text(
        "import pytest\n@pytest.mark.parametrize('gpus', range(1, 1001))\ndef test_x(gpus): ...\n"
    )
    ratios = []

    def pair() -> None:
        theirs_s = run_pytest(tmp_path, "--co", "theirs")
        ratios.append(run_pytest(tmp_path, *PLUGIN, "--co", f"--gpus={counts}", "ours") / theirs_s)

    benchmark.pedantic(pair, rounds=5)
    benchmark.extra_info["ratio ours / theirs"] = round(statistics.median(ratios), 3)


TRIVIAL = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_trivial(train, baseline, number):
    baseline.check(train(command=["sh", "-c", f"echo total images/sec: 100.0 of {{number}}"], num_ps=0, repeats=1))
"""


def trivial_tests(folder: Path, tests: int) -> None:
    (folder / "test_perf.py").write_text(TRIVIAL.format(tests=tests))
    (folder / "clusters.toml").write_text('[local]\nbackend = "local"\ndedicated = false\n')


def test_time_per_test_of_a_long_session(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The ratio of the last hundred of 2,000 tests of a trivial command to the first hundred, of their medians: at most 1.2."""
    trivial_tests(tmp_path, 2000)
    benchmark.pedantic(lambda: run_pytest(tmp_path, *PLUGIN, "--junitxml=times.xml"), rounds=1)
    cases = ET.parse(tmp_path / "times.xml").iter("testcase")
    each_s = [float(case.attrib["time"]) for case in cases]
    first_s, last_s = statistics.median(each_s[:100]), statistics.median(each_s[-100:])
    benchmark.extra_info["seconds of a test"] = f"{first_s:.3f} -> {last_s:.3f}"
    benchmark.extra_info["ratio last / first"] = round(last_s / first_s, 3)


def test_dry_run_of_two_thousand_tests(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """A dry run of 2,000 perf tests: at most 10 s, much of it pytest's own for as many skipped tests."""
    trivial_tests(tmp_path, 2000)
    benchmark.pedantic(lambda: run_pytest(tmp_path, *PLUGIN, "--dry-run"), rounds=3)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "test_plain.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(2000))\ndef test_x(n): pytest.skip('x')\n"
    )
    benchmark.extra_info["of which pytest's, s"] = round(run_pytest(tmp_path / "theirs"), 2)


def measurement(rate: float) -> Measurement:
    run = Run(
        images_per_sec=rate, elapsed_s=1.0, step_s={"worker:0": [0.01] * 100}, loss=[1.0] * 100, startup_s={}, bytes_sent=0,
        bytes_received=0, peak_rss_bytes={}, cpu_s={}, wall_s=1.0,
    )  # fmt: skip
    hardware = Hardware(cpu="AMD EPYC", cores=2, memory_gib=24)
    return Measurement(
        spec=Spec(model="trivial", batch_size=32),
        runs=[run] * 5,
        hosts=["n1"],
        fingerprint=Fingerprint(hardware=hardware),
    )


@pytest.mark.parametrize("count", [10_000])
def test_comparison(benchmark: BenchmarkFixture, count: int) -> None:
    """Judging 10,000 measurements of five runs against their baselines."""
    measured = [measurement(100 + i / count) for i in range(count)]
    entry = Entry.from_measurement(measured[0], Provenance(session="", test="", date="2026-01-01T00:00:00+00:00"))
    benchmark.pedantic(lambda: [judge(each, entry, ComparisonPolicy(margin=0.05)) for each in measured], rounds=3)


SAMPLES = """
import time
from pytest_dtfperf.node.host_state import HostState
host, used_s = HostState(), []
for _ in range(10):
    began_s = time.process_time()
    host.sample()
    used_s.append(time.process_time() - began_s)
print(min(used_s))
"""
SAMPLE_S = 0.005


def test_sample_of_a_host(benchmark: BenchmarkFixture) -> None:
    """CPU time of one sample of this host's state, as a share of the 5 ms that it may take: an agent takes some in each run."""
    used_s: list[float] = []

    def sample() -> None:
        used_s.append(
            float(subprocess.run([sys.executable, "-c", SAMPLES], stdout=subprocess.PIPE, text=True, check=True).stdout)
        )

    benchmark.pedantic(sample, rounds=3)
    benchmark.extra_info["share of 5 ms"] = round(min(used_s) / SAMPLE_S, 3)
    assert min(used_s) < SAMPLE_S
