"""The command line: one table of options, read once into one frozen object, and the options' short names.

Every option exists as `--dtfperf-NAME` and, unless another plugin uses it, as `--NAME`; its ini option is
`dtfperf_NAME`.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import pytest

from pytest_dtfperf.baselines.verdict import FALSE_ALARMS, MOST_EFFICIENT, MOST_RUNS
from pytest_dtfperf.errors import UNEXPANDED, UsageError, describe_unknown_name, show_value
from pytest_dtfperf.formats import TIME_BUDGET_FORM, parse_number, parse_time_budget
from pytest_dtfperf.node.files import read_text
from pytest_dtfperf.session.settings import ExplainWord, Settings, UpdateWord
from pytest_dtfperf.spec import VARIABLE_UPDATES

if TYPE_CHECKING:  # imported where the option is given
    from pytest_dtfperf.compare.variants import Variant

NumPsWord = Literal["best", "sweep"]
WRITTEN = pytest.StashKey[Mapping[str, str]]()  # an option's field -> its name on the command line
NUM_PS_WORDS: tuple[NumPsWord, ...] = ("best", "sweep")


@dataclass(frozen=True)
class Options(Settings):
    """The user's settings. None: not set, so the test, the cluster or the model decides."""

    cluster: str = "local"
    clusters_file: Path | None = None
    gpus: tuple[int, ...] | None = None
    num_ps: tuple[int, ...] | NumPsWord | None = None
    variable_update: tuple[str, ...] | None = None
    strict_verdicts: bool = False
    dry_run: bool = False
    baselines: Path | None = None
    perf_results: Path | None = None
    history_gate: bool = False
    ab: "tuple[Variant, ...]" = ()


def _parse_variants(text: str) -> "list[Variant | Path]":
    """Return the variants and TOML files of lines. Raises `UsageError`."""
    from pytest_dtfperf.compare.variants import parse_variant

    lines = filter(None, map(str.strip, text.splitlines()))
    return [Path(line) if line.endswith(".toml") and ": " not in line else parse_variant(line) for line in lines]


def _load_files(given: "list[Variant | Path]", folder: Path) -> "tuple[Variant, ...]":
    """Return the variants, with those of the files, of which relative paths are in the folder. Raises `UsageError`."""
    from pytest_dtfperf.compare.variants import load_variants

    return tuple(each for one in given for each in (load_variants(folder / one) if isinstance(one, Path) else [one]))


def _count(text: str, least: int = 1) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text) or int(text) < least:
        raise UsageError(f"takes a whole number of at least {least}, not {show_value(text)}")
    return int(text)


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise UsageError(f"takes a path, not {text!r}")
    if UNEXPANDED.match(text):
        raise UsageError(f"takes a path, not {text!r}: ~ and $NAME are not expanded. Give the full path")
    return Path(text)


def _parse_history(text: str) -> Path | str:
    """Return a path, relative to the folder of an ini file, or a text that is no path."""
    from pytest_dtfperf.history.where import parse_address

    address = parse_address(text, Path())
    return Path(text) if address and address.path and "://" not in text else text


def _parse_fraction(text: str) -> float:
    """Return a number between 0 and 1."""
    value = parse_number(text)
    if not 0 < value < 1:
        raise UsageError(f"takes a fraction, as 0.05 for 5 %, not {text!r}")
    return value


def _parse_efficiency(text: str) -> float:
    """Return an efficiency, which may be above 1."""
    value = parse_number(text)
    if not 0 < value <= MOST_EFFICIENT:
        raise UsageError(f"takes an efficiency, as 0.9 for 90 %, not {text!r}")
    return value


def _parse_counts(text: str, least: int = 1) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_count(part, least) for part in text.split(",")))


def _parse_parameter_servers(text: str) -> tuple[int, ...] | NumPsWord:
    for word in NUM_PS_WORDS:
        if text == word:
            return word
    if not re.fullmatch(r"[\s,]*[0-9][\s,0-9]*", text):
        raise UsageError(f"takes whole numbers, `best` or `sweep`, not {show_value(text)}")
    return _parse_counts(text, least=0)


