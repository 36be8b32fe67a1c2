"""The command line: one table of options, read once into one frozen object.

Every option exists as `--dtfperf-NAME` and, where nobody else has it, as `--NAME` (short_options.py); its ini twin is
`dtfperf_NAME`.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_dtfperf.baselines.usual import FALSE_ALARMS, MOST_EFFICIENT, MOST_RUNS
from pytest_dtfperf.errors import UNEXPANDED, UsageError, shown, unknown_name
from pytest_dtfperf.session.settings import ExplainWord, Settings, UpdateWord
from pytest_dtfperf.spec import VARIABLE_UPDATES

NumPsWord = Literal["best", "sweep"]
WRITTEN = pytest.StashKey[Mapping[str, str]]()  # an option's field -> the name it was given by on the command line
NUM_PS_WORDS: tuple[NumPsWord, ...] = ("best", "sweep")
UPDATE_WORDS: tuple[UpdateWord, ...] = ("all", "new")
EXPLAIN_WORDS: tuple[ExplainWord, ...] = ("always", "auto", "never")


@dataclass(frozen=True)
class Options(Settings):
    """What the user asked for. None: not said, so the test, the cluster or the model decides."""

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


def _count(text: str, least: int = 1) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text) or int(text) < least:
        raise UsageError(f"takes a whole number of at least {least}, not {shown(text)}")
    return int(text)


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise UsageError(f"takes a path, not {text!r}")
    if UNEXPANDED.match(text):
        raise UsageError(f"takes a path, not {text!r}: nothing expands ~ or $NAME there. Write it out")
    return Path(text)


def _history(text: str) -> Path | str:
    """A path, which an ini file's folder may go before, or what is none."""
    from pytest_dtfperf.history.where import address_of  # every pytest run on a machine with this plugin reads this file

    address = address_of(text, Path())
    return Path(text) if address and address.path and "://" not in text else text


