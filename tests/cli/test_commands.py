"""Tests of every command: help, examples, --json, exit codes and errors. A new command is tested by its row in the table."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.cli.options import SIGNALS, make_parser
from pytest_dtfperf.cli.run import parse_specs as trainings
from pytest_dtfperf.clusters.local import get_machine
from pytest_dtfperf.clusters.locks import LockHolder, lock_hosts
from pytest_dtfperf.testing.backends import wait_until
from tests.cli import place
from tests.cli.table import get_commands, get_parsers, read
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT

REPOSITORY = Path(__file__).parents[2]
DTFPERF = [sys.executable, "-m", "pytest_dtfperf.cli"]
FORKING = {**os.environ, **zygote.SEARCH_PATH}  # with another search path it would be no fork
ENDS_S = 120

WITHOUT_JSON = {
    "completion": "what it prints is a shell's program",
    "ec2 ssh": "this process becomes ssh, and what is printed is the remote command's",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place.make_folder(tmp_path_factory.mktemp("place"))


def examples_of(help_: str) -> list[list[str]]:
    """Return the arguments of each call of dtfperf in the indented lines of a help."""
    calls = []
    for line in re.findall(r"^    (.*\bdtfperf .*)", help_, re.MULTILINE):
        lexer = shlex.shlex(line.replace('"$(', "").replace(')"', ""), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
        while "dtfperf" in words:
            words = words[words.index("dtfperf") + 1 :]
            end = next((at for at, word in enumerate(words) if set(word) <= set("|&;<>")), len(words))
            calls.append(words[:end])
            words = words[end:]
    return calls


@pytest.mark.parametrize("name", get_parsers())
def test_help_has_valid_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each command and group has at least one example, and all examples are valid."""
    help_ = get_parsers()[name].format_help()
    examples = examples_of(help_)
    assert any(" ".join(words).startswith(name) for words in examples), help_
    for words in examples:
        args, unknown = make_parser().parse_known_args(words)
        assert not unknown or args.passes_on, words
        if words[0] == "run" and not args.models:
            assert list(trainings(args.specs))
    assert capsys.readouterr() == ("", "")


def accepts_any_order(name: str) -> bool:
    """Return whether options may be at any position; not if the rest belongs to a program or to pytest."""
    made = get_commands()[name]
    return not made.get_default("passes_on") and all(action.nargs != argparse.REMAINDER for action in made._actions)


@pytest.mark.parametrize("name", [name for name in get_commands() if accepts_any_order(name)])
def test_options_may_be_at_any_position(name: str) -> None:
    """Each example of a help has the same meaning with its options first, last, or between its arguments."""
    ours = len(name.split())
    options = {word for action in get_commands()[name]._actions for word in action.option_strings if action.nargs == 0}
    of_it = [words for words in examples_of(get_commands()[name].format_help()) if words[:ours] == name.split()]
    assert of_it
    for words in of_it:
        moved = [word for word in words[ours:] if word in options or re.match("--.*=", word)] or ["--json"]
        if moved == ["--json"] and name in WITHOUT_JSON:
            continue
        kept = [word for word in words[ours:] if word not in moved]
        if any(word.startswith("-") for word in kept):
            continue  # with its value as the next word, which must stay there
        read = [make_parser().parse_args([*words[:ours], *kept[:at], *moved, *kept[at:]]) for at in range(len(kept) + 1)]
        assert all({**vars(each), "parser": None} == {**vars(read[0]), "parser": None} for each in read), words


@pytest.mark.parametrize("name", get_parsers())
def test_help_ends_with_exit_codes(name: str) -> None:
    """The last paragraph of each help has the common exit codes, its own, and those of signals."""
    made = get_parsers()[name]
    *_, last = made.format_help().split("\n\n")
    assert last.startswith("Exit codes: 0 ")
    text = " ".join(last.split())
    for code, words in (made.get_default("endings") or {}).items():
        assert f"{code} {words}" in text
    for code in SIGNALS:
        assert f"{code} {signal.Signals(code - 128).name}" in text