def _parse_variable_updates(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in VARIABLE_UPDATES:
            raise UsageError(describe_unknown_name("variable update", name, VARIABLE_UPDATES))
    return names


def _make_word_parser(*words: str) -> Callable[[str], str]:
    """Return a function that takes one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise UsageError(f"takes {', '.join(f'`{word}`' for word in words[:-1])} or `{words[-1]}`, not {text!r}")
        return text

    return parse


def _time_budget(text: str) -> float | Literal["none"]:
    try:
        return parse_time_budget(text) or "none"
    except ValueError:
        raise UsageError(f"takes {TIME_BUDGET_FORM}, not {show_value(text)}") from None


def _parse_flag(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise UsageError(f"takes true or false, not {text!r}")
    return values[text.lower()]


@dataclass(frozen=True)
class Option:
    """One option: its name, its help, its parser."""

    name: str
    metavar: str
    help: str
    read: Callable[[str], Any]
    bare: str | None = None  # the value of an option without one
    variable: str | None = None  # environment variable with the same value: after the command line, before the ini file
    is_repeatable: bool = False  # given several times, the values are lines of one text, as in the ini file

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def ini(self) -> str:
        return f"dtfperf_{self.field}"


OPTIONS = (
    Option("cluster", "NAME", "a cluster of clusters.toml; by default `local`, this machine", str),
    Option("clusters-file", "FILE", "the cluster file; by default clusters.toml beside the tests, or in a parent folder",
           _parse_path),
    Option("gpus", "N,..",
           "numbers of devices; by default those of the test, else 1, 2, 4, ... up to all devices of the cluster",
           _parse_counts),
    Option("num-ps", "N,..|best|sweep",
           "numbers of parameter servers; `best` uses that of the fastest baseline, `sweep` finds the fastest; by default "
           "those of the test, else 1",
           _parse_parameter_servers),
    Option("variable-update", "MODE,..", f"of {', '.join(VARIABLE_UPDATES)}; by default those of the test",
           _parse_variable_updates),
    Option("repeats", "N",
           f"maximum number of runs of a measurement, by default the cluster's or {MOST_RUNS}; a verdict uses as few as it can",
           _count),
    Option("all-repeats", "BOOL", "make all repeats, even if fewer decide, to measure the noise of rates", _parse_flag, "true"),
    Option("margin", "FRACTION", "largest allowed loss of rate against the baseline: 0.05 is 5 %", _parse_fraction),
    Option("min-efficiency", "FRACTION", "smallest allowed scaling efficiency: 0.9 is 90 %", _parse_efficiency),
    Option(
        "false-alarms", "FRACTION", f"largest fraction of sessions without any change that may fail; {FALSE_ALARMS} by default",
        _parse_fraction,
    ),
    Option("time-budget", "TIME|none",
           "time for all measurements, as 6min, shared among the tests, cheap ones first; limits steps and runs, and leaves "
           "out tests without time; by default that of the cluster, unless baselines are accepted", _time_budget),
    Option("steps", "N", "measured steps per run", _count),
    Option("warmup-steps", "N", "steps before the measured ones", lambda text: _count(text, least=0)),
    Option("batch-size", "N", "images per device and step", _count),
    Option("update-baselines", "all|new", "accept the measured rates as baselines; `new`: only those without a baseline",
           _make_word_parser(*get_args(UpdateWord)), "all"),
    Option("allow-regression", "WHY", "accept slower rates as baselines, too; the reason is stored with them", str),
    Option("explain", "always|auto|never",
           "trace some more steps and show their breakdown; `auto`, the default: for new baselines and bad verdicts",
           _make_word_parser(*get_args(ExplainWord)), "always"),
    Option("diagnose", "BOOL", "test possible causes of a slower measurement by short runs on hosts that are still allocated",
           _parse_flag, "true"),
    Option("strict-verdicts", "BOOL", "undecided verdicts (INCONCLUSIVE, NO_BASELINE, ...) fail, too", _parse_flag, "true"),
    Option("dry-run", "BOOL",
           "show the requests to the cluster, the host of each task and the expected time, and start nothing",
           _parse_flag, "true"),
    Option("baselines", "DIR", "the folder of baselines; by default `baselines` in pytest's root directory", _parse_path),
    Option("perf-results", "DIR", "the folder of sessions; by default `perf_results` in pytest's root directory", _parse_path),
    Option("history", "FILE|URL|never", "the database of all sessions; by default `history.sqlite` in --perf-results",
           _parse_history, variable="DTFPERF_HISTORY"),
    Option("history-gate", "BOOL", "fail the session when it confirms a change over time", _parse_flag, "true"),
    Option("ab", "NAME: KEY=VALUE ..|FILE",
           "compare software stacks in each test, and not a rate with its baseline; once for each stack, the reference first",
           _parse_variants, is_repeatable=True),
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Register every option and its ini twin. Called once, at start, in every pytest run on the machine."""
    group = parser.getgroup("dtfperf", "performance of distributed TensorFlow training")
    for option in OPTIONS:
        given = option.help.replace("%", "%%")  # argparse formats with %
        attributes: dict[str, Any] = {"dest": f"dtfperf_{option.field}", "metavar": option.metavar, "help": given}
        if option.bare is not None:
            attributes |= {"nargs": "?", "const": option.bare}
        if option.is_repeatable:
            attributes |= {"action": "append"}
        group.addoption(f"--dtfperf-{option.name}", default=None, **attributes)
        parser.addini(option.ini, f"default of --dtfperf-{option.name}: {option.help}", type="string", default=None)


def is_given(config: pytest.Config) -> bool:
    """Return whether the command line or the ini file sets an option of this plugin."""
    return any(_read_text(config, option) is not None for option in OPTIONS)


def read_options(config: pytest.Config) -> Options:
    """Return the options as one object. Raises `UsageError` with the option and its allowed values."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        text = _read_text(config, option, os.environ)
        if text is None:
            continue
        try:
            values[option.field] = _read_by(config, option, text)
        except UsageError as error:
            raise UsageError(f"{_format_source(config, option)} {error}") from None
    return Options(**values)


def _read_text(config: pytest.Config, option: Option, environment: Mapping[str, str] = {}) -> str | None:
    given: str | list[str] | None = config.getoption(f"dtfperf_{option.field}")
    if given is not None:
        return given if isinstance(given, str) else "\n".join(given)
    if option.variable and environment.get(option.variable):
        return environment[option.variable]
    return config.getini(option.ini) or None  # an empty ini value sets nothing (pytest 8's default is "")


def _read_by(config: pytest.Config, option: Option, text: str) -> Any:
    """Return the value; a path in the ini file is relative to that file, as all of pytest's are."""
    value = option.read(text)
    is_from_ini = text == config.getini(option.ini) and config.getoption(f"dtfperf_{option.field}") is None
    folder = config.inipath.parent if config.inipath and is_from_ini else Path()
    if option.field == "ab":
        return _load_files(value, folder)
    return folder / value if isinstance(value, Path) else value


def _format_source(config: pytest.Config, option: Option) -> str:
    if config.getoption(f"dtfperf_{option.field}") is not None:
        return name_of(config, option)
    if option.variable and os.environ.get(option.variable):
        return option.variable
    return f"{config.inipath or 'ini file'}: {option.ini}"


def name_of(config: pytest.Config, option: Option) -> str:
    """Return the option's name on the command line, or else its long name."""
    return config.stash.get(WRITTEN, {}).get(option.field, f"--dtfperf-{option.name}")


def list_given_options(config: pytest.Config, excluded: Sequence[str]) -> list[str]:
    """Return the options of this plugin on the command line, for another call."""
    found = ((option, config.getoption(f"dtfperf_{option.field}")) for option in OPTIONS if option.name not in excluded)
    each = ((option, [given] if isinstance(given, str) else given or []) for option, given in found)
    return [f"{name_of(config, option)}={text}" for option, texts in each for text in texts]


INI = "dtfperf_short_options"
PREFIX = "--dtfperf-"
PYTESTS = ("pytest", "py.test", "__main__.py")  # sys.argv[0] of pytest's own programs; `python -m pytest` is the last

_NUMBER_BELOW_0 = re.compile(r"-\d+|-\d*\.\d+")  # a value for argparse, though it begins like an option


@dataclass(frozen=True)
class GivenOption:
    """One of the plugin's options on the command line."""

    option: Option
    name: str  # on the command line: "--gpus" or "--dtfperf-gpus"
    value: str | None  # None: a required value is missing
    is_next: bool = False  # its value is the next argument

    def format_word(self, name: str) -> str:
        """Return the option as one argument, by that name."""
        return name if self.value is None else f"{name}={self.value}"


def add_short_options(parser: pytest.Parser) -> None:
    text = "whether the options of dtfperf may be written without their prefix, unless another plugin has such an option"
    parser.addini(INI, text, type="bool", default=True)


def write_out_long(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Expand long options with their values, before conftests are searched: in `--dtfperf-dry-run test.py` it is a test."""
    found = list(read_arguments(args, lambda word: False))
    if any(isinstance(each, GivenOption) for each in found):
        args[:] = _make_arguments(found)
        config.known_args_namespace.file_or_dir = parser.parse_known_args(args).file_or_dir


def write_out(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Expand short options, once conftests have registered theirs. Raises `UsageError`."""
    args[:] = _with_files(args)
    is_free = find_unregistered(config, parser, args)
    found = list(read_arguments(args, is_free))
    given = [each for each in found if isinstance(each, GivenOption)]
    keep_root(config, is_free)
    args[:] = _make_arguments(found)
    config.stash[WRITTEN] = {each.option.field: each.name for each in given}
    if config.known_args_namespace.help:
        _show(config, parser)


def read_arguments(arguments: Sequence[str], is_free: Callable[[str], bool]) -> Iterator[GivenOption | str]:
    """Yield the arguments of the command line, with this plugin's options parsed.

    Args:
        is_free: returns whether no other plugin has registered an argument such as `--gpus=2`.
    """
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":  # the rest are tests
            yield from (word, *left)
            return
        name, has_value, value = word.partition("=")
        option = _option(name)
        if option is None or not (name.startswith(PREFIX) or is_free(word)):
            yield word
        elif has_value:
            yield GivenOption(option, name, value)
        elif left and _is_value(option, left[0]):
            yield GivenOption(option, name, left.pop(0), is_next=True)
        else:
            yield GivenOption(option, name, option.bare)


def _option(name: str) -> Option | None:
    return next((option for option in OPTIONS if name in (f"--{option.name}", PREFIX + option.name)), None)


def _is_value(option: Option, word: str) -> bool:
    """Return whether the argument after an option is its value: in `--dry-run test.py` it is not."""
    if option.bare is None:
        return not word.startswith("-") or bool(_NUMBER_BELOW_0.fullmatch(word))
    try:
        option.read(word)
    except UsageError:
        return False
    return True


def _make_arguments(found: Iterable[GivenOption | str]) -> list[str]:
    """Return the arguments for pytest's parser, which knows the long names."""
    return [each if isinstance(each, str) else each.format_word(PREFIX + each.option.name) for each in found]


def find_unregistered(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> Callable[[str], bool]:
    """Return a function for arguments that no plugin has registered. The parser is used only if one may be such an option."""
    if not config.getini(INI) or not any(_option(word.partition("=")[0]) for word in args):
        return lambda word: False
    try:
        unknown = parser.parse_known_and_unknown_args(args)[1]
    except pytest.UsageError:  # pytest is about to report it
        unknown = []
    return frozenset(unknown).__contains__


def _with_files(args: Sequence[str]) -> list[str]:
    """Replace `@FILE` by its arguments if some are options of this plugin; pytest reports a file that cannot be read."""
    found = []
    for arg in args:
        arguments = [arg]
        if arg.startswith("@"):
            with suppress(OSError):
                arguments = read_text(arg[1:]).splitlines()
        found += arguments if any(_option(word.partition("=")[0]) for word in arguments) else [arg]
    return found


def keep_root(config: pytest.Config, is_free: Callable[[str], bool]) -> None:
    """Restart pytest if it has taken an option's value for the path of a test.

    It finds its root directory, and the ini file there, before it knows these options: in `--baselines ../theirs` the value
    looks like a test of another project. Raises `UsageError` if pytest is not a program of its own, which could be
    restarted.
    """
    given = [*config.invocation_params.args], shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    own, added = (list(read_arguments([str(word) for word in arguments], is_free)) for arguments in given)
    folder = config.invocation_params.dir
    taken = [
        each for each in (*own, *added) if isinstance(each, GivenOption) and each.is_next and _is_path(folder, each.value or "")
    ]
    if not taken:
        return
    in_one = [
        [each if isinstance(each, str) else each.format_word(each.name) for each in arguments] for arguments in (own, added)
    ]
    start = len(sys.orig_argv) - len(given[0])
    if os.path.basename(sys.argv[0]) not in PYTESTS or sys.orig_argv[start:] != given[0]:
        one = taken[0]
        raise UsageError(
            f"{one.name} {one.value}: pytest takes a value after a blank for a test, and reads the ini file above it: "
            f"write {one.format_word(one.name)}"
        )
    _start_anew(folder, [*sys.orig_argv[:start], *in_one[0]], shlex.join(in_one[1]))


def _start_anew(folder: Path, command: list[str], addopts: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(folder)
    os.execve(sys.executable, command, {**os.environ, "PYTEST_ADDOPTS": addopts})


def _is_path(folder: Path, text: str) -> bool:
    try:
        return (folder / text.partition("::")[0]).exists()
    except (OSError, ValueError):  # too long for a name, or not one: no path of a test either
        return False


def _show(config: pytest.Config, parser: pytest.Parser) -> None:
    """Register the short names for `--help`: nothing is collected then, so no other plugin registers options later."""
    if not config.getini(INI):
        return
    group = parser.getgroup(
        "dtfperf-short", "the same without the prefix, unless another plugin has the option", after="dtfperf"
    )
    for option in OPTIONS:
        name = f"--{option.name}"
        try:
            is_free = name in parser.parse_known_and_unknown_args([name])[1]
        except (pytest.UsageError, SystemExit):  # it lacks a value, or prints and exits: another plugin's
            continue
        if is_free:
            optional = {"nargs": "?"} if option.bare is not None else {}
            group.addoption(
                name,
                dest=f"dtfperf_{option.field}",
                default=None,
                metavar=option.metavar,
                help=f"{PREFIX}{option.name}",
                **optional,
            )
