"""Installing the plugin breaks no other project: another plugin keeps any name that it registers, at any time."""

import os
from pathlib import Path

import pytest

from pytest_dtfperf.plugin.options import OPTIONS, GivenOption, read_arguments
from tests.plugin.conftest import CLUSTERS, PerfTests

WANTS = "def pytest_addoption(parser): parser.addoption('--gpus', type=int, default=0, help='of theirs')\n"
REPORTS = "def test_it(request): print('theirs:', request.config.getoption('--gpus'))\n"

# Where a project may say that it wants `--gpus`: file, further arguments, variables.
COMERS = {
    "a plugin before us": ("other.py", ["-p", "other"], {}),
    "a plugin after us": ("other.py", [], {"PYTEST_PLUGINS": "other"}),
    "the conftest of the root": ("conftest.py", [], {}),
    "the conftest beside the tests": ("perf/conftest.py", [], {}),
}


@pytest.fixture
def project(perf: PerfTests) -> PerfTests:
    """A project that has nothing to do with us."""
    (perf.folder / "pytest.ini").write_text("[pytest]\n")
    (perf.folder / "perf" / "clusters.toml").unlink()
    perf.environment["PYTHONPATH"] = os.pathsep.join([str(perf.folder), perf.environ()["PYTHONPATH"]])
    perf.write(REPORTS)
    return perf


@pytest.mark.parametrize("comer", COMERS)
def test_an_option_is_theirs_who_want_it(project: PerfTests, comer: str) -> None:
    """A plugin that registers `--gpus`, earlier or later, has it; this one has `--dtfperf-gpus` then, which help shows."""
    file, arguments, environment = COMERS[comer]
    (project.folder / file).write_text(WANTS)
    ended = project.run("-s", "--gpus=3", "--dtfperf-gpus=1", *arguments, **environment)
    assert ended.code == 0, ended.out + ended.err
    ended.line("theirs: 3")
    helped = project.run("--help", *arguments, **environment)
    assert helped.line("--gpus").split() == ["--gpus=GPUS", "of", "theirs"]
    helped.line("--dtfperf-gpus=N,..")
    helped.line("--cluster=NAME")


def test_a_conftest_that_is_found_while_tests_are_collected_has_its_option(project: PerfTests) -> None:
    """A conftest that pytest comes across late registers its option as it would without us."""
    deep = project.folder / "perf" / "deep"
    deep.mkdir()
    (deep / "conftest.py").write_text(WANTS)
    (project.folder / "perf" / "test_perf.py").rename(deep / "test_deep.py")
    ended = project.run("-s")
    assert ended.code == 0, ended.out + ended.err
    ended.line("theirs: 0")


def test_fixtures_and_files_of_others_make_no_perf_tests(project: PerfTests) -> None:
    """A test with a `cluster`, `train` or `gpus` of its own, beside another program's clusters.toml, is none of our affair."""
    (project.folder / "perf" / "clusters.toml").write_text("[[farm]]\nnodes = 3\n")
    project.write(
        "import pytest\n"
        "@pytest.fixture\ndef cluster(): return 'farm'\n"
        "@pytest.fixture\ndef train(cluster): return cluster + ' and train'\n"
        "@pytest.mark.parametrize('gpus', [1, 2])\ndef test_it(train, gpus): assert train == 'farm and train'\n"
        "@pytest.mark.parametrize('baseline', [1])\ndef test_that(baseline): assert baseline == 1\n"
    )
    ended = project.run("-v")
    assert ended.code == 0, ended.out + ended.err
    ended.line("3 passed")
    assert "dtfperf: cluster" not in ended.out


def test_a_fixture_that_extends_ours_makes_a_perf_test(perf: PerfTests) -> None:
    """A project may give our fixture more to do: its tests are perf tests all the same."""
    perf.write(
        "import pytest\n@pytest.fixture\ndef train(train): return train\n"
        "def test_it(train, gpus): train(model='trivial', gpus=gpus)\n"
    )
    ended = perf.run("--co", "-q")
    ended.line("test_it[gpus2]")


