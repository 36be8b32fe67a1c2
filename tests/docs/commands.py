"""Check the commands of pages: run them if this machine can, else parse them. Each program has a row in `PROGRAMS`."""

import argparse
import contextlib
import io
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

from pytest_dtfperf.cli.options import make_parser
from pytest_dtfperf.clusters import named
from tests import campaign
from tests.docs.pages import REPOSITORY
from tests.docs.project import Project
from tests.plugin.conftest import Ended

CRON = re.compile(r"(?:[\d*/,-]+ +){5}")
ASSIGNED = re.compile(r"[A-Z_]+=")
OPERATORS = {"&&", "||", "|", ";"}
REDIRECTIONS = {">", "<", ">>", ">&", ">&>"}

# The only cluster that exists for these tests. For others, their tables are read and their commands are parsed.
HERE = "local"


@dataclass(frozen=True)
class Command:
    """A simple command: its environment variables, its program and its arguments."""

    environment: Mapping[str, str]
    argv: Sequence[str]

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""

    def __str__(self) -> str:
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.argv])

    def option(self, name: str) -> str | None:
        """Return the value of `--NAME=VALUE` or `--NAME VALUE`."""
        for argument, following in zip(self.argv, (*self.argv[1:], ""), strict=True):
            if argument.partition("=")[0] == name:
                return argument.partition("=")[2] or following
        return None


