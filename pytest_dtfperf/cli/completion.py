"""`dtfperf completion`: what a shell needs to complete commands, options and names of clusters, models and sessions."""

import argparse

from pytest_dtfperf.cli.terms import DONE, Commands, add_command

TEXT = """\
Prints what a shell needs to complete dtfperf: commands, options, and names of clusters, models, modes and sessions. In the
shell's own start-up file:

    eval "$(dtfperf completion bash)"          # ~/.bashrc
    eval "$(dtfperf completion zsh)"           # ~/.zshrc
    dtfperf completion fish | source           # ~/.config/fish/config.fish
"""
ENDS = {DONE: "printed"}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "completion", help="what a shell needs to complete all this", text=TEXT, ends=ENDS)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["dtfperf"], shell=args.shell))
    return DONE
