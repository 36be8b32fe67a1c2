"""All commands of `dtfperf` by their names, their refusals, and a check of their JSON against its documented shape."""

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.cli.options import OTHER_KEYS, USAGE, make_parser


@cache
def get_parsers() -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command, such as `history changes`, and of each group."""
    return dict(_walk_parsers(make_parser()))


def _walk_parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield parser.prog.removeprefix("dtfperf").strip(), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from _walk_parsers(each)


@cache
def get_commands() -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of the commands that run something."""
    return {name: each for name, each in get_parsers().items() if each.get_default("run")}


def read_refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Call a command with invalid arguments in this process, and return the one line that it prints, on stderr."""
    code: object
    try:
        code = main(arguments)
    except SystemExit as end:  # of the parser
        code = end.code
    printed = capfd.readouterr()
    assert (code, printed.out) == (USAGE, ""), printed
    (line,) = printed.err.splitlines()
    return line


def read(command: str, out: str) -> Any:
    """Return the document, or the list of a command that prints several; stdout must have nothing else."""
    shape, is_lines = get_commands()[command].get_default("shape"), get_commands()[command].get_default("is_lines")
    documents = [json.loads(line) for line in out.splitlines()]
    for document in documents:
        assert_shape(document, shape, command)
    if is_lines:
        return documents
    (document,) = documents
    return document


def assert_shape(found: Any, shape: Any, where: str) -> None:
    """Assert that the keys are the documented ones, at every level."""
    if isinstance(shape, str):
        assert shape, where
    elif isinstance(shape, list):
        assert isinstance(found, list), where
        for each in found:
            assert_shape(each, shape[0], where)
    else:
        assert isinstance(found, dict), where
        documented = shape.keys() - {OTHER_KEYS}
        assert documented <= found.keys(), where
        assert OTHER_KEYS in shape or found.keys() == documented, where
        for name in documented:
            assert_shape(found[name], shape[name], f"{where}: {name}")