def commands(text: str) -> Iterator[Command]:
    """Yield the simple commands of shell lines, without operators, redirections and comments."""
    for line in text.splitlines():
        lexer = shlex.shlex(CRON.sub("", line, count=1), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        skipped = False
        for word in [*lexer, ";"]:
            if word in OPERATORS:
                if words:
                    yield _command(words)
                words = []
            elif word in REDIRECTIONS or skipped:
                skipped = word in REDIRECTIONS
            else:
                words.append(word)


def _command(words: Sequence[str]) -> Command:
    given = next((number for number, word in enumerate(words) if not ASSIGNED.match(word)), len(words))
    environment = dict(word.split("=", 1) for word in words[:given])
    return Command(environment, [word.replace("$HOME", "home") for word in words[given:]])


def is_command(text: str) -> bool:
    """Return whether each line begins with a program of `PROGRAMS`."""
    try:
        found = [next(commands(line), None) for line in text.splitlines() if line.strip()]
    except ValueError:  # unclosed quotes: not shell code
        return False
    return bool(found) and all(each is not None and each.program in PROGRAMS for each in found)


def check(text: str, project: Project) -> dict[str, Ended]:
    """Run or parse all commands of a text, and return the results of those that ran. Raises `AssertionError`."""
    shell = subprocess.run(["sh", "-n"], input=_without_cron(text), capture_output=True, text=True, check=False)
    assert shell.returncode == 0, shell.stderr
    ended: dict[str, Ended] = {}
    for command in commands(text):
        assert command.program in PROGRAMS, f"{command.program} is no program that pages show"
        if found := PROGRAMS[command.program](command, project):
            ended[str(command)] = found
    return ended


def understand(text: str) -> None:
    """Parse the commands of dtfperf in a text, for another machine. Raises `AssertionError`."""
    for command in commands(text):
        if command.program.endswith("dtfperf"):
            parse_arguments(command.argv[1:])


def _without_cron(text: str) -> str:
    return "\n".join(CRON.sub("", line, count=1) if CRON.match(line) else line for line in text.splitlines())


SHOWN = ("::test_", "distributed training performance", "dry run")  # by collection, by training, and by neither


def _pytest(command: Command, project: Project) -> Ended:
    """Run pytest with a toy training. Only collect tests of other clusters, of xdist, and of external programs."""
    cluster = command.option("--cluster") or HERE
    named.choose(cluster, project.clusters, ["."])
    collects = cluster != HERE or "-n" in command.argv or any(map(project.runs_programs, command.argv))
    ended = project.pytest(*command.argv[1:], *(("--co", "-q") if collects else ()), **command.environment)
    may_be = {0} | ({1} if "DTFPERF_SLOWDOWN" in command.environment else set())  # fails if a baseline was accepted
    too_many = "has 2 devices" in ended.out  # for this machine: then nothing is left to run
    assert ended.code in may_be | ({5} if too_many else set()), f"{command}: exit code {ended.code}\n{ended.out}{ended.err}"
    assert too_many or any(words in ended.out for words in SHOWN), ended.out
    return ended


# Commands of dtfperf that need neither hosts nor an account, or train on this machine.
RUN_HERE = {
    "init", "run", "launch", "figures", "judge", "explain", "history", "site", "make-data", "completion", "baselines",
    "clusters", "predict",
}  # fmt: skip
NOT_RUN = {
    ("baselines calibrate", "runs sessions for some minutes: tests/plugin/test_calibrate.py does"),
    ("baselines remove", "asks, and names what a reader's project has: tests/cli/test_remove.py"),
    ("baselines uncalibrate", "the same"),
    ("figures", "draws for a minute: tests/report/test_figures.py"),
    (
        "launch",
        "runs a program of the reader's: tests/cli/test_launch.py, and tests/real/test_examples.py those of docs/examples",
    ),
    ("make-data imagenet", "takes TensorFlow: tests/real/test_making.py"),
    ("run --models", "imports what is installed: tests/cli/test_run.py"),
    ("run my_models:small_cnn", "trains a model of the reader's: tests/cli/test_run.py"),
}
# Commands that compute for seconds, and have no output on a page: outside of campaigns they are parsed.
LONG = ("predict inception3 --device-rate=138", "predict resnet50 variable_update=collective_all_reduce")
MAY_FIND = ("baselines audit", "explain", "history changes", "judge")  # exit code 1 reports a finding


def _dtfperf(command: Command, project: Project) -> Ended | None:
    arguments = command.argv[1:]
    args = parse_arguments(arguments)
    cluster = getattr(args, "cluster", None) or HERE
    if arguments[0] != "init":  # which names what it is to write
        named.choose(cluster, project.clusters, ["."])
    typed = f"{shlex.join(arguments)} "
    if arguments[0] not in RUN_HERE or cluster != HERE or any(typed.startswith(f"{each} ") for each, _ in NOT_RUN):
        return None
    if not campaign.WHOLE and typed.startswith(LONG):
        return None
    ended = project.dtfperf(*arguments, **command.environment)
    may_be = (0, 1) if any(typed.startswith(f"{each} ") for each in MAY_FIND) else (0,)
    assert ended.code in may_be, f"{command}: exit code {ended.code}\n{ended.out}{ended.err}"
    return ended


@cache
def _parser() -> argparse.ArgumentParser:
    return make_parser()


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments as dtfperf's parser reads them. Raises `AssertionError` if it refuses them."""
    refused = io.StringIO()
    try:
        with contextlib.redirect_stderr(refused), contextlib.redirect_stdout(io.StringIO()):
            args, unknown = _parser().parse_known_args(list(arguments))
    except SystemExit as end:
        if end.code == 0:  # as --help, which needs nothing else
            return argparse.Namespace()
        raise AssertionError(f"dtfperf {shlex.join(arguments)}: {refused.getvalue()}") from end
    assert not unknown or getattr(args, "passes_on", False), f"dtfperf {shlex.join(arguments)}: {unknown} is not known"
    return args


def options_of(words: Sequence[str]) -> tuple[Sequence[str], set[str]]:
    """Return the leading commands of `words`, and the options of the last: `history list --json` has history and list."""
    known: list[str] = []
    at = _parser()
    for word in words:
        choices = next((each.choices for each in at._actions if isinstance(each, argparse._SubParsersAction)), {})
        if word not in choices:
            break
        at = choices[word]
        known.append(word)
    return known, {option for action in at._actions for option in action.option_strings}


def _make(command: Command, project: Project) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in command.argv[1:]:
        assert ASSIGNED.match(target) or re.search(rf"^{target}:", makefile, re.MULTILINE), f"make has no target {target}"


def _pip(command: Command, project: Project) -> None:
    """Check that the requested extras of the package exist. Nothing is installed."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in command.argv[2:]:
        if word.startswith((".", "pytest-dtfperf")):
            asked = Requirement(word.replace(".[", "pytest-dtfperf[", 1) if word != "." else "pytest-dtfperf")
            assert asked.name == "pytest-dtfperf", word
            assert asked.extras <= set(extras), f"{word}: there is no such extra"


def _repository_program(command: Command, project: Project) -> None:
    """Check a program of the repository."""
    path = REPOSITORY / command.program
    assert path.is_file(), f"{path} is not there"
    assert path.stat().st_mode & 0o100, f"{path} is no program"


def _sbatch(command: Command, project: Project) -> None:
    script = next(word for word in command.argv[1:] if not word.startswith("-"))
    _shell_script(REPOSITORY / script)


def _shell_script(path: Path) -> None:
    ended = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def _python(command: Command, project: Project) -> None:
    """Check a module or a file of the repository, and that it defines the given options."""
    arguments = list(command.argv[1:])
    if arguments[0] == "-m":
        module, rest = arguments[1], arguments[2:]
        if module in ("venv", "build", "http.server"):
            return
        path = REPOSITORY / f"{module.replace('.', '/')}.py"
    else:
        path, rest = REPOSITORY / arguments[0], arguments[1:]
    text = path.read_text()
    for word in rest:
        name = word.partition("=")[0]
        known = f'"{name}"' in text or path.name in ("nightly", "terminal_picture.py")  # the rest is another program's
        assert known, f"{command}: {path.name} knows no {name}"


def _check_files(command: Command, project: Project) -> None:
    """Check that the repository's files among the arguments of another program exist."""
    for word in command.argv[1:]:
        if found := re.fullmatch(r"(?:file://)?((?:docs|ci|perf_tests|tests)/.*)", word):
            assert (REPOSITORY / found[1]).exists(), f"{found[1]} is not there"


PROGRAMS: Mapping[str, Callable[[Command, Project], Ended | None]] = {
    "pytest": _pytest,
    "dtfperf": _dtfperf,
    "make": _make,
    "pip": _pip,
    "ci/check": _repository_program,
    "sbatch": _sbatch,
    "python": _python,
    "python3": _python,
    ".venv/bin/python": _python,
    **dict.fromkeys(
        (".", "aws", "cd", "chromium", "cp", "debootstrap", "git", "head", "mkdir", "ssh-keygen", "ssh-keyscan", "tail", "uvx"),
        _check_files,
    ),
}  # fmt: skip
