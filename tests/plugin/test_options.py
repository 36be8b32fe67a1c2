"""Tests of the options and their ini keys, which are read once and refused in one line."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.plugin import hooks, plugin_state
from pytest_dtfperf.plugin.options import OPTIONS, Option
from tests.plugin.conftest import REPOSITORY, PerfTests

# What is wrong at each stage of reading: the text, the cluster, its file. `BAD_VALUES` has the texts of all options.
WRONG = {
    "--cluster=lokal": ("unknown cluster 'lokal'", "Did you mean 'local'?", "clusters.toml"),
    f"--gpus={'9' * 5000}": (f"--gpus takes a whole number of at least 1, not '{'9' * 60}'... (5000 characters)",),
    "--clusters-file=nowhere.toml": ("there is no cluster file nowhere.toml",),
    "--dtfperf-gpus=x": ("--dtfperf-gpus", "not 'x'"),
}


@pytest.mark.parametrize("option", WRONG, ids=lambda option: option[:40])
def test_wrong_option_is_one_line_and_exit_code_4(perf: PerfTests, option: str) -> None:
    """A wrong option ends pytest before anything is started, with one line that shows what is allowed."""
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


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("option", ["--allow-regression=", "--perf-results=", "--cluster=", "--ignore="])
def test_argument_that_is_not_utf8_is_one_line(perf: PerfTests, option: str) -> None:
    """An argument that is not UTF-8 is refused with its escaped text."""
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
def test_ini_key_sets_a_default(perf: PerfTests, file: str, text: str) -> None:
    """An option's ini key sets its default, in ini and in TOML files, and the command line overrides it."""
    if file == "pytest.toml" and pytest.version_tuple < (9, 0):
        pytest.skip("pytest reads pytest.toml from 9.0 on")
    (perf.folder / "pytest.ini").unlink()
    (perf.folder / file).write_text(text)
    listed = perf.run("--co", "-q").out
    assert "2/2 tests" not in listed
    assert "gpus1-ps1" in listed
    assert "gpus2-ps1" not in listed
    assert "gpus2-ps1" in perf.run("--co", "-q", "--gpus=2").out


def test_path_in_the_ini_file_is_relative_to_it(perf: PerfTests) -> None:
    """A path in the ini file is relative to the file's folder."""
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


def test_option_of_another_plugin_keeps_its_name(perf: PerfTests) -> None:
    """If another plugin has --cluster, this plugin's option is --dtfperf-cluster, and pytest starts."""
    (perf.folder / "other.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--cluster', default='theirs')\n"
    )
    environment = {"PYTHONPATH": f"{perf.folder}:{perf.environ()['PYTHONPATH']}"}
    ended = perf.run("-p", "other", "--co", "-q", "--cluster=theirs", "--dtfperf-cluster=local", **environment)
    assert ended.code == 0
    assert "gpus2-ps1-parameter_server" in ended.out


def test_wrong_marker_names_the_test(perf: PerfTests) -> None:
    """An unknown marker argument is refused at collection with the test's name and the nearest known argument."""
    perf.write("import pytest\n@pytest.mark.dtfperf(margn=0.1)\ndef test_x(train): ...\n")
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: perf/test_perf.py::test_x", "Did you mean 'margin'?")


def test_thresholds_of_an_unknown_system_are_refused(perf: PerfTests) -> None:
    """Thresholds of an unknown system in clusters.toml are refused with the nearest name."""
    table = '[local]\nbackend = "local"\nthresholds = "piz-dain"\n'
    (perf.folder / "perf" / "clusters.toml").write_text(table)
    ended = perf.run()
    assert ended.code == 4
    ended.line("ERROR: ", "clusters.toml: [local] thresholds: unknown system 'piz-dain'", "Did you mean 'piz-daint'?")


