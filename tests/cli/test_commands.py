"""What holds for every command: help, examples, --json, exit codes, errors. A new command is tested by being in the table."""

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
from tests.cli.table import commands, everything, read
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT

REPOSITORY = Path(__file__).parents[2]
DTFPERF = [sys.executable, "-m", "pytest_dtfperf.cli"]
ENDS_S = 120

WITHOUT_JSON = {
    "completion": "what it prints is a shell's program",
    "ec2 ssh": "this process becomes ssh, and what is printed is the remote command's",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place.make(tmp_path_factory.mktemp("place"))


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


@pytest.mark.parametrize("name", everything())
def test_help_has_examples_that_are_understood(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command, and each group, shows at least one call, and all of them are valid."""
    help_ = everything()[name].format_help()
    examples = examples_of(help_)
    assert any(" ".join(words).startswith(name) for words in examples), help_
    for words in examples:
        args, unknown = make_parser().parse_known_args(words)
        assert not unknown or args.passes_on, words
        if words[0] == "run" and not args.models:
            assert list(trainings(args.specs))
    assert capsys.readouterr() == ("", "")


def takes_its_words_in_any_order(name: str) -> bool:
    """Unless what follows is a program's, or pytest's."""
    made = commands()[name]
    return not made.get_default("passes_on") and all(action.nargs != argparse.REMAINDER for action in made._actions)


@pytest.mark.parametrize("name", [name for name in commands() if takes_its_words_in_any_order(name)])
def test_words_may_stand_before_and_behind_options(name: str) -> None:
    """Each example of a help has the same meaning with its options first, last, or between its arguments."""
    ours = len(name.split())
    options = {word for action in commands()[name]._actions for word in action.option_strings if action.nargs == 0}
    of_it = [words for words in examples_of(commands()[name].format_help()) if words[:ours] == name.split()]
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


@pytest.mark.parametrize("name", everything())
def test_help_says_how_it_ends(name: str) -> None:
    """The last lines of each help are its exit codes, those of all commands and its own, and the signals."""
    made = everything()[name]
    *_, last = made.format_help().split("\n\n")
    assert last.startswith("Exit codes: 0 ")
    told = " ".join(last.split())
    for code, words in (made.get_default("endings") or {}).items():
        assert f"{code} {words}" in told
    for code in SIGNALS:
        assert f"{code} {signal.Signals(code - 128).name}" in told


@pytest.mark.parametrize("name", commands())
def test_every_command_has_json_or_a_reason(name: str) -> None:
    """The help of --json documents its keys; a command without it is in the table of exceptions, and no other."""
    made = commands()[name]
    assert ("--json" in made.format_help()) is (name not in WITHOUT_JSON)
    if name not in WITHOUT_JSON:
        assert made.get_default("shape")
        assert (name in place.SAMPLES) is (name not in place.ELSEWHERE), "call it with --json in a test"


@pytest.mark.parametrize("name", place.ELSEWHERE)
def test_what_needs_more_than_files_is_tested_elsewhere(name: str) -> None:
    """The test that the table names reads what this command prints."""
    assert f'read("{name}", ' in (REPOSITORY / place.ELSEWHERE[name]).read_text()


@pytest.mark.parametrize("name", place.SAMPLES)
def test_json_is_all_that_is_on_stdout(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is one document, or a line for each, with the documented keys; the exit code is that of the text output."""
    arguments, code = place.SAMPLES[name]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", zygote.zygote().python)  # a pytest that it starts is a fork
    for variable, value in {**zygote.SEARCH_PATH, **LIGHT}.items():
        monkeypatch.setenv(variable, value)
    place.before(folder)
    assert main(arguments) == code
    assert "".join(capsys.readouterr())
    place.before(folder)
    assert main([*arguments, "--json"]) == code
    assert read(name, capsys.readouterr().out)


def test_a_stray_word_is_not_on_stdout(folder: Path, tmp_path: Path) -> None:
    """What another package prints when its model is looked at goes to stderr while somebody reads JSON."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins\nfrom pytest_dtfperf import spec\nold = spec.inputs_of\n"
        "import pytest_dtfperf.cli.run as run\nrun.inputs_of = lambda name: print('stray') or old(name)\n"
    )
    told = dtfperf(folder, "run", "--models", "--json", PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert "stray" in told.stderr
    assert json.loads(told.stdout)["models"]


@pytest.mark.parametrize("name", [name for name, made in commands().items() if not made.get_default("passes_on")])
def test_an_unknown_option_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout, one line on stderr with the help to read, and exit code 2; what is pytest's, pytest refuses."""
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
def test_wrong_arguments_say_what_was_meant(arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid argument is reported with the nearest valid one, and what is allowed."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_an_error_is_the_same_with_json(folder: Path) -> None:
    """One line on stderr, nothing on stdout, and the exit code."""
    for json_ in ([], ["--json"]):
        told = dtfperf(folder, "clusters", "show", "labb", *json_)
        assert (told.returncode, told.stdout) == (2, "")
        assert told.stderr == "dtfperf: unknown cluster 'labb'. Did you mean 'lab'? Known: lab, local, lost.\n"


def dtfperf(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return zygote.dtfperf(*arguments, cwd=folder, **environment)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_signal_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    """128 + the signal's number, whatever it is at, without a traceback: here it waits for this machine, which others have."""
    (tmp_path / "clusters.toml").write_text('[local]\nbackend = "local"\n')
    locks = tmp_path / "dtfperf"
    locks.mkdir(mode=0o700)
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        out.open("w") as stdout,
        err.open("w") as stderr,
        lock_hosts(get_machine(), 1, LockHolder.me("s", "another test"), print, folder=locks),
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
def test_a_reader_that_has_gone_ends_it(arguments: Sequence[str], tmp_path: Path) -> None:
    """Exit code 141, as of `| head`, and not a word of it."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*DTFPERF, *arguments], stdout=writing, stderr=subprocess.PIPE, timeout=ENDS_S, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """What cannot be written to stdout is one line on stderr, and exit code 1."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*DTFPERF, "run", "--models"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=ENDS_S, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == "dtfperf: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_stdout_cannot_show_is_written_out(encoding: str, tmp_path: Path) -> None:
    """A character that its encoding lacks, or an invalid byte of a path, is escaped, and the rest is printed."""
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
    """Without stdin, stdout or stderr it works, with the right exit code."""
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
    for name, made in commands().items()
    if name in NAMED or {"--cluster", "--clusters-file"} <= {word for each in made._actions for word in each.option_strings}
]


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_clusters_are_those_of_pytest(name: str, tmp_path: Path) -> None:
    """Where the project names a file of clusters, each command that knows clusters reads that one, also from a folder below."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ndtfperf_clusters_file = sites/ours.toml\n")
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "ours.toml").write_text('[ours]\nbackend = "local"\n')
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "clusters.toml").write_text('[theirs]\nbackend = "local"\n')
    told = dtfperf(tmp_path / "below", *name.split(), *NAMED.get(name, ["--cluster=theirs"]), COLUMNS="200")
    assert told.returncode == (0 if name == "clusters list" else 2), told.stderr
    assert "ours" in told.stdout + told.stderr
    assert "Did you mean" not in told.stderr