@pytest.mark.parametrize("name", get_commands())
def test_every_command_has_json_or_an_exception(name: str) -> None:
    """Each command has --json with a documented shape, except for the commands in the table of exceptions."""
    made = get_commands()[name]
    assert ("--json" in made.format_help()) is (name not in WITHOUT_JSON)
    if name not in WITHOUT_JSON:
        assert made.get_default("shape")
        assert (name in place.SAMPLES) is (name not in place.ELSEWHERE), "call it with --json in a test"


@pytest.mark.parametrize("name", place.ELSEWHERE)
def test_json_of_other_commands_is_tested_elsewhere(name: str) -> None:
    """The test file in the table reads the JSON output of its command."""
    assert f'read("{name}", ' in (REPOSITORY / place.ELSEWHERE[name]).read_text()


@pytest.mark.parametrize("name", place.SAMPLES)
def test_json_is_the_only_output(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json stdout has only the documented keys, and the exit code is that of the text output."""
    arguments, code = place.SAMPLES[name]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", zygote.zygote().python)  # a pytest that it starts is a fork
    for variable, value in {**zygote.SEARCH_PATH, **LIGHT}.items():
        monkeypatch.setenv(variable, value)
    place.reset_folder(folder)
    assert main(arguments) == code
    assert "".join(capsys.readouterr())
    place.reset_folder(folder)
    assert main([*arguments, "--json"]) == code
    assert read(name, capsys.readouterr().out)


def test_other_output_goes_to_stderr_with_json(folder: Path, tmp_path: Path) -> None:
    """Output that a model's package prints goes to stderr with --json."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins\nfrom pytest_dtfperf import spec\nold = spec.inputs_of\n"
        "import pytest_dtfperf.cli.run as run\nrun.inputs_of = lambda name: print('stray') or old(name)\n"
    )
    result = run_dtfperf(folder, "run", "--models", "--json", PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert "stray" in result.stderr
    assert json.loads(result.stdout)["models"]


@pytest.mark.parametrize("name", [name for name, made in get_commands().items() if not made.get_default("passes_on")])
def test_unknown_option_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option is one line on stderr with the help to read, and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--no-such-option"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"dtfperf: [^\n]+ See: dtfperf {name} --help\n", err)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["docter"], "unknown command 'docter'. Did you mean 'doctor'? Known: ab, baselines, bisect, clusters, "),
        (["history"], "COMMAND is one of list, show, trend, "),
        (["history", "chnges"], "Did you mean 'changes'?"),
        (["history", "changes", "--fial"], "--fial. Did you mean --fail instead of --fial?"),
        (["doctor", "--clustr=daint"], "required: --cluster. Did you mean --cluster instead of --clustr?"),
        (["completion", "bsh"], "Did you mean 'bash'? Known: bash, fish, zsh"),
        (["launch", "--num-wrokers=2", "train.py"], "Did you mean --num-workers instead of --num-wrokers?"),
        (["doctor", "--cluster=x", "--gpus=many\x1b[31m"], "invalid int value: 'many\\x1b[31m'"),
    ],
)
def test_wrong_arguments_name_the_nearest_valid_one(
    arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong argument is one line with the nearest valid one, and the allowed ones."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_error_is_the_same_with_json(folder: Path) -> None:
    """An error is one line on stderr with the same exit code, with and without --json."""
    for json_ in ([], ["--json"]):
        result = run_dtfperf(folder, "clusters", "show", "labb", *json_)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == "dtfperf: unknown cluster 'labb'. Did you mean 'lab'? Known: lab, local, lost.\n"


def run_dtfperf(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return zygote.dtfperf(*arguments, cwd=folder, **environment)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_signal_ends_a_command(number: signal.Signals, tmp_path: Path) -> None:
    """A signal ends a command that waits for the machine with exit code 128 + its number, without a traceback."""
    (tmp_path / "clusters.toml").write_text('[local]\nbackend = "local"\n')
    locks = tmp_path / "dtfperf"
    locks.mkdir(mode=0o700)
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        out.open("w") as stdout,
        err.open("w") as stderr,
        lock_hosts(get_machine(), 1, LockHolder.make_own("s", "another test"), print, folder=locks),
    ):
        argv = ["-m", zygote.COMMANDS, "doctor", "--cluster=local", "--gpus=1", "--json"]
        env = {**os.environ, **zygote.SEARCH_PATH, "XDG_RUNTIME_DIR": str(tmp_path)}
        with zygote.start(argv, tmp_path, env, stdout=stdout.fileno(), stderr=stderr.fileno()) as waiting:
            wait_until("it waits", lambda: "waiting for local" in err.read_text() or waiting.poll() is not None)
            waiting.send_signal(number)
            code = waiting.wait(ENDS_S)
    assert (code, out.read_text()) == (128 + number, "")
    assert err.read_text().endswith("dtfperf: interrupted\n" if number == signal.SIGINT else "")
    assert "Traceback" not in err.read_text()
    assert list(locks.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--models"], ["run", "--models", "--json"]], ids=["help", "words", "json"]
)
def test_closed_reader_is_exit_code_141(arguments: Sequence[str], tmp_path: Path) -> None:
    """A closed reader of stdout, as after `| head`, is exit code 141 without output on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    command = zygote.make_command(*arguments)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=FORKING, timeout=ENDS_S, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    """A stdout that cannot be written is one line on stderr and exit code 1."""
    with open("/dev/full", "wb") as full:
        command = zygote.make_command("run", "--models")
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=FORKING, text=True, timeout=ENDS_S, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == "dtfperf: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_unprintable_characters_are_escaped(encoding: str, tmp_path: Path) -> None:
    """A character that the encoding of stdout lacks, or an invalid byte of a path, is escaped."""
    folder = os.path.join(os.fsencode(tmp_path), "\u0416".encode() + b"\xff")
    os.mkdir(folder)
    with open(os.path.join(folder, b"clusters.toml"), "w") as file:
        file.write('[lab]\nbackend = "local"\n')
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(REPOSITORY)}
    argv = [*map(os.fsencode, DTFPERF), b"clusters", b"list", b"--clusters-file=" + os.path.join(folder, b"clusters.toml")]
    ended = subprocess.run(argv, env=environment, capture_output=True, timeout=ENDS_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ("\\u0416" if encoding == "ascii" else "\u0416").encode() + b"\\udcff/clusters.toml:" in ended.stdout
    assert b"lab" in ended.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("words", ["run --models --json", "clusters list", "init project"])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-", "2>&-"])
def test_closed_streams_are_no_error(words: str, closed: str, tmp_path: Path) -> None:
    """Commands work without stdin, stdout or stderr, with the right exit code."""
    script = f"exec {shlex.join(DTFPERF)} {words} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, timeout=ENDS_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


# How each is called that knows clusters; those that are not here, with --cluster.
NAMED = {
    "clusters list": [],
    "clusters show": ["theirs"],
    "clusters check": ["theirs"],
    "run": ["mnist", "--cluster=theirs"],
    "predict": ["mnist", "--cluster=theirs", "--device-rate=1"],
    "launch": ["--cluster=theirs", "train.py"],
    "ab": ["old:", "new: xla=true", "mnist", "--cluster=theirs"],
    "isolate": ["mnist", "--cluster=theirs"],
    "bisect": ["a:", "b: xla=true", "c: xla=true steps=3", "mnist", "--cluster=theirs"],
}
WITH_CLUSTERS = [
    name
    for name, made in get_commands().items()
    if name in NAMED or {"--cluster", "--clusters-file"} <= {word for each in made._actions for word in each.option_strings}
]


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_commands_read_the_clusters_of_the_project(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each command with clusters reads the file that the project's configuration names, also from a subfolder."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ndtfperf_clusters_file = sites/ours.toml\n")
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "ours.toml").write_text('[ours]\nbackend = "local"\n')
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "clusters.toml").write_text('[theirs]\nbackend = "local"\n')
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setenv("COLUMNS", "200")
    code = main([*name.split(), *NAMED.get(name, ["--cluster=theirs"])])
    shown = capfd.readouterr()
    assert code == (0 if name == "clusters list" else 2), shown.err
    assert "ours" in shown.out + shown.err
    assert "Did you mean" not in shown.err