# By how an option's text is read: what is wrong with it, and a part of what is said.
PATHS = {
    "~/x": "~ and $NAME are not expanded",
    "$HOME/x": "are not expanded",
    "${HOME}/x": "are not expanded",
    "~": "are not expanded",
}
URLS = {
    "postgresql://u@h:$PGPORT/perf": "has the port '$PGPORT', which is not a number from 1 to 65535, a variable that was",
    "postgresql://u:secret@h:${PGPORT}/perf": "has the port '${PGPORT}'",
    "postgresql://h:0/perf": "has the port '0'",
    "postgresql://h:65536/perf": "has the port '65536'",
    "postgresql://h:/perf": "has a colon after its host, but no port",
    "postgresql://[::1/perf": "has an invalid host: '[::1'; an IPv6 address is in brackets, [::1]",
    "postgresql://::1/perf": "an IPv6 address is in brackets",
    "postgresql://$PGHOST/perf": "has an invalid host: '$PGHOST', a variable that was not expanded",
    "postgresql://$PGUSER@h/perf": "has '$PGUSER', a variable",
    "postgresql://h/$PGDATABASE": "has '$PGDATABASE', a variable",
    "postgresql://h/perf?port=$PGPORT": "has the port '$PGPORT'",
    "postgresql:///perf?host=h:x": "has the port 'x'",
    "postgresql://h": "names no database",
    "mysql://h/perf": "a history is kept in a file, or at sqlite:///FILE or postgresql://USER@HOST/NAME",
    "sqlite://x": "sqlite:///FILE",
    "sqlite:///$HOME/x": "are not expanded",
    **PATHS,
}
NUMBERS = {
    "x": "takes a whole number of at least",
    "\u00b2": "takes a whole number of at least",
    "-1": "takes a whole number",
    "1.5": "takes a whole number",
    "$N": "takes a whole number",
}
COUNTS = {**NUMBERS, "0": "takes a whole number of at least 1, not '0'"}
FRACTIONS = dict.fromkeys(("x", "nan", "inf", "-0.1", "1e400", "$M", "5%"), "not")
WORDS = {"$WORD": "not '$WORD'"}
BAD_VALUES: dict[str, dict[str, str]] = {
    "cluster": {"$CLUSTER": "unknown cluster '$CLUSTER'"},
    "clusters-file": PATHS,
    "gpus": COUNTS,
    "num-ps": dict.fromkeys(("x", "-1", "$N", "\u00b2", "many"), "takes whole numbers, `best` or `sweep`, not '"),
    "variable-update": {"$MODE": "variable update", "parameter_sever": "Did you mean 'parameter_server'?"},
    "repeats": COUNTS,
    "all-repeats": WORDS,
    "margin": FRACTIONS,
    "min-efficiency": FRACTIONS,
    "false-alarms": FRACTIONS,
    "time-budget": {
        "6": "takes a time, as 6min, 1h30min or 90s, or none, not '6'",
        "6minutes": "takes a time, as 6min",
        "$TIME": "takes a time, as 6min",
        "0s": "not '0s'",
    },
    "steps": COUNTS,
    "warmup-steps": NUMBERS,
    "batch-size": COUNTS,
    "update-baselines": {**WORDS, "some": "takes `all` or `new`, not 'some'"},
    "allow-regression": {},  # any text is one
    "explain": {**WORDS, "sometimes": "takes `always`, `auto` or `never`, not 'sometimes'"},
    "diagnose": WORDS,
    "strict-verdicts": WORDS,
    "dry-run": WORDS,
    "baselines": PATHS,
    "perf-results": PATHS,
    "history": URLS,
    "history-gate": WORDS,
    "ab": {
        "old": "'old' is no variant: write NAME: KEY=VALUE",
        "new: pyton=x": "variant new: unknown key 'pyton'. Did you mean 'python'?",
        "$FILE.toml": "$FILE.toml cannot be read",
    },
}
EMPTY = {"repeats": {"": "not ''"}, "perf-results": {"": "takes a path, not ''"}}  # an empty ini value sets nothing


def list_texts(option: Option, where: str) -> Mapping[str, str]:
    """Return the texts to try: all on the command line, and one elsewhere, because the same function reads it."""
    texts = BAD_VALUES[option.name]
    return {**texts, **EMPTY.get(option.name, {})} if where == "option" else dict([*texts.items()][:1])


CASES = [
    (where, option, text, words)
    for option in OPTIONS
    for where in ("option", "ini", *(["environment"] if option.variable else []))
    for text, words in list_texts(option, where).items()
]


