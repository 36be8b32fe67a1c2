"""The parser of `dtfperf`, which reports errors in one line with a suggestion, and `dtfperf completion` for shells."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module, metadata
from typing import Any, NoReturn

from pytest_dtfperf.cli.options import COMMANDS, DONE, USAGE, Commands, add_command, format_exit_codes
from pytest_dtfperf.errors import unknown_name
from pytest_dtfperf.formats import printable

COMPLETING = "_ARGCOMPLETE"  # set in the environment when a shell asks for completions
PROGRAM_TEXT = """\
What there is to do besides running perf tests, which `pytest perf_tests --cluster=NAME` does.

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
        epilog=f"Each command says more of itself: dtfperf COMMAND --help.\n\n{format_exit_codes()}",
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

    _words: Sequence[str] = ()  # the arguments
    _mixes = False  # True while argparse reads the arguments in several passes

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; positional ones may be before, between and after options."""
        if self._mixes:
            return super().parse_known_args(args, namespace)
        self._words = sys.argv[1:] if args is None else list(args)
        if not self._may_mix():
            return super().parse_known_args(args, namespace)
        self._mixes = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixes = False

    def _may_mix(self) -> bool:
        """Return False if later arguments belong to a subcommand, a program or pytest."""
        if self.get_default("passes_on") or "--" in self._words or COMPLETING in os.environ:
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
            raise argparse.ArgumentError(action, unknown_name(kind, value, action.choices).removesuffix("."))

    def _hint(self) -> str:
        """Return the commands if one is missing, or the option that is nearest to the first unknown one."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and all(word.startswith("-") for word in self._words):
                return f" COMMAND is one of {', '.join(action.choices)}."
        if self.get_default("passes_on"):
            return ""
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        for word in self._words:
            if word == "--":
                break
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                nearest = difflib.get_close_matches(name, known, n=1)
                return f" Did you mean {nearest[0]} instead of {printable(name)}?" if nearest else ""
        return ""


COMPLETION_TEXT = """\
Prints what a shell needs to complete dtfperf: commands, options, and names of clusters, models, modes and sessions. In the
shell's own start-up file:

    eval "$(dtfperf completion bash)"          # ~/.bashrc
    eval "$(dtfperf completion zsh)"           # ~/.zshrc
    dtfperf completion fish | source           # ~/.config/fish/config.fish
"""
COMPLETION_ENDS = {DONE: "printed"}


def add_completion_parser(commands: "Commands[Any]") -> None:
    parser = add_command(
        commands, "completion", help="what a shell needs to complete all this", text=COMPLETION_TEXT, ends=COMPLETION_ENDS
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run_completion)


def run_completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["dtfperf"], shell=args.shell))
    return DONE