def test_a_broken_cluster_file_is_one_line_where_there_are_perf_tests(perf: PerfTests) -> None:
    """An invalid file is reported only when a perf test needs it; also under xdist."""
    (perf.folder / "perf" / "clusters.toml").write_text("[[farm]]\nnodes = 3\n")
    for arguments in ((), ("-n2",)):
        ended = perf.run(*arguments)
        assert ended.code == 4
        assert [line for line in ended.err.splitlines() if line] == [ended.line("ERROR: ", "clusters.toml: [farm]")]
        assert "INTERNALERROR" not in ended.out


def test_a_broken_cluster_file_is_one_line_for_a_class_of_unittest(perf: PerfTests) -> None:
    """Tests that pytest does not parametrise show the same line."""
    (perf.folder / "pytest.ini").write_text("[pytest]\n")
    (perf.folder / "perf" / "clusters.toml").write_text("[[farm]]\nnodes = 3\n")
    perf.write(
        "import pytest, unittest\nclass TestIt(unittest.TestCase):\n"
        "    @pytest.fixture(autouse=True)\n    def trains(self, train): self.train = train\n"
        "    def test_it(self): pass\n"
    )
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: ", "clusters.toml: [farm] must be a table")
    assert "INTERNALERROR" not in ended.out


@pytest.mark.parametrize(
    "file, arguments",
    [
        ("lib/shipped/clusters.toml", []),
        ("clusters.toml", []),
        ("project/clusters.toml", ["-c", "project/pytest.ini"]),
        ("project/perf_tests/clusters.toml", ["--rootdir=project"]),
    ],
    ids=["in the package", "in the current folder", "beside the configuration", "in the root directory"],
)
def test_tests_of_a_package_have_a_cluster_file(perf: PerfTests, file: str, arguments: list[str]) -> None:
    """`--pyargs` takes the file of the package, else of the current folder, else of pytest's root directory."""
    package, project = perf.folder / "lib" / "shipped", perf.folder / "project"
    package.mkdir(parents=True)
    (project / "perf_tests").mkdir(parents=True)
    (project / "pytest.ini").write_text("[pytest]\n")
    (package / "__init__.py").touch()
    (perf.folder / "perf" / "test_perf.py").rename(package / "test_perf.py")
    (perf.folder / "perf" / "clusters.toml").unlink()
    (perf.folder / file).write_text(CLUSTERS.replace("[local", "[lab"))
    perf.environment["PYTHONPATH"] = os.pathsep.join([str(perf.folder / "lib"), perf.environ()["PYTHONPATH"]])
    command = perf.command("--pyargs", "shipped.test_perf", "--cluster=lab", "--gpus=2", "--co", "-q", *arguments)
    ended = perf.run_python(*command[1:])
    assert ended.code == 0, ended.out + ended.err
    ended.line("test_throughput[gpus2")


def test_a_path_that_cannot_be_looked_at_is_for_pytest_to_refuse(project: PerfTests) -> None:
    """An argument that no file can be called by is refused as without us, and is no internal error."""
    name = "a" * 300
    ended = project.run_python(*project.command(name)[1:])
    assert ended.code == 4
    ended.line(f"ERROR: file or directory not found: {name}")
    assert "INTERNALERROR" not in ended.out


@pytest.mark.parametrize(
    "names",
    [
        "argnames='gpus', argvalues=[2]",
        "argvalues=[(2,)], argnames=['gpus']",
        "('gpus',), [(2,)]",
        "'gpus', [2]",
    ],
)
def test_a_test_that_says_its_device_counts_is_not_asked(perf: PerfTests, names: str) -> None:
    """A test's own parametrisation of `gpus` is used; the other parameters come from the plugin."""
    perf.write(f"import pytest\n@pytest.mark.parametrize({names})\ndef test_it(train, gpus, num_ps): pass\n")
    ended = perf.run("--co", "-q", "--num-ps=1,2")
    assert ended.code == 0, ended.out
    assert [line.partition("::")[2] for line in ended.out.splitlines() if "::" in line] == [
        "test_it[2-ps1]", "test_it[2-ps2]"
    ]  # fmt: skip


