"""Define the parser, exit codes, shapes of --json, common options with completion, and tables of all commands.

The parser reports errors in one line with a suggestion. `dtfperf completion` writes the completion for shells.
"""

import argparse
import difflib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NoReturn, TextIO

from pytest_dtfperf.cli.project import find_configured_path
from pytest_dtfperf.clusters import file, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import DtfPerfError, describe_unknown_name
from pytest_dtfperf.formats import printable

# Modules of this package. Each has `add_parser(commands)`, which adds the parsers of its commands and sets `run`, a function
# of the arguments that returns an exit code. A module imports its dependencies when it runs.
COMMANDS = (
    "init", "clusters", "doctor", "run", "ab", "bisect", "slow_hosts", "predict", "stored_session", "nightly",
    "history", "site", "figures", "baselines", "slurm", "ec2", "launch", "notebook", "data",
)  # fmt: skip

DONE, FAILED, USAGE = 0, 1, 2
NOT_JUDGED = 3  # of commands that judge hosts
HUNG_UP, INTERRUPTED, CUT_OFF, TERMINATED = 129, 130, 141, 143  # as in shells: 128 + the signal's number
ExitCodes = Mapping[Any, str]  # by code, or by a description for codes of other programs
EXIT_CODES: ExitCodes = {  # of all commands; a command's help has its meanings of 0, 1 and 2, and further codes
    DONE: "done",
    FAILED: "the command failed, or a check found a problem",
    USAGE: "wrong arguments, or a file that cannot be read",
}
SIGNALS: Mapping[int, str] = {
    HUNG_UP: "SIGHUP, as of a terminal that is closed",
    INTERRUPTED: "SIGINT: Ctrl-C",
    CUT_OFF: "SIGPIPE: the reader of the output has ended",
    TERMINATED: "SIGTERM, as of batch systems and CI",
}
BASELINES, RESULTS = "baselines", "perf_results"  # default folders
HELP_COLUMNS = 126  # as the texts are written
LOG_COLUMNS = 200  # columns of a log: its lines are searched rather than read

SESSION_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
OTHER_KEYS = "..."  # in a shape: there are more keys

Commands = argparse._SubParsersAction  # the type that `add_subparsers` returns has no public name


# Documents the output of --json: keys with their meanings; a list holds one object, which describes all its items.
Shape = Mapping[str, "str | Shape | list[Shape]"]


def add_command(
    commands: "Commands[argparse.ArgumentParser]",
    name: str,
    *,
    help: str,  # noqa: A002
    text: str,
    ends: ExitCodes,
) -> argparse.ArgumentParser:
    """Add a command. Its help shows `text` and the exit codes: the common ones, changed by `ends`."""
    endings: ExitCodes = {**EXIT_CODES, **ends}
    raw = argparse.RawDescriptionHelpFormatter
    made = commands.add_parser(name, help=help, description=text, epilog=format_exit_codes(endings), formatter_class=raw)
    made.set_defaults(parser=made, endings=endings)
    return made


def add_group(
    commands: "Commands[argparse.ArgumentParser]",
    name: str,
    *,
    help: str,  # noqa: A002
    text: str,
) -> "Commands[argparse.ArgumentParser]":
    """Add a command that has commands of its own, and return the object to add them to."""
    raw = argparse.RawDescriptionHelpFormatter
    epilog = f"Help of each: dtfperf {name} COMMAND --help.\n\n{format_exit_codes()}"
    group = commands.add_parser(name, help=help, description=text, epilog=epilog, formatter_class=raw)
    return group.add_subparsers(title="commands", required=True, metavar="COMMAND")


def format_exit_codes(endings: ExitCodes = EXIT_CODES) -> str:
    """Return `Exit codes: 0 done; 1 ...`, in lines of a help."""
    each = [f"{code} {meaning}" for code, meaning in endings.items()]
    signals = ", ".join(f"{code} {meaning.partition(',')[0].partition(':')[0]}" for code, meaning in SIGNALS.items())
    text = "; ".join([*each, f"128 + N ended by signal N: {signals}"])
    return textwrap.fill(f"Exit codes: {text}.", HELP_COLUMNS, break_on_hyphens=False, break_long_words=False)


def add_json(parser: argparse.ArgumentParser, shape: Shape, *, lines: str = "") -> None:
    """Add --json, which prints an object of this shape, or a line for each of `lines`."""
    what = f"a line of JSON for each {lines}" if lines else "JSON"
    parser.add_argument("--json", action="store_true", help=f"print {what} instead: {format_keys(shape)}".replace("%", "%%"))
    parser.set_defaults(shape=shape, is_lines=bool(lines))


def add_metrics(parser: argparse.ArgumentParser) -> None:
    text = "write the metrics of the result for Prometheus to FILE.prom, or send them to a Pushgateway; can be repeated"
    parser.add_argument("--metrics", metavar="FILE|URL", action="append", default=[], help=text)


