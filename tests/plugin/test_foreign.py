"""Tests of a pytest run without perf tests, on which the installed plugin has no effect."""

import json
import textwrap

import pytest

from tests.plugin.conftest import Ended, PerfTests, whole_tests_in

# Notes what pytest does from the moment plugins are loaded; an audit hook sees every import, file and process.
SPY = """
import atexit, json, sys

HEAVY = {"tensorflow", "pandas", "matplotlib", "boto3", "numpy", "rich", "jsonschema", "filelock", "tomllib"}
seen = {"processes": [], "files": []}

def watch(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn"):
        seen["processes"].append(str(arguments))
    if event == "open" and str(arguments[0]).endswith((".toml", ".json", ".lock")):
        seen["files"].append(str(arguments[0]))

sys.addaudithook(watch)

def pytest_unconfigure(config):
    seen["modules"] = sorted(HEAVY & set(sys.modules))
    seen["ours"] = sorted(name for name in sys.modules if name.startswith("pytest_dtfperf"))
    json.dump(seen, open("seen.txt", "w"))
"""


@pytest.fixture(scope="module")
def foreign_tests(tmp_path_factory: pytest.TempPathFactory) -> PerfTests:
    """What a run of a foreign test did is in the folder, in seen.txt. What is imported when can be seen in a new Python."""
    tests = whole_tests_in(tmp_path_factory.mktemp("foreign"))
    (tests.folder / "perf" / "clusters.toml").unlink()
    (tests.folder / "pytest.ini").write_text("[pytest]\n")
    tests.write("def test_foreign(): pass\n")
    ended = run_with_spy(tests, SPY)
    assert ended.code == 0, ended.out + ended.err
    return tests


def run_with_spy(tests: PerfTests, spy: str, *arguments: str) -> Ended:
    (tests.folder / "spy.py").write_text(textwrap.dedent(spy))
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{tests.folder}:{tests.environ()['PYTHONPATH']}"}
    return tests.run("-p", "spy", "-p", "pytest_dtfperf.plugin.hooks", *arguments, **alone)


def read_observations(tests: PerfTests) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((tests.folder / "seen.txt").read_text())
    return found


def test_foreign_run_imports_starts_and_reads_nothing(foreign_tests: PerfTests) -> None:
    """A run without perf tests imports no heavy module, starts no process, opens no TOML, JSON or lock file, and leaves no
    folder."""
    assert read_observations(foreign_tests)["modules"] == []
    assert read_observations(foreign_tests)["processes"] == []
    assert read_observations(foreign_tests)["files"] == []
    assert not (foreign_tests.folder / "perf_results").exists()


def test_foreign_run_loads_few_modules(foreign_tests: PerfTests) -> None:
    """Of the package itself only the hooks and what they read options with are loaded."""
    assert read_observations(foreign_tests)["ours"] == [
        "pytest_dtfperf",
        "pytest_dtfperf.baselines",
        "pytest_dtfperf.baselines.verdict",
        "pytest_dtfperf.codec",
        "pytest_dtfperf.errors",
        "pytest_dtfperf.extensions",
        "pytest_dtfperf.formats",
        "pytest_dtfperf.node",
        "pytest_dtfperf.node.files",
        "pytest_dtfperf.plugin",
        "pytest_dtfperf.plugin.hooks",
        "pytest_dtfperf.plugin.hookspecs",
        "pytest_dtfperf.plugin.options",
        "pytest_dtfperf.plugin.outcome",
        "pytest_dtfperf.plugin.parametrise",
        "pytest_dtfperf.plugin.plugin_state",
        "pytest_dtfperf.plugin.xdist",
        "pytest_dtfperf.row_enum",
        "pytest_dtfperf.session",
        "pytest_dtfperf.session.settings",
        "pytest_dtfperf.spec",
        "pytest_dtfperf.spec.tables",
    ]


def test_collection_works_offline(perf: PerfTests) -> None:
    """--co lists perf tests without starting a process, or touching a network or the cluster."""
    perf.cold, perf.draws = True, True
    ended = run_with_spy(perf, SPY.replace('"subprocess.Popen"', '"socket.connect", "subprocess.Popen"'), "--co", "-q")
    assert "gpus2-ps1-parameter_server" in ended.out
    assert read_observations(perf)["processes"] == []
    assert "tensorflow" not in read_observations(perf)["modules"]
    assert not (perf.folder / "perf_results").exists()