def test_a_test_may_mean_what_it_likes_by_our_names(perf: PerfTests) -> None:
    """Where a perf test's own `gpus` is no number, nothing is deselected by it, and nothing is asked of the cluster for it."""
    perf.write(
        "import pytest\n@pytest.mark.parametrize('gpus', ['one', None, 0, [2]])\n"
        "@pytest.mark.parametrize('variable_update', [['replicated']])\n"
        "def test_it(train, gpus, variable_update): train(model='trivial', gpus=1)\n"
    )
    ended = perf.run()
    assert ended.code == 0, ended.out
    ended.line("4 passed")


def test_short_names_can_be_turned_off(perf: PerfTests) -> None:
    """With `dtfperf_short_options = false` there are the long names alone, on the command line and in help."""
    (perf.folder / "pytest.ini").write_text("[pytest]\ndtfperf_short_options = false\n")
    ended = perf.run("--gpus=1")
    assert ended.code == 4
    ended.line("unrecognized arguments: --gpus=1")
    assert "gpus2" not in perf.run("--co", "-q", "--dtfperf-gpus=1").out
    helped = perf.run("--help")
    assert "--gpus=" not in helped.out
    helped.line("--dtfperf-gpus=N,..")


def test_help_lists_all_names(perf: PerfTests) -> None:
    """If no other plugin uses them, help has the long and the short name of every option."""
    helped = perf.run("--help")
    for option in OPTIONS:
        helped.line(f"  --dtfperf-{option.name}=")
        helped.line(f"  --{option.name}=")


def test_options_come_from_everywhere(perf: PerfTests) -> None:
    """Short names are read in the ini file's addopts, in PYTEST_ADDOPTS and in a file of arguments, too."""
    (perf.folder / "args.txt").write_text("--gpus=1\n--num-ps\n1\n")
    (perf.folder / "pytest.ini").write_text("[pytest]\naddopts = --cluster=local\n")
    ended = perf.run("@args.txt", "--co", "-q", PYTEST_ADDOPTS="--variable-update replicated")
    assert ended.code == 0, ended.out + ended.err
    assert [line for line in ended.out.splitlines() if "::" in line] == [
        "perf/test_perf.py::test_throughput[gpus1-ps0-replicated]"
    ]


def names(words: list[str]) -> list[tuple[str, str | None] | str]:
    """What is read, where all short names are free."""
    found = read_arguments(words, lambda word: True)
    return [(each.name, each.value) if isinstance(each, GivenOption) else each for each in found]


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--gpus=2", "--gpus", "3"], [("--gpus", "2"), ("--gpus", "3")]),
        (["--dry-run", "test.py"], [("--dry-run", "true"), "test.py"]),
        (["--dtfperf-dry-run", "test.py"], [("--dtfperf-dry-run", "true"), "test.py"]),
        (["--dry-run", "false", "test.py"], [("--dry-run", "false"), "test.py"]),
        (["--update-baselines", "perf"], [("--update-baselines", "all"), "perf"]),
        (["--update-baselines", "new", "perf"], [("--update-baselines", "new"), "perf"]),
        (["--strict-verdicts", "--all-repeats"], [("--strict-verdicts", "true"), ("--all-repeats", "true")]),
        (["--repeats", "-1"], [("--repeats", "-1")]),
        (["--repeats", "-x"], [("--repeats", None), "-x"]),
        (["--repeats"], [("--repeats", None)]),
        (["--allow-regression", "new driver"], [("--allow-regression", "new driver")]),
        (["--", "--gpus=2"], ["--", "--gpus=2"]),
        (["--gpu=2", "--gpusx", "-n", "2"], ["--gpu=2", "--gpusx", "-n", "2"]),
    ],
)
def test_how_words_are_read(words: list[str], expected: list[object]) -> None:
    """A value follows `=` or a blank; if none is needed, an argument that can be none is a test."""
    assert names(words) == expected