def message_of(folder: Path, option: Option, text: str, where: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return pytest's error for an option with this text in that place, before the collection."""
    (folder / "pytest.ini").write_text(f"[pytest]\n{option.ini} = {text}\n" if where == "ini" else "[pytest]\n")
    if where == "environment":
        monkeypatch.setenv(str(option.variable), text)
    return read_error(folder, [f"--dtfperf-{option.name}={text}"] if where == "option" else [])


def read_error(folder: Path, arguments: Sequence[str]) -> str:
    """Return pytest's error for these arguments in a folder with a pytest.ini, before the collection."""
    (folder / "clusters.toml").write_text('[local]\nbackend = "local"\n')
    with _config(folder, arguments) as config:
        with pytest.raises(UsageError) as refused:
            plugin_state.get_state(config)
        assert plugin_state.STATE not in config.stash
    return str(refused.value)


@contextmanager
def _config(folder: Path, arguments: Sequence[str]) -> Iterator[pytest.Config]:
    """Yield the configuration of a pytest with this plugin alone: to search for others takes most of the time of its start."""
    from _pytest.config import _prepareconfig

    alone = ["--disable-plugin-autoload", "-p", "no:cacheprovider"]
    config = _prepareconfig([*alone, "-c", str(folder / "pytest.ini"), *arguments, str(folder)], [hooks])
    try:
        yield config
    finally:
        config._ensure_unconfigure()  # else the files that it captures output into stay open


@pytest.mark.parametrize(
    "where, option, text, words", CASES, ids=[f"{where}-{option.name}={text}" for where, option, text, _ in CASES]
)
def test_option_values_are_checked_at_the_start(
    tmp_path: Path, where: str, option: Option, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid or unexpanded URL, path, number or keyword is one line with the option, ini key or variable."""
    monkeypatch.chdir(tmp_path)
    message = message_of(tmp_path, option, text, where, monkeypatch)
    assert words in message
    assert "\n" not in message
    assert "secret" not in message
    if option.name != "cluster":
        assert {"option": f"--dtfperf-{option.name}", "ini": option.ini, "environment": str(option.variable)}[where] in message


# Set by users; each is checked before anything trains. The others are said by one process of this package to another.
OF_USERS = {
    "DTFPERF_HISTORY": "postgresql://h:$PGPORT/perf",
    "DTFPERF_SLOWDOWN": "worker:1=$SLEEP",
    "DTFPERF_LOCKS": "$HOME/locks",
    "DTFPERF_ZMQ_PRODUCER": "python 'unclosed",
}
# Of EC2_YES 1 agrees to a price and anything else does not; the others are of `dtfperf nightly`, which refuses them itself.
TAKES_ANYTHING = {"DTFPERF_EC2_YES", "DTFPERF_METRICS", "DTFPERF_NOTIFY"}
OF_PROCESSES = {
    "DTFPERF_BOOT", "DTFPERF_COLLECTED", "DTFPERF_CONFORMS", "DTFPERF_CONTROLLER", "DTFPERF_HOST_INDEX", "DTFPERF_NETWORK",
    "DTFPERF_NOTEBOOK", "DTFPERF_OTHERS_PYTHONPATH", "DTFPERF_OWNER", "DTFPERF_SESSION", "DTFPERF_SESSION_ID", "DTFPERF_SETUP",
    "DTFPERF_STEPS", "DTFPERF_TUNNEL",
}  # fmt: skip


def test_variables_of_the_package_are_listed_here() -> None:
    """Each variable in the package's code is in the lists of this module."""
    files = (REPOSITORY / "pytest_dtfperf").rglob("*.py")
    named = {name for file in files for name in re.findall(r"\bDTFPERF_[A-Z0-9_]+\b", file.read_text(encoding="utf-8"))}
    assert named == {*OF_USERS, *TAKES_ANYTHING, *OF_PROCESSES}


@pytest.mark.parametrize("name", OF_USERS)
def test_wrong_variable_is_one_line(perf: PerfTests, name: str) -> None:
    """An invalid variable ends pytest with exit code 4 and one line with its name, before anything is started."""
    perf.environment.pop("DTFPERF_HISTORY")
    ended = perf.run(**{name: OF_USERS[name]})
    assert ended.code == 4, ended.out
    assert [line for line in ended.err.splitlines() if line] == [ended.line("ERROR: ", name)]
    assert not (perf.folder / "perf_results").exists()


@pytest.mark.parametrize(
    "url",
    ["postgresql://h/perf", "postgresql://u:p$w@h:5432/perf", "postgresql://u@[::1]:5432/perf", "postgresql:///perf",
     "postgresql:///perf?host=/run/postgresql", "postgresql://h/perf?host=a:5432&host=b", "postgres://u:p%2Fw@h.example/perf"],
)  # fmt: skip
def test_history_address_keeps_its_parts(url: str) -> None:
    """URLs with names, addresses, sockets, several servers or a dollar sign in the password are unchanged but for the
    driver."""
    assert parse_address(url, Path()) == Address(f"postgresql+psycopg://{url.partition('://')[2]}")


def test_history_that_is_a_pipe_is_refused(perf: PerfTests) -> None:
    """A pipe in the place of the history file is refused with exit code 4."""
    os.mkfifo(perf.folder / "history")
    perf.environment.pop("DTFPERF_HISTORY")
    ended = perf.run("--history=history")
    assert ended.code == 4
    ended.line("ERROR: the history ", "/history is a pipe, and no file: --history names another")
