"""Tests of the plugin in other projects, in which another plugin keeps each name that it registers."""

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
def test_option_belongs_to_the_other_plugin_that_registers_it(project: PerfTests, comer: str) -> None:
    """A plugin that registers `--gpus`, earlier or later, has it, and this plugin has `--dtfperf-gpus`, as help shows."""
    file, arguments, environment = COMERS[comer]
    (project.folder / file).write_text(WANTS)
    ended = project.run("-s", "--gpus=3", "--dtfperf-gpus=1", *arguments, **environment)
    assert ended.code == 0, ended.out + ended.err
    ended.line("theirs: 3")
    helped = project.run("--help", *arguments, **environment)
    assert helped.line("--gpus").split() == ["--gpus=GPUS", "of", "theirs"]
    helped.line("--dtfperf-gpus=N,..")
    helped.line("--cluster=NAME")


def test_option_of_a_late_conftest_is_registered(project: PerfTests) -> None:
    """A conftest that pytest loads during the collection registers its option."""
    deep = project.folder / "perf" / "deep"
    deep.mkdir()
    (deep / "conftest.py").write_text(WANTS)
    (project.folder / "perf" / "test_perf.py").rename(deep / "test_deep.py")
    ended = project.run("-s")
    assert ended.code == 0, ended.out + ended.err
    ended.line("theirs: 0")


def test_fixtures_of_other_projects_make_no_perf_tests(project: PerfTests) -> None:
    """Tests with fixtures or parameters of the same names pass beside another program's clusters.toml, and no cluster is
    shown."""
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


def test_extended_fixture_makes_a_perf_test(perf: PerfTests) -> None:
    """A test with a fixture that overrides and uses ours is a perf test, with our parameters."""
    perf.write(
        "import pytest\n@pytest.fixture\ndef train(train): return train\n"
        "def test_it(train, gpus): train(model='trivial', gpus=gpus)\n"
    )
    ended = perf.run("--co", "-q")
    ended.line("test_it[gpus2]")


def test_broken_cluster_file_is_one_line(perf: PerfTests) -> None:
    """An invalid cluster file is one line and exit code 4 for perf tests, also under xdist."""
    (perf.folder / "perf" / "clusters.toml").write_text("[[farm]]\nnodes = 3\n")
    for arguments in ((), ("-n2",)):
        ended = perf.run(*arguments)
        assert ended.code == 4
        assert [line for line in ended.err.splitlines() if line] == [ended.line("ERROR: ", "clusters.toml: [farm]")]
        assert "INTERNALERROR" not in ended.out


def test_broken_cluster_file_is_one_line_for_unittest(perf: PerfTests) -> None:
    """An invalid cluster file is one line and exit code 4 for a unittest class, which pytest does not parametrise."""
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


def test_impossible_path_is_refused_by_pytest(project: PerfTests) -> None:
    """An argument that cannot be a file name has pytest's usual error."""
    name = "a" * 300
    ended = project.run_python(*project.command(name)[1:])
    assert ended.code == 4
    ended.line(f"ERROR: file or directory not found: {name}")
    assert "INTERNALERROR" not in ended.out


PARAMETRISATIONS = (
    "argnames='gpus', argvalues=[2]",
    "argvalues=[(2,)], argnames=['gpus']",
    "('gpus',), [(2,)]",
    "'gpus', [2]",
)


def test_own_parametrisation_of_gpus_is_used(perf: PerfTests) -> None:
    """A test's own parametrisation of `gpus` is used, however it is written, and the other parameters come from the plugin."""
    test = "@pytest.mark.parametrize({how})\ndef test_{at}(train, gpus, num_ps): pass\n"
    tests = [test.format(at=at, how=how) for at, how in enumerate(PARAMETRISATIONS)]
    perf.write("".join(["import pytest\n", *tests]))
    ended = perf.run("--co", "-q", "--num-ps=1,2")
    assert ended.code == 0, ended.out
    assert [line.partition("::")[2] for line in ended.out.splitlines() if "::" in line] == [
        f"test_{at}[2-ps{num_ps}]" for at in range(len(PARAMETRISATIONS)) for num_ps in (1, 2)
    ]


def test_parameters_with_other_meanings_are_ignored(perf: PerfTests) -> None:
    """Perf tests with values of `gpus` and `variable_update` of another type pass, and none is deselected."""
    perf.write(
        "import pytest\n@pytest.mark.parametrize('gpus', ['one', None, 0, [2]])\n"
        "@pytest.mark.parametrize('variable_update', [['replicated']])\n"
        "def test_it(train, gpus, variable_update): train(model='trivial', gpus=1)\n"
    )
    ended = perf.run()
    assert ended.code == 0, ended.out
    ended.line("4 passed")