def test_what_others_know_stays(perf: PerfTests) -> None:
    """A short name that is not free is unchanged; a long one always belongs to this plugin."""
    found = list(read_arguments(["--gpus=2", "--dtfperf-gpus=3"], lambda word: False))
    assert found[0] == "--gpus=2"
    assert isinstance(found[1], GivenOption)


# -- pytest's root directory

ELSEWHERE = {
    "--baselines": "baselines",
    "--perf-results": "results",
    "--clusters-file": "perf/clusters.toml",
    "--dtfperf-baselines": "baselines",
}


@pytest.fixture
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another project, with an ini file and a conftest of its own that would end every run."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\ntestpaths = nowhere\n")
    (folder / "conftest.py").write_text("raise RuntimeError('loaded the conftest of another project')\n")
    for name in ("baselines", "results", "perf"):
        (folder / name).mkdir()
    (folder / "perf" / "clusters.toml").write_text('[lab]\nbackend = "local"\ndevices_per_host = 2\ndevice = "cpu"\n')
    return folder


@pytest.mark.parametrize("option", ELSEWHERE)
def test_a_value_behind_a_blank_moves_no_root(perf: PerfTests, theirs: Path, option: str) -> None:
    """`--baselines DIR` in another project means what `--baselines=DIR` does: root, ini file and conftests are ours."""
    perf.starts_forks = True  # as pytest starts itself anew
    ended = perf.run("--co", option, str(theirs / ELSEWHERE[option]))
    assert ended.code == 0, ended.out + ended.err
    assert ended.line("rootdir: ") == f"rootdir: {perf.folder}"
    ended.line("configfile: pytest.ini")
    ended.line("2 tests collected")


def test_nothing_is_written_into_the_project_of_a_value(accepted: PerfTests, theirs: Path) -> None:
    """Results go to the same folder in any order of arguments, and from PYTEST_ADDOPTS as well."""
    accepted.environment["PYTEST_ADDOPTS"] = f"--clusters-file {accepted.folder / 'perf' / 'clusters.toml'}"
    accepted.environment["PYTHONDONTWRITEBYTECODE"] = "1"  # or pytest leaves what it compiles of a conftest
    accepted.starts_forks = True
    before = sorted(theirs.rglob("*"))
    ended = accepted.run("--gpus", "1", "--baselines", str(theirs / "baselines"))
    assert ended.code == 0, ended.out + ended.err
    ended.line("NO_BASELINE")
    assert list((accepted.folder / "perf_results").glob("*/session.json"))
    assert sorted(theirs.rglob("*")) == before


def test_within_another_program_a_value_behind_a_blank_is_refused(perf: PerfTests, theirs: Path) -> None:
    """If a program that cannot be restarted calls pytest, one line shows how to write the option."""
    code = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    ended = perf.run_python("-c", code, "perf", "--co", "--baselines", str(theirs / "baselines"))
    assert ended.code == 4
    ended.line("ERROR: --baselines ", f"write --baselines={theirs / 'baselines'}")


def test_an_option_without_a_value_swallows_no_test(perf: PerfTests) -> None:
    """In `--dry-run perf/test_perf.py` the test is a test, and its conftest is loaded at the start."""
    deep = perf.folder / "perf" / "deep"
    deep.mkdir()
    (deep / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--deep')\n")
    (deep / "test_deep.py").write_text("def test_deep(train): train(model='trivial')\n")
    for name in ("--dry-run", "--dtfperf-dry-run"):
        ended = perf.run_python(*perf.command(name, "perf/deep", "--deep=1")[1:])
        assert ended.code == 0, ended.out + ended.err
        ended.line("In all: 1 test, 1 measurement")