def format_keys(shape: Shape) -> str:
    """Return `{file, clusters: [{name, ...}]}`."""

    def format_value(value: "str | Shape | list[Shape]") -> str:
        keys = "" if isinstance(value, str) else format_keys(value[0] if isinstance(value, list) else value)
        return f": [{keys}]" if isinstance(value, list) else f": {keys}" if keys else ""

    return f"{{{', '.join(f'{key}{format_value(value)}' for key, value in shape.items())}}}"


def add_cluster(
    parser: argparse.ArgumentParser,
    *,
    required: bool = False,
    text: str = "a cluster of clusters.toml; by default this machine",
) -> None:
    """Add --cluster and --clusters-file."""
    action = parser.add_argument("--cluster", metavar="NAME", required=required, help=text)
    set_completer(action, complete_cluster_names)
    text = "the cluster file; by default the project's dtfperf_clusters_file, or clusters.toml here, in perf_tests or above"
    parser.add_argument("--clusters-file", metavar="FILE", help=text)


def set_completer(action: argparse.Action, complete: Callable[..., Iterable[str]]) -> None:
    """Set the completions of the argument: argcomplete calls it with `prefix`, `parsed_args` and more."""
    vars(action)["completer"] = complete


def complete_cluster_names(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """Return the names in the cluster file; none if it cannot be read."""
    given = getattr(parsed_args, "clusters_file", None)  # only some commands have the option
    try:
        return list(
            named.load(file.find_cluster_file(given or find_configured_path("dtfperf_clusters_file"), ["."]))
        )  # a mapping would be taken for a description of each
    except DtfPerfError:
        return ()


def load_cluster(args: argparse.Namespace) -> ClusterConfig:
    """Return the cluster of --cluster. Raises `ClusterFileError`, `UsageError`."""
    return named.choose(args.cluster, find_clusters_file(args), ["."])[1]


def find_clusters_file(args: argparse.Namespace) -> str | Path | None:
    """Return the cluster file of the option or of the project. Raises `UsageError`."""
    return args.clusters_file or find_configured_path("dtfperf_clusters_file")


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Add --baselines, which `find_baselines_folder` reads."""
    text = f"the folder of baselines; by default the project's dtfperf_baselines, or {BASELINES} here"
    parser.add_argument("--baselines", metavar="DIR", help=text)


def find_baselines_folder(args: argparse.Namespace) -> Path:
    """Return the folder of baselines, which may not exist. Raises `UsageError`."""
    return Path(args.baselines or find_configured_path("dtfperf_baselines") or BASELINES)


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add --results, which `find_results_folder` reads."""
    text = f"the folder of sessions; by default the project's dtfperf_perf_results, or {RESULTS} here"
    parser.add_argument("--results", metavar="DIR", help=text)


def find_results_folder(args: argparse.Namespace) -> Path:
    """Return the folder of sessions, which may not exist, also for commands without --results. Raises `UsageError`."""
    return Path(getattr(args, "results", None) or find_configured_path("dtfperf_perf_results") or RESULTS)


# Keys of measurements.jsonl for programs; docs/session.md has all of them.
RECORD_SHAPE: Shape = {
    "id": "of the measurement",
    "test": "the test that measured it; null: no test did",
    "spec": "the training: model, gpus, num_ps, variable_update, ...",
    "images_per_sec": "the measurement's rate",
    "runs": "a list of its runs, each with images_per_sec",
    "verdict": "PASSED, REGRESSED, ...; null: it was not judged",
    "reason": "of the verdict",
    OTHER_KEYS: "see docs/session.md",
}


def complete_session_ids(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the ids of sessions with a local folder, and `last`."""
    return [*(path.name for path in _list_session_folders(parsed_args)), "last"]


def complete_session_folders(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return folders of sessions, or other folders if none matches."""
    from argcomplete.completers import DirectoriesCompleter

    found = [str(path) for path in _list_session_folders(parsed_args)]
    return [path for path in found if path.startswith(prefix)] or list(DirectoriesCompleter()(prefix))


def _list_session_folders(args: argparse.Namespace) -> list[Path]:
    """Return session folders, recognised by their names."""
    try:
        found = [each for each in sorted(find_results_folder(args).iterdir()) if SESSION_ID.fullmatch(each.name)]
    except (DtfPerfError, OSError):
        return []
    return [Path(os.path.relpath(each)) for each in found]


def complete_patterns(prefix: str, **_: object) -> list[str]:
    """Return fields of a training, or the values of one as far as they are names."""
    from pytest_dtfperf.baselines.store import PATTERN_FIELDS

    return complete_fields(prefix, PATTERN_FIELDS)


def complete_fields(prefix: str, fields: Iterable[str]) -> list[str]:
    name, equals, _ = prefix.partition("=")
    if not equals:
        return [f"{field}=" for field in fields]
    from pytest_dtfperf import spec

    known: Mapping[str, Iterable[str]] = {"model": spec.MODELS, "variable_update": spec.VARIABLE_UPDATES}
    return [f"{name}={value}" for value in known.get(name, ())]


def is_colour_wanted(stream: TextIO) -> bool:
    """Return whether to write colours and bold letters there, by the same rules as pytest."""
    if os.environ.get("NO_COLOR"):  # https://no-color.org: any value that is not empty
        return False
    if os.environ.get("FORCE_COLOR"):  # https://force-color.org: likewise
        return True
    return is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Return whether lines on this stream can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout, as wide as the terminal or a log."""
    from pytest_dtfperf.report.tables import make_table, render

    drawn = make_table(headings, rows, [None] * len(headings), text_columns=range(len(headings)))
    print(render([drawn], count_columns(sys.stdout), is_colour_wanted(sys.stdout)), end="")


def count_columns(stream: TextIO) -> int:
    """Return the columns of a stream: COLUMNS, or the terminal's width, or 80 if it reports none."""
    if not stream.isatty():
        return LOG_COLUMNS
    given = os.environ.get("COLUMNS", "")
    return int(given) if re.fullmatch("[1-9][0-9]{0,3}", given) else os.get_terminal_size(stream.fileno()).columns or 80


COMPLETING = "_ARGCOMPLETE"  # set in the environment when a shell asks for completions
PROGRAM_TEXT = """\
Measure, compare and explain distributed TensorFlow training. `pytest perf_tests --cluster=NAME` runs perf tests.

    dtfperf init && pytest perf_tests
    dtfperf run mnist gpus=2
    dtfperf explain perf_results/20260131T021503Z-9f3c1a
    dtfperf clusters list --json
"""


@cache
def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands, cached: to make them takes 20 ms."""
    root = Parser(
        prog="dtfperf",
        description=PROGRAM_TEXT,
        epilog=f"Help of each command: dtfperf COMMAND --help.\n\n{format_exit_codes()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"pytest-dtfperf {metadata.version('pytest-dtfperf')}")
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in COMMANDS:
        import_module(f"pytest_dtfperf.cli.{module}").add_parser(commands)
    add_completion_parser(commands)
    return root


class Parser(argparse.ArgumentParser):
    """The parser of dtfperf and, as argparse uses the class of the parent, of its commands."""

    _arguments: Sequence[str] = ()  # the arguments
    _mixes = False  # True while argparse reads the arguments in several passes

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; positional ones may be before, between and after options."""
        if self._mixes:
            return super().parse_known_args(args, namespace)
        self._arguments = sys.argv[1:] if args is None else list(args)
        if not self._may_mix():
            return super().parse_known_args(args, namespace)
        self._mixes = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixes = False

    def _may_mix(self) -> bool:
        """Return False if later arguments belong to a subcommand, a program or pytest."""
        if self.get_default("passes_on") or "--" in self._arguments or COMPLETING in os.environ:
            return False
        return all(action.nargs not in (argparse.PARSER, argparse.REMAINDER) for action in self._actions)

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr. A command that passes arguments to pytest exits with pytest's code."""
        wrong = self.get_default("wrong_arguments") or USAGE
        self.exit(wrong, f"dtfperf: {printable(message)}.{self._hint()} See: {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help and raise errors of writing, which argparse would ignore."""
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
        else:
            file.write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error with the nearest choice, where argparse would list all of them."""
        if action.choices is not None and value not in action.choices:
            kind = "command" if isinstance(action, argparse._SubParsersAction) else "value"
            raise argparse.ArgumentError(action, describe_unknown_name(kind, value, action.choices).removesuffix("."))

    def _hint(self) -> str:
        """Return the commands if one is missing, or the option that is nearest to the first unknown one."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and all(word.startswith("-") for word in self._arguments):
                return f" COMMAND is one of {', '.join(action.choices)}."
        if self.get_default("passes_on"):
            return ""
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        for word in self._arguments:
            if word == "--":
                break
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                nearest = difflib.get_close_matches(name, known, n=1)
                return f" Did you mean {nearest[0]} instead of {printable(name)}?" if nearest else ""
        return ""


COMPLETION_TEXT = """\
Print the completion script of a shell for dtfperf: commands, options, and names of clusters, models, modes and sessions. Add
the line to the start-up file of the shell:

    eval "$(dtfperf completion bash)"          # ~/.bashrc
    eval "$(dtfperf completion zsh)"           # ~/.zshrc
    dtfperf completion fish | source           # ~/.config/fish/config.fish
"""
COMPLETION_ENDS = {DONE: "printed"}


def add_completion_parser(commands: "Commands[Any]") -> None:
    parser = add_command(
        commands, "completion", help="print the completion script of a shell", text=COMPLETION_TEXT, ends=COMPLETION_ENDS
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run_completion)


def run_completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["dtfperf"], shell=args.shell))
    return DONE