def test_short_options_can_be_turned_off(perf: PerfTests) -> None:
    """With `dtfperf_short_options = false` only the long names are accepted and in help."""
    (perf.folder / "pytest.ini").write_text("[pytest]\ndtfperf_short_options = false\n")
    ended = perf.run("--gpus=1")
    assert ended.code == 4
    ended.line("unrecognized arguments: --gpus=1")
    assert "gpus2" not in perf.run("--co", "-q", "--dtfperf-gpus=1").out
    helped = perf.run("--help")
    assert "--gpus=" not in helped.out
    helped.line("--dtfperf-gpus=N,..")


def test_help_lists_long_and_short_options(perf: PerfTests) -> None:
    """Help has the long and the short name of each option."""
    helped = perf.run("--help")
    for option in OPTIONS:
        helped.line(f"  --dtfperf-{option.name}=")
        helped.line(f"  --{option.name}=")


def test_short_options_are_read_from_all_sources(perf: PerfTests) -> None:
    """Short names are read in the ini file's addopts, in PYTEST_ADDOPTS and in a file of arguments."""
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
def test_arguments_are_split_into_options_and_tests(words: list[str], expected: list[object]) -> None:
    """A value follows `=` or a blank, and an argument after an option with an optional value is a test if it cannot be that
    value."""
    assert names(words) == expected


def test_option_of_another_plugin_is_not_read(perf: PerfTests) -> None:
    """A short name that another plugin has is unchanged, and a long one is read."""
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
def other_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another project, with an ini file and a conftest of its own that would end every run."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\ntestpaths = nowhere\n")
    (folder / "conftest.py").write_text("raise RuntimeError('loaded the conftest of another project')\n")
    for name in ("baselines", "results", "perf"):
        (folder / name).mkdir()
    (folder / "perf" / "clusters.toml").write_text('[lab]\nbackend = "local"\ndevices_per_host = 2\ndevice = "cpu"\n')
    return folder


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("option", ELSEWHERE)
def test_value_after_a_blank_does_not_change_the_root(perf: PerfTests, other_project: Path, option: str) -> None:
    """With `--baselines DIR` in another project the root directory and the ini file are still those of the tests."""
    perf.starts_forks = True  # as pytest starts itself anew
    ended = perf.run("--co", option, str(other_project / ELSEWHERE[option]))
    assert ended.code == 0, ended.out + ended.err
    assert ended.line("rootdir: ") == f"rootdir: {perf.folder}"
    ended.line("configfile: pytest.ini")
    ended.line("2 tests collected")


def test_value_in_another_project_leaves_it_unchanged(accepted_tests: PerfTests, other_project: Path) -> None:
    """With options that name another project's folders the results are in the tests' own, and the other project is
    unchanged."""
    accepted_tests.environment["PYTEST_ADDOPTS"] = f"--clusters-file {accepted_tests.folder / 'perf' / 'clusters.toml'}"
    accepted_tests.environment["PYTHONDONTWRITEBYTECODE"] = "1"  # or pytest leaves what it compiles of a conftest
    accepted_tests.starts_forks = True
    before = sorted(other_project.rglob("*"))
    ended = accepted_tests.run("--gpus", "1", "--baselines", str(other_project / "baselines"))
    assert ended.code == 0, ended.out + ended.err
    ended.line("NO_BASELINE")
    assert list((accepted_tests.folder / "perf_results").glob("*/session.json"))
    assert sorted(other_project.rglob("*")) == before


def test_value_after_a_blank_is_refused_within_another_program(perf: PerfTests, other_project: Path) -> None:
    """If a program that cannot be restarted calls pytest, a line shows how to write the option."""
    code = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    ended = perf.run_python("-c", code, "perf", "--co", "--baselines", str(other_project / "baselines"))
    assert ended.code == 4
    ended.line("ERROR: --baselines ", f"write --baselines={other_project / 'baselines'}")


def test_option_without_a_value_leaves_the_next_argument(perf: PerfTests) -> None:
    """In `--dry-run perf/deep` the folder is a test argument, and its conftest is loaded at the start."""
    deep = perf.folder / "perf" / "deep"
    deep.mkdir()
    (deep / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--deep')\n")
    (deep / "test_deep.py").write_text("def test_deep(train): train(model='trivial')\n")
    for name in ("--dry-run", "--dtfperf-dry-run"):
        ended = perf.run_python(*perf.command(name, "perf/deep", "--deep=1")[1:])
        assert ended.code == 0, ended.out + ended.err
        ended.line("In all: 1 test, 1 measurement")