def _number(text: str) -> float:
    """Not a number, where the text is none: then it is within no bounds."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _fraction(text: str) -> float:
    """A number between 0 and 1."""
    value = _number(text)
    if not 0 < value < 1:
        raise UsageError(f"takes a fraction, as 0.05 for 5 %, not {text!r}")
    return value


def _efficiency(text: str) -> float:
    """More than 1 is possible."""
    value = _number(text)
    if not 0 < value <= MOST_EFFICIENT:
        raise UsageError(f"takes an efficiency, as 0.9 for 90 %, not {text!r}")
    return value


def _counts(text: str, least: int = 1) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_count(part, least) for part in text.split(",")))


def _parameter_servers(text: str) -> tuple[int, ...] | NumPsWord:
    for word in NUM_PS_WORDS:
        if text == word:
            return word
    if not re.fullmatch(r"[\s,]*[0-9][\s,0-9]*", text):
        raise UsageError(f"takes whole numbers, `best` or `sweep`, not {shown(text)}")
    return _counts(text, least=0)


def _variable_updates(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in VARIABLE_UPDATES:
            raise UsageError(unknown_name("variable update", name, VARIABLE_UPDATES))
    return names


def _update(text: str) -> UpdateWord:
    for word in UPDATE_WORDS:
        if text == word:
            return word
    raise UsageError(f"takes `all` or `new`, not {text!r}")


def _explain(text: str) -> ExplainWord:
    for word in EXPLAIN_WORDS:
        if text == word:
            return word
    raise UsageError(f"takes `always`, `auto` or `never`, not {text!r}")


def _flag(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in words:
        raise UsageError(f"takes true or false, not {text!r}")
    return words[text.lower()]


@dataclass(frozen=True)
class Option:
    """One option: how it is written, what it means, how its text is read."""

    name: str
    metavar: str
    help: str
    read: Callable[[str], Any]
    bare: str | None = None  # what the option means when it is given without a value
    variable: str | None = None  # of the environment, that says the same: after the command line, before the ini file

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def ini(self) -> str:
        return f"dtfperf_{self.field}"


OPTIONS = (
    Option("cluster", "NAME", "where to train: an entry of clusters.toml; `local` by default", str),
    Option("clusters-file", "FILE", "the file that describes clusters; by default clusters.toml beside the tests, or above",
           _path),
    Option("gpus", "N,..",
           "device counts to test; by default the test's own, else 1, 2, 4, ... up to what the cluster has", _counts),
    Option("num-ps", "N,..|best|sweep",
           "parameter servers; `best` takes the baseline's best known, `sweep` finds it; by default the test's own, else 1",
           _parameter_servers),
    Option("variable-update", "MODE,..", f"of {', '.join(VARIABLE_UPDATES)}; by default those the test names",
           _variable_updates),
    Option("repeats", "N",
           f"most runs per measurement, by default the cluster's or {MOST_RUNS}; a verdict takes as few as it needs", _count),
    Option("all-repeats", "BOOL", "make all repeats, even where fewer decide: to learn how rates scatter", _flag, "true"),
    Option("margin", "FRACTION", "how much slower than its baseline a rate may be: 0.05 is 5 %", _fraction),
    Option("min-efficiency", "FRACTION", "least scaling efficiency: 0.9 is 90 %", _efficiency),
    Option(
        "false-alarms", "FRACTION", f"how many sessions without any change may turn red; {FALSE_ALARMS} by default", _fraction
    ),
    Option("steps", "N", "measured steps per run", _count),
    Option("warmup-steps", "N", "steps before the measured ones", lambda text: _count(text, least=0)),
    Option("batch-size", "N", "images per device and step", _count),
    Option("update-baselines", "all|new", "accept what was measured; `new`: only what has no baseline yet", _update, "all"),
    Option("allow-regression", "WHY", "let a slower rate become the baseline; the reason is kept in it", str),
    Option("explain", "always|auto|never",
           "trace some more steps, to tell where their time goes; `auto`, the default: of new baselines and what is not green",
           _explain, "always"),
    Option("diagnose", "BOOL", "try out what may have made a measurement slower, by short runs on hosts that are still lent",
           _flag, "true"),
    Option("strict-verdicts", "BOOL", "fail where nothing was decided, too: INCONCLUSIVE, NO_BASELINE, ...", _flag, "true"),
    Option("dry-run", "BOOL",
           "show what would be asked of the cluster, where tasks would run and how long it may take; start nothing",
           _flag, "true"),
    Option("baselines", "DIR", "where baselines are kept; by default `baselines` in pytest's root directory", _path),
    Option("perf-results", "DIR", "where session folders go; by default `perf_results` in pytest's root directory", _path),
    Option("history", "FILE|URL|never", "the database of all sessions; `history.sqlite` in --perf-results by default",
           _history, variable="DTFPERF_HISTORY"),
    Option("history-gate", "BOOL", "fail the session when it confirms a change over time", _flag, "true"),
)  # fmt: skip


def add(parser: pytest.Parser) -> None:
    """Register every option and its ini twin. Called once, at start, in every pytest run on the machine."""
    group = parser.getgroup("dtfperf", "performance of distributed TensorFlow training")
    for option in OPTIONS:
        given = option.help.replace("%", "%%")  # argparse would fill in what follows one
        attributes: dict[str, Any] = {"dest": f"dtfperf_{option.field}", "metavar": option.metavar, "help": given}
        if option.bare is not None:
            attributes |= {"nargs": "?", "const": option.bare}
        group.addoption(f"--dtfperf-{option.name}", default=None, **attributes)
        parser.addini(option.ini, f"default of --dtfperf-{option.name}: {option.help}", type="string", default=None)


def given(config: pytest.Config) -> bool:
    """Whether the command line or the ini file says anything to this plugin."""
    return any(_text(config, option) is not None for option in OPTIONS)


def read(config: pytest.Config) -> Options:
    """The options as one object. Raises `UsageError` naming the option and what it takes."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        text = _text(config, option, os.environ)
        if text is None:
            continue
        try:
            values[option.field] = _read_by(config, option, text)
        except UsageError as error:
            raise UsageError(f"{_where(config, option)} {error}") from None
    return Options(**values)


def _text(config: pytest.Config, option: Option, environment: Mapping[str, str] = {}) -> str | None:
    given: str | None = config.getoption(f"dtfperf_{option.field}")
    if given is not None:
        return given
    if option.variable and environment.get(option.variable):
        return environment[option.variable]
    return config.getini(option.ini) or None  # an ini value that is empty says nothing (pytest 8's default is "")


def _read_by(config: pytest.Config, option: Option, text: str) -> Any:
    """A path in the ini file begins where that file is, as all of pytest's do."""
    value = option.read(text)
    is_from_ini = text == config.getini(option.ini) and config.getoption(f"dtfperf_{option.field}") is None
    if isinstance(value, Path) and config.inipath and is_from_ini:
        return config.inipath.parent / value
    return value


def _where(config: pytest.Config, option: Option) -> str:
    if config.getoption(f"dtfperf_{option.field}") is not None:
        return name_of(config, option)
    if option.variable and os.environ.get(option.variable):
        return option.variable
    return f"{config.inipath or 'ini file'}: {option.ini}"


def name_of(config: pytest.Config, option: Option) -> str:
    """As it was written, or else as it always may be."""
    return config.stash.get(WRITTEN, {}).get(option.field, f"--dtfperf-{option.name}")


def given_options(config: pytest.Config, but: Sequence[str]) -> list[str]:
    """What the command line says to this plugin, as it can be said again."""
    found = ((option, config.getoption(f"dtfperf_{option.field}")) for option in OPTIONS if option.name not in but)
    return [f"{name_of(config, option)}={text}" for option, text in found if text is not None]
