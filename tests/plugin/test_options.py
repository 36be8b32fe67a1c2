"""The command line and its ini twins: read once, refused in one line."""

import os

import pytest

from tests.plugin.conftest import PerfTests

WRONG = {
    "--cluster=lokal": ("unknown cluster 'lokal'", "Did you mean 'local'?", "clusters.toml"),
    "--gpus=\u00b2": ("--gpus takes a whole number of at least 1, not '\u00b2'",),
    f"--gpus={'9' * 5000}": (f"--gpus takes a whole number of at least 1, not '{'9' * 60}'... (5000 characters)",),
    "--num-ps=\u00b2": ("--num-ps takes whole numbers, `best` or `sweep`, not '\u00b2'",),
    "--gpus=0": ("--gpus takes a whole number of at least 1, not '0'",),
    "--gpus=two": ("--gpus", "not 'two'"),
    "--num-ps=many": ("--num-ps", "`best` or `sweep`", "not 'many'"),
    "--variable-update=parameter_sever": ("--variable-update", "Did you mean 'parameter_server'?"),
    "--repeats=-1": ("--repeats", "not '-1'"),
    "--repeats=": ("--repeats", "not ''"),
    "--perf-results=": ("--perf-results takes a path, not ''",),
    "--update-baselines=some": ("--update-baselines takes `all` or `new`",),
    "--explain=sometimes": ("--explain takes `always`, `auto` or `never`, not 'sometimes'",),
    "--clusters-file=nowhere.toml": ("there is no cluster file nowhere.toml",),
    "--dtfperf-gpus=x": ("--dtfperf-gpus", "not 'x'"),
}


@pytest.mark.parametrize("option", WRONG, ids=lambda option: option[:40])
def test_wrong_option_is_one_line_and_exit_code_4(perf: PerfTests, option: str) -> None:
    """A wrong option ends pytest before anything is started, with one line that says what is allowed."""
    ended = perf.run(option)
    assert ended.code == 4
    assert [line for line in ended.err.splitlines() if line] == [ended.line("ERROR: ", *WRONG[option])]
    assert not (perf.folder / "perf_results").exists()


def test_broken_cluster_file_is_one_line(perf: PerfTests) -> None:
    """A key that clusters.toml may not have is refused with file, table and the nearest known key."""
    (perf.folder / "perf" / "clusters.toml").write_text('[local]\nbackend = "local"\ndevises_per_host = 2\n')
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: ", "clusters.toml: [local]", "Did you mean 'devices_per_host'?")


def test_broken_baseline_is_one_line(perf: PerfTests) -> None:
    """A baseline file that breaks its schema is refused before a test runs."""
    (perf.folder / "baselines").mkdir()
    (perf.folder / "baselines" / "mine.json").write_text('{"schema": 1, "system": "mine", "entrys": {}}')
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: ", "mine.json", "Did you mean 'entries'?")


@pytest.mark.parametrize("option", ["--allow-regression=", "--perf-results=", "--cluster=", "--ignore="])
def test_what_is_not_utf8_is_one_line(perf: PerfTests, option: str) -> None:
    """An argument of other bytes, which could not be written down, is refused before anything starts, shown as it is."""
    ended = perf.run(option + os.fsdecode(b"caf\xe9"))
    assert ended.code == 4
    assert [line for line in ended.err.splitlines() if line] == [
        ended.line("ERROR: the argument ", repr(f"{option}caf\udce9"), "is not UTF-8")
    ]


def test_wrong_slow_down_is_one_line(perf: PerfTests) -> None:
    """An injected slow-down that cannot be read is refused, not ignored."""
    ended = perf.run(DTFPERF_SLOWDOWN="worker1:0.2")
    assert ended.code == 4
    ended.line("ERROR: DTFPERF_SLOWDOWN takes tasks and seconds per step, as in worker:1=0.2")


@pytest.mark.parametrize(
    "file, text", [("pytest.ini", "[pytest]\ndtfperf_gpus = 1\n"), ("pytest.toml", '[pytest]\ndtfperf_gpus = "1"\n')]
)
def test_ini_twin_sets_a_default(perf: PerfTests, file: str, text: str) -> None:
    """An option's ini twin is its default, in ini and in TOML files; the command line goes first."""
    if file == "pytest.toml" and pytest.version_tuple < (9, 0):
        pytest.skip("pytest reads pytest.toml from 9.0 on")
    (perf.folder / "pytest.ini").unlink()
    (perf.folder / file).write_text(text)
    assert "2/2 tests" not in perf.run("--co", "-q").out
    assert "gpus1-ps1" in perf.run("--co", "-q").out
    assert "gpus2-ps1" not in perf.run("--co", "-q").out
    assert "gpus2-ps1" in perf.run("--co", "-q", "--gpus=2").out


def test_a_path_in_the_ini_file_begins_there(perf: PerfTests) -> None:
    """A path in the ini file means the same wherever pytest is started."""
    (perf.folder / "pytest.ini").rename(perf.folder / "perf" / "pytest.ini")
    (perf.folder / "perf" / "pytest.ini").write_text("[pytest]\ndtfperf_clusters_file = sub/lab.toml\ndtfperf_cluster = lab\n")
    (perf.folder / "perf" / "sub").mkdir()
    (perf.folder / "perf" / "sub" / "lab.toml").write_text('[lab]\nbackend = "local"\ndevice = "cpu"\n')
    perf.run("--co").line("dtfperf: cluster lab (local")


def test_wrong_ini_value_names_the_file(perf: PerfTests) -> None:
    """A wrong value in the ini file is refused with the file and the key."""
    (perf.folder / "pytest.ini").write_text("[pytest]\ndtfperf_repeats = often\n")
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: ", "pytest.ini: dtfperf_repeats", "not 'often'")


def test_another_plugins_option_keeps_its_name(perf: PerfTests) -> None:
    """Where another plugin has --cluster, ours is --dtfperf-cluster, and pytest starts."""
    (perf.folder / "other.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--cluster', default='theirs')\n"
    )
    environment = {"PYTHONPATH": f"{perf.folder}:{perf.environ()['PYTHONPATH']}"}
    ended = perf.run("-p", "other", "--co", "-q", "--cluster=theirs", "--dtfperf-cluster=local", **environment)
    assert ended.code == 0
    assert "gpus2-ps1-parameter_server" in ended.out


def test_wrong_marker_names_the_test(perf: PerfTests) -> None:
    """A marker argument that is none is refused at collection with the test's name and the nearest known argument."""
    perf.write("import pytest\n@pytest.mark.dtfperf(margn=0.1)\ndef test_x(train): ...\n")
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: perf/test_perf.py::test_x", "Did you mean 'margin'?")


def test_thresholds_of_an_unknown_system_are_refused(perf: PerfTests) -> None:
    """A name in clusters.toml that no baseline file bears is refused before anything trains, with the nearest one."""
    table = '[local]\nbackend = "local"\nthresholds = "piz-dain"\n'
    (perf.folder / "perf" / "clusters.toml").write_text(table)
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: ", "clusters.toml: [local] thresholds: unknown system 'piz-dain'", "Did you mean 'piz-daint'?")
